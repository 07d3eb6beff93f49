"""Softmax over scores of any size gives PyTorch's values and gradients, however its edges are cut."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from sagann.graph import Topology
from sagann.saga import Edge, SagaLayer
from tests.kernels.edge.cases import hub
from tests.runtime import cuts
from tests.runtime.cuts import Run, as_written, in_memory, in_tiles, not_fused, streamed

# The interpreter computes with NumPy, which warns of what floating point allows.
pytestmark = [pytest.mark.usefixtures("kernels"), pytest.mark.filterwarnings("ignore::RuntimeWarning")]
NUM_VERTICES = 50


class Attention(SagaLayer):
    """Scores are a feature of the source and data of the edge; what cannot be fused where ``tiled``."""

    accumulator, edge_data, tiled = "softmax", "score", False

    def apply_edge(self, edge: Edge) -> tuple[Tensor, Tensor]:
        value = edge.src[:, 1:]
        return edge.src[:, 0] + edge.data, not_fused(value, edge) if self.tiled else value


def expected(topology: Topology, x: Tensor) -> Tensor:
    """Vertex by vertex, in PyTorch's own operators."""
    rows = []
    indptr = topology.indptr.tolist()
    for first, last in pairwise(indptr):
        read = x[topology.indices[first:last].long()]
        score = read[:, 0] + topology.edge_data["score"][first:last].to(x.dtype)
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


def assert_right(name: str, topology: Topology, runs: Sequence[Run], dtype: torch.dtype) -> None:
    """Values and gradients are PyTorch's, NaN included; 0 where a vertex has no edges."""
    x = torch.randn(NUM_VERTICES, 5, generator=torch.Generator().manual_seed(2)).to(dtype)
    if dtype != torch.float32:
        # A sum of scores in half precision is rounded where it is not fused.
        x[:, 0] = 0
    topology = topology.with_edge_data(score=scores(name, topology).to(dtype))
    cuts.assert_right(Attention, expected, topology, x, runs, 1e-4 if dtype == torch.float32 else 1e-2)


HALVES = ["all masked", "masked at some vertices", "-1e4 ", "-inf at some vertices"]
CASES = [
    *((name, torch.float32) for name in NAMES),
    *((name, dtype) for name in HALVES for dtype in (torch.float16, torch.bfloat16)),
]


@pytest.mark.parametrize(("name", "dtype"), CASES)
def test_in_memory_and_streamed(name: str, dtype: torch.dtype) -> None:
    runs = [as_written, in_memory(), in_memory(dialect="naive"), in_tiles(7), in_tiles(1 << 16)]
    assert_right(name, graph(), [*runs, streamed(3), streamed(3, "naive")], dtype)
    if dtype == torch.float32:
        # A hub that is cut into work items.
        assert_right(name, graph(9000), [in_memory(), streamed(1)], dtype)


@pytest.mark.parametrize(
    "name", ["all masked", "-inf at some vertices", "inf at some edges", "-1e30 near", "1e4 near"]
)
def test_on_a_device(name: str) -> None:
    pytest.importorskip("triton", reason="triton is not installed: pip install sagann[cuda]")
    assert_right(name, graph(61), [in_memory(dialect="gpu"), streamed(2, "gpu")], torch.float32)
