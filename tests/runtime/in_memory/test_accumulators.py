"""Every accumulator of one message gives what PyTorch gives vertex by vertex, however its edges are cut."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn

from sagann.errors import LayerError
from sagann.graph import Topology
from sagann.nn import GNN
from sagann.plan.intervals import equal_vertices
from sagann.runtime.in_memory.engine import CompiledEngine
from sagann.runtime.streaming.streamed import StreamedModel
from sagann.saga import Edge, NaiveEngine, SagaLayer, using_engine
from tests.compiler.layers import program_of
from tests.graphs import odd_topologies
from tests.kernels.edge.cases import hub

# The interpreter computes with NumPy, which warns of what floating point allows.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")
Run = Callable[[Topology, Tensor, nn.Module], Tensor]


def _deviation(rows: Tensor) -> Tensor:
    found = rows.var(0, correction=0).clamp(min=1e-5).sqrt()
    return found.masked_fill(found <= 1e-5**0.5, 0)


OF_ROWS: dict[str, Callable[[Tensor], Tensor]] = {
    "sum": lambda rows: rows.sum(0),
    "mean": lambda rows: rows.mean(0),
    "max": lambda rows: rows.max(0).values,
    "min": lambda rows: rows.min(0).values,
    "var": lambda rows: rows.var(0, correction=0),
    "std": _deviation,
    "mul": lambda rows: rows.prod(0),
}
"What the rows of a vertex's in-edges give."
EMPTY = {"mul": 1.0}
"What no row gives, where it is not 0."


class Gather(SagaLayer):
    """Source rows, gathered; cut into tiles where ``tiled``."""

    def __init__(self, accumulator: str | tuple[str, ...], *, tiled: bool = False) -> None:
        super().__init__()
        self.accumulator, self.tiled = accumulator, tiled

    def apply_edge(self, edge: Edge) -> Tensor:
        rows = edge.src * 1.5
        return rows.cumsum(-1).diff(prepend=0 * rows[:, :1]) if self.tiled else rows

    def apply_vertex(self, vertex: Tensor, accum: Tensor) -> Tensor:
        return accum


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


def assert_right(
    accumulator: str | tuple[str, ...], topology: Topology, x: Tensor, runs: Sequence[Run], tolerance: float
) -> None:
    wanted = (x.float() if x.dtype in (torch.float16, torch.bfloat16) else x.clone()).requires_grad_()
    result = expected(accumulator, topology, wanted)
    upstream = torch.randn(result.shape, generator=torch.Generator().manual_seed(1)).to(x.dtype)
    (gradient,) = torch.autograd.grad(
        result, wanted, upstream.to(wanted.dtype), materialize_grads=True, allow_unused=True
    )
    for run in runs:
        given = x.clone().requires_grad_()
        out = run(topology, given, Gather(accumulator))
        (found,) = torch.autograd.grad(out, given, upstream)
        for ours, theirs in ((out, result), (found, gradient)):
            scale = max(1.0, float(theirs.detach().abs().max()))
            torch.testing.assert_close(ours.to(theirs.dtype), theirs, rtol=tolerance, atol=tolerance * scale)


def in_memory(**options: object) -> Run:
    def run(topology: Topology, x: Tensor, layer: nn.Module) -> Tensor:
        with using_engine(CompiledEngine(**options)):  # type: ignore[arg-type]
            return layer(topology, x)

    return run


def in_tiles(tile_edges: int) -> Run:
    def run(topology: Topology, x: Tensor, layer: nn.Module) -> Tensor:
        with using_engine(CompiledEngine(tile_edges=tile_edges)):
            return Gather(layer.accumulator, tiled=True)(topology, x)  # type: ignore[arg-type]

    return run


def as_written(topology: Topology, x: Tensor, layer: nn.Module) -> Tensor:
    with using_engine(NaiveEngine()):
        return layer(topology, x)


def streamed(count: int, dialect: str = "auto") -> Run:
    def run(topology: Topology, x: Tensor, layer: nn.Module) -> Tensor:
        return StreamedModel(GNN([layer]), [topology], equal_vertices(len(x), count), dialect=dialect)(x)  # type: ignore[arg-type]

    return run


RUNS = [
    as_written,
    in_memory(),
    in_tiles(7),
    in_tiles(1 << 16),
    streamed(1),
    streamed(2),
    streamed(5),
]


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


@pytest.mark.parametrize("run", [as_written, in_memory(), in_tiles(1 << 13), streamed(5)])
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
@pytest.mark.parametrize("accumulator", ["var", "std", "mul", *SEVERAL[:1]])
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
