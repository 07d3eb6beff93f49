"""What every dialect is held to: its ``run`` against the twin in plain PyTorch, on functions and graphs that are hard."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from sagann.graph import Topology
from sagann.kernels.edge import naive
from sagann.kernels.edge.function import EdgeFunction
from tests.graphs import odd_topologies
from tests.kernels.edge.functions import Builder, arrays_of, attention, gated

Run = Callable[..., tuple[Tensor, ...]]
"The ``run`` of a dialect."
TOPOLOGIES = odd_topologies()
KNOWN = {
    "gated": gated(41),
    "no features": gated(0),
    "heads": attention(8, 8),
    "one head": attention(1, 20),
    "a lane beyond the tiles": gated(129),
    "a lane beyond the tiles, float64": gated(65, torch.float64),
}


def assert_equals_naive(
    run: Run, function: EdgeFunction, topology: Topology, rtol: float, *, seed: int = 7, device: str = "cpu"
) -> None:
    """Run a function on random inputs and compare every result, dtype and shape included."""
    arrays = arrays_of(function, topology)
    moved = {name: array.to(device) for name, array in arrays.items()}
    actual = run(function, topology.to(device), moved, seed=seed)
    assert_close(actual, naive.run(function, topology, arrays, seed=seed), rtol)


def assert_close(actual: tuple[Tensor, ...], expected: tuple[Tensor, ...], rtol: float) -> None:
    """Compare results relative to the largest entry of each."""
    assert len(actual) == len(expected)
    for a, b in zip(actual, expected, strict=True):
        assert a.shape == b.shape
        assert a.dtype == b.dtype
        scale = float(b.double().abs().nan_to_num(posinf=0, neginf=0).max()) if b.numel() else 0.0
        torch.testing.assert_close(a.cpu(), b, rtol=rtol, atol=rtol * max(scale, 1.0), equal_nan=True)


def assert_reads_no_row_without_edges(run: Run, device: str = "cpu") -> None:
    """Run on an array that has rows for the first vertices alone; what lies beyond it is nobody's memory.

    Its stride says that rows are 4 MiB apart, so that reading one that is not there ends the process.
    """
    make = Builder(torch.float32)
    x, grad = make.input("src", (16,)), make.input("dst", (16,))
    function = make.function(("sum", make.op("where", make.op("gt", x, 0.0), grad, 0.0)), at="src")
    topology = Topology.from_coo(src=torch.tensor([0]), dst=torch.tensor([0]), num_src=1000, num_dst=1).to(device)
    rows = torch.ones(1, 16, device=device).as_strided((1, 16), (1 << 20, 1))
    (found,) = run(function, topology, {x: rows, grad: torch.full((1, 16), 3.0, device=device)})
    assert found[0].tolist() == [3] * 16
    assert not found[1:].any()


def hub(num_edges: int, vertex: int = 47) -> Topology:
    """One of 50 vertices with that many in-edges and as many out-edges, so that both are cut into work items."""
    generator = torch.Generator().manual_seed(3)
    middle = torch.full((num_edges,), vertex)
    src = torch.cat([torch.randint(50, (num_edges,), generator=generator), middle])
    dst = torch.cat([middle, torch.randint(50, (num_edges,), generator=generator)])
    return Topology.from_coo(src=src, dst=dst, num_src=50)


def sums_over_hubs(at: str, num_edges: int) -> tuple[EdgeFunction, Topology, dict[str, Tensor], tuple[Tensor, ...]]:
    """Sums in float32 over vertices of many edges: a function, edges, arrays, and the results in float64."""
    topology, functions = hub(num_edges), []
    for dtype in (torch.float32, torch.float64):
        make = Builder(dtype)
        score, value = make.input("edge", ()), make.input("src" if at == "dst" else "dst", (2,))
        reduced = [(reduce, value) for reduce in ("sum", "total", "moments")]
        functions.append(make.function(*reduced, ("softmax", score, value), at=at))
    arrays = {name: array.abs() for name, array in arrays_of(functions[0], topology).items()}
    # Every addition of equal terms is rounded the same way.
    arrays[value][:, 0] = 0.1
    wide = {name: array.double() for name, array in arrays.items()}
    return functions[0], topology, arrays, naive.run(functions[1], topology, wide)


def all_reductions(at: str) -> EdgeFunction:
    """One value reduced in every way."""
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


def nan_and_infinity() -> tuple[EdgeFunction, Topology, Mapping[str, Tensor]]:
    """Functions at the ends of their range, and reductions over NaN and infinity."""
    make = Builder(torch.float64)
    value = make.input("src", (3,))
    grown = [make.op(name, value) for name in ("exp", "expm1", "sigmoid", "tanh")]
    function = make.function(*(("edge", name) for name in grown), ("max", value), ("min", value), ("sum", value))
    x = torch.tensor([[float("nan"), 1.0, float("inf")], [-float("inf"), 800.0, 2.0], [0.0, -800.0, -0.5]])
    return function, TOPOLOGIES["self-loops"], {value: x.double()}


def assert_exact_over_the_whole_range(run: Run, dtype: torch.dtype, device: str = "cpu") -> None:
    """exp, expm1, sigmoid and tanh to 4 units in the last place, near 0 and far from it."""
    make = Builder(dtype)
    value = make.input("src", (1000,))
    names = ["exp", "expm1", "sigmoid", "tanh"]
    function = make.function(*(("sum", make.op(name, value)) for name in names))
    topology = Topology.from_coo(src=torch.tensor([0]), dst=torch.tensor([0]), num_src=1).to(device)
    scale = {torch.float32: 80.0, torch.float64: 700.0}[dtype]
    spaced = torch.linspace(-1, 1, 1000, dtype=torch.float64) ** 5
    for x in (spaced * scale, spaced * 1e-3):
        results = run(function, topology, {value: x.to(dtype).unsqueeze(0).to(device)})
        for name, result in zip(names, results, strict=True):
            exact = getattr(torch, name)(x.to(dtype).double())
            error = ((result[0].double().cpu() - exact) / exact.abs().clamp(min=1e-30)).abs().max()
            assert error < 4 * torch.finfo(dtype).eps, name
