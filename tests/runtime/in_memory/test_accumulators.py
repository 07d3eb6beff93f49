"""Every accumulator of one message gives what PyTorch gives vertex by vertex, however its edges are cut; in tiles also what is drawn."""

from __future__ import annotations

import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from sagann.errors import LayerError
from sagann.graph import Topology
from sagann.runtime.in_memory.engine import CompiledEngine
from sagann.saga import Edge, NaiveEngine, SagaLayer, using_engine
from tests.compiler.layers import Layer, program_of
from tests.graphs import odd_topologies
from tests.kernels.edge.cases import hub
from tests.runtime import cuts
from tests.runtime.cuts import EMPTY, OF_ROWS, Run, as_written, in_memory, in_tiles, not_fused, streamed

# The interpreter computes with NumPy, which warns of what floating point allows.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


class Gather(SagaLayer):
    """Source rows, gathered; cut into tiles where ``tiled``."""

    tiled = False

    def __init__(self, accumulator: str | tuple[str, ...]) -> None:
        super().__init__()
        self.accumulator = accumulator

    def apply_edge(self, edge: Edge) -> Tensor:
        rows = edge.src * 1.5
        return not_fused(rows, edge) if self.tiled else rows


SEVERAL = [("mean", "min", "max", "std"), ("mul", "sum"), ("var", "mean", "mul", "max")]
"Several accumulators of one message."


def expected(accumulator: str | tuple[str, ...], topology: Topology, x: Tensor) -> Tensor:
    if isinstance(accumulator, tuple):
        return torch.cat([expected(each, topology, x) for each in accumulator], -1)
    rows = []
    for first, last in pairwise(topology.indptr.tolist()):
        read = 1.5 * x[topology.indices[first:last].long()]
        nothing = torch.full_like(x[0], EMPTY.get(accumulator, 0.0))
        rows.append(OF_ROWS[accumulator](read) if len(read) else nothing)
    return torch.stack(rows) + 0 * x.sum()


RUNS = [as_written, in_memory(), in_tiles(7), in_tiles(1 << 16), streamed(1), streamed(2), streamed(5)]


def assert_right(
    accumulator: str | tuple[str, ...], topology: Topology, x: Tensor, runs: Sequence[Run], tolerance: float
) -> None:
    cuts.assert_right(lambda: Gather(accumulator), partial(expected, accumulator), topology, x, runs, tolerance)


def rows(topology: Topology, width: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(topology.num_src, width, generator=torch.Generator().manual_seed(2), dtype=torch.float64).to(
        dtype
    )


@pytest.mark.parametrize("name", odd_topologies())
@pytest.mark.parametrize("accumulator", [*OF_ROWS, *SEVERAL])
def test_odd_graphs(accumulator: str | tuple[str, ...], name: str) -> None:
    topology = odd_topologies()[name]
    assert_right(accumulator, topology, rows(topology, 5), RUNS, 1e-10)


@pytest.mark.parametrize("accumulator", ["var", "std", "mul"])
def test_a_hub_that_is_cut_into_work_items(accumulator: str) -> None:
    topology = hub(9000)
    x = rows(topology, 3)
    x = x.sign() * (1 + x.abs() / 1e4) / 1.5 if accumulator == "mul" else x
    assert_right(accumulator, topology, x, [in_memory(), streamed(2)], 1e-9)


@pytest.mark.parametrize("run", [as_written, in_memory(), in_memory(dialect="cpu"), in_tiles(1 << 13), streamed(5)])
@pytest.mark.parametrize("accumulator", ["sum", "mean", "max", "std"])
def test_sums_over_a_hub_in_float32(accumulator: str, run: Run) -> None:
    topology = hub(100_000)
    x = torch.rand(50, 2, generator=torch.Generator().manual_seed(2))
    # Most vertices have the hub's row, and all gradients are equal, so that every addition is rounded the same way.
    x[5:] = 0.1 if accumulator != "max" else 1.1
    found = []
    for each, given in ((run, x), (in_memory(), x.double())):
        given.requires_grad_()
        out = each(topology, given, Gather(accumulator))
        found.append((out, *torch.autograd.grad(out, given, torch.full_like(out, 0.1))))
    for ours, right in zip(*found, strict=True):
        torch.testing.assert_close(ours.double(), right, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("accumulator", ["sum", "var", "std", "mul", *SEVERAL[:1]])
def test_half_precision(accumulator: str | tuple[str, ...], dtype: torch.dtype) -> None:
    topology = odd_topologies()["multi-edges"]
    runs = [in_memory(), in_tiles(7), streamed(2)]
    assert_right(accumulator, topology, rows(topology, 5, dtype), runs, 2e-2)


@pytest.mark.parametrize("accumulator", ["var", "std"])
def test_a_small_spread_beside_a_large_mean(accumulator: str) -> None:
    topology = odd_topologies()["skewed"]
    x = (1000 + rows(topology, 4)).float()
    runs = [in_memory(), in_tiles(7), streamed(3)]
    wanted = expected(accumulator, topology, x.double())
    for run in runs:
        found = run(topology, x, Gather(accumulator))
        torch.testing.assert_close(found.double(), wanted, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("num_zeros", [1, 2, 20])
def test_gradients_of_products_with_zeros(num_zeros: int) -> None:
    topology = odd_topologies()["skewed"]
    x = rows(topology, 6)
    x[:num_zeros, ::2] = 0
    assert_right("mul", topology, x, RUNS, 1e-10)


@pytest.mark.parametrize("accumulator", ["var", "std", "mul", *SEVERAL[:1]])
def test_on_a_device(accumulator: str | tuple[str, ...]) -> None:
    pytest.importorskip("triton", reason="triton is not installed: pip install sagann[cuda]")
    runs = [in_memory(dialect="gpu"), streamed(2, "gpu")]
    for name in ("isolated vertices", "multi-edges", "one hub"):
        topology = odd_topologies()[name]
        x = rows(topology, 5)
        x[1, ::2] = 0
        assert_right(accumulator, topology, x, runs, 1e-10)


def test_several_accumulators_are_one_pass_forward_and_one_backward() -> None:
    topology, engine = odd_topologies()["skewed"], CompiledEngine()
    layer, x = Gather(SEVERAL[0]), rows(topology, 4)
    program = program_of(layer, topology, x, engine)
    assert program.edges.function is not None
    assert len(program.edges.function.outputs) == 4
    assert len(program.edges.backward(program.edges.stage.inputs)) == 1


@pytest.mark.parametrize(
    ("accumulator", "said"),
    [
        (("mean", "softmax"), "accumulators that cannot be combined: softmax among 2"),
        (("concat", "sum"), "accumulators that cannot be combined: concat among 2"),
        (("max", "max"), "one of them twice"),
        (("mean", "median"), "unknown accumulator: 'median'"),
        ((), "unknown accumulator: a tuple"),
        (["mean", "max"], "Write a tuple: accumulator = ('mean', 'max')."),
        ("mean+max", "unknown accumulator"),
    ],
)
def test_what_cannot_be_combined_is_refused(accumulator: tuple[str, ...], said: str) -> None:
    topology = odd_topologies()["skewed"]
    with pytest.raises(LayerError, match=re.escape(said)):
        Gather(accumulator)(topology, rows(topology, 4))


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


def test_nan_and_infinity_pass_through_extrema() -> None:
    topology = odd_topologies()["skewed"]
    layer = Layer(lambda m, e: torch.cumsum(torch.relu(e.src + e.dst) @ m.w, -1), accumulator="max").double()
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
