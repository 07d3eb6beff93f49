"""What every dialect is held to: its ``run`` against the twin in plain PyTorch, on functions and graphs that are hard."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from sagann.graph import Topology
from sagann.kernels.edge import naive
from sagann.kernels.edge.function import EdgeFunction
from tests.cuda import INTERPRETED
from tests.graphs import odd_topologies, random_topology
from tests.kernels.edge.functions import Builder, arrays_of, attention, gated

Run = Callable[..., tuple[Tensor, ...]]
"The ``run`` of a dialect."
TOPOLOGIES = odd_topologies()
# The interpreter takes milliseconds for an edge.
ON_DEVICE = TOPOLOGIES | ({"skewed": random_topology(29, 131)} if INTERPRETED else {})
KNOWN = {
    "gated": gated(41),
    "no features": gated(0),
    "heads": attention(8, 8),
    "one head": attention(1, 20),
    "a lane beyond the tiles": gated(129),
    "a lane beyond the tiles, float64": gated(65, torch.float64),
}


def assert_equals_naive(
    run: Run,
    function: EdgeFunction,
    topology: Topology,
    rtol: float,
    *,
    arrays: dict[str, Tensor] | None = None,
    device: str = "cpu",
) -> None:
    """Run a function, on random inputs where none are given, and compare every result, dtype and shape included."""
    arrays = arrays_of(function, topology) if arrays is None else arrays
    moved = {name: array.to(device) for name, array in arrays.items()}
    actual = run(function, topology.to(device), moved, seed=7)
    assert_close(actual, naive.run(function, topology, arrays, seed=7), rtol)


def assert_close(actual: tuple[Tensor, ...], expected: tuple[Tensor, ...], rtol: float) -> None:
    """Compare results relative to the largest entry of each."""
    assert len(actual) == len(expected)
    for a, b in zip(actual, expected, strict=True):
        assert a.shape == b.shape
        assert a.dtype == b.dtype
        scale = float(b.double().abs().nan_to_num(posinf=0, neginf=0).max()) if b.numel() else 0.0
        torch.testing.assert_close(a.cpu(), b, rtol=rtol, atol=rtol * max(scale, 1.0), equal_nan=True)


def hub(num_edges: int, vertex: int = 47) -> Topology:
    """One of 50 vertices with that many in-edges and as many out-edges, so that both are cut into work items."""
    generator = torch.Generator().manual_seed(3)
    middle = torch.full((num_edges,), vertex)
    src = torch.cat([torch.randint(50, (num_edges,), generator=generator), middle])
    dst = torch.cat([middle, torch.randint(50, (num_edges,), generator=generator)])
    return Topology.from_coo(src=src, dst=dst, num_src=50)


def all_reductions(at: str) -> EdgeFunction:
    make = Builder(torch.float64)
    src, dst, weight = make.input("src", (5,)), make.input("dst", (5,)), make.input("edge", ())
    score, value = make.op("mul", dst, weight), make.op("add", make.op("mul", src, weight), dst)
    reduced = [(reduce, value) for reduce in ("sum", "total", "edge", "max", "min", "moments")]
    # A hub's product of larger factors overflows, and then depends on their order.
    return make.function(*reduced, ("product", make.op("tanh", value)), ("softmax", score, value), at=at)


def _permuted() -> EdgeFunction:
    make = Builder(torch.float64)
    return make.function(("sum", make.op("permute", make.input("src", (3, 4)), dims=(1, 0))))


def _sliced() -> EdgeFunction:
    make = Builder(torch.float64)
    return make.function(("sum", make.op("slice", make.input("src", (12,)), shape=(1,), dim=0, start=5, step=1)))


def _extrema_of_out_edges() -> EdgeFunction:
    make = Builder(torch.float64)
    return make.function(("max", make.input("src", (12,))), ("min", make.input("dst", (12,))), at="src")


MOVED = {"permute": _permuted(), "slice": _sliced(), "extrema of out-edges": _extrema_of_out_edges()}
"Functions all of whose values are as wide, though lane i does not depend on lanes i alone; and their kin."
