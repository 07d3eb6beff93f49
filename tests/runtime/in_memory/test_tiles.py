"""Edges that cannot be fused: tiles of any size give what one tile of all edges gives."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from sagann.graph import Topology
from sagann.runtime.in_memory.engine import CompiledEngine
from sagann.saga import NaiveEngine, using_engine
from tests.compiler.layers import Layer, assert_compiles_right, program_of
from tests.graphs import odd_topologies

UNFUSED: dict[str, Callable[[Layer, Any], Any]] = {
    "edge network": lambda m, e: torch.cumsum(torch.relu(e.src + e.dst) @ m.w + m.v, -1),
    "data": lambda m, e: torch.cumsum((e.src * e.dst * e.data[:, None]) @ m.w, -1),
    "sorted": lambda m, e: torch.sort(e.src * e.dst, -1).values,
}
SCORED: dict[str, Callable[[Layer, Any], Any]] = {
    "one head": lambda m, e: (torch.cumsum(torch.tanh(e.src + e.dst), -1) @ m.v, e.src),
    "two heads": lambda m, e: (
        torch.cumsum((e.src * e.dst) @ m.w, -1)[:, :2],
        e.src.view(-1, 2, 2) * e.data.view(-1, 1, 1),
    ),
}


@pytest.mark.cover(2)
@pytest.mark.parametrize("tile_edges", [1, 7, 1 << 16])
@pytest.mark.parametrize("graph", odd_topologies())
@pytest.mark.parametrize("accumulator", ["sum", "mean", "max", "min"])
@pytest.mark.parametrize("name", UNFUSED)
def test_tiles_equal_the_whole(name: str, accumulator: str, graph: str, tile_edges: int) -> None:
    topology = odd_topologies()[graph]
    layer = Layer(UNFUSED[name], lambda m, v, a: a * m.a + v, accumulator=accumulator).double()
    x = torch.randn(topology.num_src, 4, dtype=torch.float64)
    engine = assert_compiles_right(layer, topology, x, engine=CompiledEngine(tile_edges=tile_edges))
    program = program_of(layer, topology, x, engine)
    assert program.edges.function is None
    assert "test_tiles.py" in next(note.text for note in program.notes if note.kind == "not fused")


@pytest.mark.parametrize("tile_edges", [1, 7, 1 << 16])
@pytest.mark.parametrize("graph", odd_topologies())
@pytest.mark.parametrize("name", SCORED)
def test_softmax_over_tiles(name: str, graph: str, tile_edges: int) -> None:
    topology = odd_topologies()[graph]
    layer = Layer(SCORED[name], accumulator="softmax").double()
    x = torch.randn(topology.num_src, 4, dtype=torch.float64)
    assert_compiles_right(layer, topology, x, engine=CompiledEngine(tile_edges=tile_edges))


def test_threads_that_drop_do_not_disturb_one_another() -> None:
    ids = torch.arange(4000)
    topology = Topology.from_coo(src=ids, dst=ids, num_src=4000).with_edge_data(weight=torch.ones(4000))
    layer = Layer(lambda m, e: F.dropout(e.src, 0.5).cumsum(-1).diff(prepend=e.src[:, :1] * 0))
    engine = CompiledEngine(tile_edges=50)

    def masks_differ(_: int) -> bool:
        x = torch.ones(4000, 4, requires_grad=True)
        with using_engine(engine):
            out = layer(topology, x)
        out.sum().backward()
        return not torch.equal(out.detach().round() != 0, x.grad.round() != 0)

    masks_differ(0)
    with ThreadPoolExecutor(4) as pool:
        assert not any(pool.map(masks_differ, range(40)))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("accumulator", ["sum", "mean", "max", "min", "softmax"])
def test_half_precision_is_accumulated_in_single(accumulator: str, dtype: torch.dtype) -> None:
    topology = odd_topologies()["skewed"]

    def message(m: Layer, e: Any) -> Any:
        value = torch.cumsum(e.src * e.data[:, None], -1)
        return (torch.tanh(e.src + e.dst).sum(-1), value) if accumulator == "softmax" else value

    layer = Layer(message, accumulator=accumulator).to(dtype)
    x = torch.randn(topology.num_src, 4, dtype=dtype)
    engine = assert_compiles_right(layer, topology, x, engine=CompiledEngine(tile_edges=7))
    assert program_of(layer, topology, x, engine).edges.function is None


def test_nan_and_infinity_pass_through_extrema() -> None:
    topology = odd_topologies()["skewed"]
    layer = Layer(UNFUSED["edge network"], accumulator="max").double()
    x = torch.randn(topology.num_src, 4, dtype=torch.float64)
    x[3, 1], x[5, 2] = torch.nan, torch.inf
    with using_engine(NaiveEngine()):
        expected = layer(topology, x)
    with using_engine(CompiledEngine(tile_edges=5)):
        torch.testing.assert_close(layer(topology, x), expected, equal_nan=True)


def test_random_numbers_come_again_in_the_backward() -> None:
    topology = odd_topologies()["skewed"]

    def noisy(m: Layer, e: Any) -> torch.Tensor:
        return F.dropout(torch.cumsum(e.src + e.dst, -1) @ m.w, 0.5) + torch.rand_like(e.src)

    layer = Layer(noisy).double()
    x = torch.randn(topology.num_src, 4, dtype=torch.float64, requires_grad=True)
    with using_engine(CompiledEngine(tile_edges=64)):

        def run(x: torch.Tensor) -> torch.Tensor:
            torch.manual_seed(0)
            return layer(topology, x)

        assert torch.equal(run(x), run(x))
        assert torch.autograd.gradcheck(run, x)


def test_a_mean_in_half_precision_at_a_hub() -> None:
    num_edges = 70_000
    topology = Topology.from_coo(
        src=torch.arange(num_edges) % 50, dst=torch.zeros(num_edges, dtype=torch.int64), num_src=50
    ).with_edge_data(weight=torch.ones(num_edges).half())
    layer = Layer(lambda m, e: torch.cumsum(e.src * e.data[:, None], -1), accumulator="mean").half()
    x = torch.ones(50, 4).half().requires_grad_()
    with using_engine(CompiledEngine()):
        layer(topology, x).sum().backward()
    # A fiftieth of the in-edges come from each source; the first feature is in all four sums.
    expected = torch.tensor([4.0, 3.0, 2.0, 1.0]).expand(50, 4) / 50
    torch.testing.assert_close(x.grad.float(), expected, rtol=2e-3, atol=0)


def test_parts_that_begin_at_other_edges_draw_other_numbers() -> None:
    ids = torch.arange(400)
    topology = Topology.from_coo(src=ids, dst=ids, num_src=400).with_edge_data(weight=torch.ones(400))
    layer = Layer(lambda m, e: F.dropout(e.src, 0.5).cumsum(-1).diff(prepend=e.src[:, :1] * 0))

    def drawn(first_edge: int) -> torch.Tensor:
        topology.remote = SimpleNamespace(first_edge=first_edge, complete=lambda rows, keeps: rows)
        torch.manual_seed(0)
        with using_engine(CompiledEngine(tile_edges=50)):
            return layer(topology, torch.ones(400, 4)).detach()

    assert torch.equal(drawn(0), drawn(0))
    assert not torch.equal(drawn(0), drawn(1000))
