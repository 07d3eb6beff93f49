"""Softmax over scores of any size gives PyTorch's values and gradients, however its edges are cut."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from sagann.graph import Topology
from sagann.nn import GNN
from sagann.plan.intervals import equal_vertices
from sagann.runtime.in_memory.engine import CompiledEngine
from sagann.runtime.streaming.streamed import StreamedModel
from sagann.saga import Edge, NaiveEngine, SagaLayer, using_engine
from tests.kernels.edge.cases import hub

# The interpreter computes with NumPy, which warns of what floating point allows.
pytestmark = [pytest.mark.usefixtures("kernels"), pytest.mark.filterwarnings("ignore::RuntimeWarning")]
NUM_VERTICES = 50


class Attention(SagaLayer):
    """Scores are a feature of the source and data of the edge; what cannot be fused where ``tiled``."""

    accumulator = "softmax"
    edge_data = "score"

    def __init__(self, *, tiled: bool = False) -> None:
        super().__init__()
        self.tiled = tiled

    def apply_edge(self, edge: Edge) -> tuple[Tensor, Tensor]:
        value = edge.src[:, 1:]
        if self.tiled:
            value = value.cumsum(-1).diff(prepend=0 * value[:, :1])
        return edge.src[:, 0] + edge.data, value

    def apply_vertex(self, vertex: Tensor, accum: Tensor) -> Tensor:
        return accum


def expected(topology: Topology, x: Tensor) -> Tensor:
    """Vertex by vertex, in PyTorch's own operators."""
    rows = []
    indptr = topology.indptr.tolist()
    for first, last in pairwise(indptr):
        read = x[topology.indices[first:last].long()]
        score = read[:, 0] + topology.edge_data["score"][first:last]
        rows.append(score.softmax(0) @ read[:, 1:])
    return torch.stack(rows)


@cache
def graph(num_edges: int = 401) -> Topology:
    """Vertex 47 has half of the edges, vertex 49 none."""
    topology = hub(num_edges)
    kept = topology.edge_dst() != 49
    return Topology.from_coo(src=topology.indices[kept], dst=topology.edge_dst()[kept], num_src=NUM_VERTICES)


def scores(name: str, topology: Topology) -> Tensor:
    """By name: of a size and sign, alike or not; masks; infinite."""
    generator = torch.Generator().manual_seed(5)
    count = topology.num_edges
    drawn = torch.rand(count, generator=generator)
    dst = topology.edge_dst()
    if name == "all masked":
        return torch.full((count,), -1e9)
    if name == "masked at some vertices":
        return torch.where(dst % 3 == 0, -1e9, drawn)
    if name == "some masked":
        return torch.where(drawn < 0.5, -1e9, drawn)
    if name == "-inf at some edges":
        return torch.where(drawn < 0.5, -torch.inf, drawn)
    if name == "-inf at some vertices":
        return torch.where((dst == 47) | (dst == 3), -torch.inf, drawn)
    if name == "inf at some edges":
        return torch.where(drawn < 0.05, torch.inf, drawn)
    size = float(name.split()[0])
    levels = torch.tensor([1.0, 1.0, 1 + 2**-20, 0.5] if "near" in name else [1.0])
    return size * levels[(drawn * len(levels)).long()]


NAMES = [
    "all masked",
    "masked at some vertices",
    "some masked",
    "-inf at some edges",
    "-inf at some vertices",
    "inf at some edges",
    "1e2 near",
    "-1e4 ",
    "1e20 near",
    "-1e30 near",
    "1e30 ",
]


def assert_right(
    name: str, topology: Topology, run: Callable[[Topology, Tensor], Tensor], dtype: torch.dtype
) -> None:
    """Values and gradients are PyTorch's, NaN included; 0 where a vertex has no edges."""
    score = scores(name, topology).to(dtype)
    topology = topology.with_edge_data(score=score)
    x = torch.randn(NUM_VERTICES, 5, generator=torch.Generator().manual_seed(2)).to(dtype)
    if dtype != torch.float32:
        # A sum of scores in half precision is rounded where it is not fused.
        x[:, 0] = 0
    wanted = x.float().requires_grad_()
    result = expected(topology.with_edge_data(score=score.float()), wanted)
    upstream = torch.randn(result.shape, generator=torch.Generator().manual_seed(1)).to(dtype)
    (gradient,) = torch.autograd.grad(result, wanted, upstream.float())
    given = x.clone().requires_grad_()
    out = run(topology, given)
    (found,) = torch.autograd.grad(out, given, upstream)
    tolerance = 1e-4 if dtype == torch.float32 else 1e-2
    assert not out[49].any()
    torch.testing.assert_close(out.float(), result, rtol=tolerance, atol=tolerance, equal_nan=True)
    # Rounded once more where it is stored in half precision; a hub's sums are of many terms.
    scale = float(gradient.nan_to_num().abs().max())
    torch.testing.assert_close(found.float(), gradient, rtol=tolerance, atol=tolerance * scale, equal_nan=True)


def in_memory(engine: object, *, tiled: bool = False) -> Callable[[Topology, Tensor], Tensor]:
    def run(topology: Topology, x: Tensor) -> Tensor:
        with using_engine(engine):  # type: ignore[arg-type]
            return Attention(tiled=tiled)(topology, x)

    return run


def streamed(num_intervals: int, dialect: str = "auto") -> Callable[[Topology, Tensor], Tensor]:
    def run(topology: Topology, x: Tensor) -> Tensor:
        bounds = equal_vertices(NUM_VERTICES, num_intervals)
        return StreamedModel(GNN([Attention()]), [topology], bounds, dialect=dialect)(x)

    return run


HALVES = ["all masked", "masked at some vertices", "-1e4 ", "-inf at some vertices"]
CASES = [
    *((name, torch.float32) for name in NAMES),
    *((name, dtype) for name in HALVES for dtype in (torch.float16, torch.bfloat16)),
]


@pytest.mark.parametrize(("name", "dtype"), CASES)
def test_in_memory(name: str, dtype: torch.dtype) -> None:
    for engine in (NaiveEngine(), CompiledEngine(), CompiledEngine(dialect="naive")):
        assert_right(name, graph(), in_memory(engine), dtype)
    for tile_edges in (7, 1 << 16):
        assert_right(name, graph(), in_memory(CompiledEngine(tile_edges=tile_edges), tiled=True), dtype)
    if dtype == torch.float32:
        # A hub that is cut into work items.
        assert_right(name, graph(9000), in_memory(CompiledEngine()), dtype)


@pytest.mark.parametrize(("name", "dtype"), CASES)
def test_streamed(name: str, dtype: torch.dtype) -> None:
    for dialect in ("auto", "naive"):
        assert_right(name, graph(), streamed(3, dialect), dtype)
    if dtype == torch.float32:
        assert_right(name, graph(9000), streamed(1), dtype)


@pytest.mark.parametrize(
    "name", ["all masked", "-inf at some vertices", "inf at some edges", "-1e30 near", "1e4 near"]
)
def test_on_a_device(name: str) -> None:
    pytest.importorskip("triton", reason="triton is not installed: pip install sagann[cuda]")
    assert_right(name, graph(61), in_memory(CompiledEngine(dialect="gpu")), torch.float32)
    assert_right(name, graph(61), streamed(2, "gpu"), torch.float32)
