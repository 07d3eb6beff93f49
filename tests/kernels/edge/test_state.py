"""Gathers continued chunk by chunk, and merged, against one pass over the whole graph."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from itertools import product

import pytest
import torch
from hypothesis import assume, given, settings, strategies as st
from torch import Tensor

from sagann.compiler.vjp import backward_passes
from sagann.graph import Topology
from sagann.kernels.accumulators import gathering
from sagann.kernels.edge import cpu, naive
from sagann.kernels.edge.divide import divide
from sagann.kernels.edge.function import EdgeFunction
from sagann.kernels.edge.pass_edges import grouped
from sagann.kernels.edge.state import GatherState, Run
from sagann.kernels.edge.work import DEVICE_GRAIN, HOST_GRAIN
from tests.cuda import INTERPRETED, NO_TRITON
from tests.graphs import random_topology, topology_of
from tests.kernels.edge import cases
from tests.kernels.edge.cases import TOPOLOGIES
from tests.kernels.edge.chunks import CUTS, by_source, gather, runs
from tests.kernels.edge.functions import Builder, arrays_of, attention, functions, gated

# The interpreter computes with NumPy, which warns of what floating point allows.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")
RUNS: dict[str, Run] = {"naive": naive.run, "cpu": cpu.run}
if importlib.util.find_spec("triton") is not None:
    from sagann.kernels.edge import gpu

    RUNS["gpu"] = gpu.run
DEVICES = {"gpu": "cpu" if INTERPRETED else "cuda"}
WHOLE = {name: by_source(topology) for name, topology in TOPOLOGIES.items()}
ON_DEVICE = WHOLE | {
    "skewed": by_source(random_topology(19, 67)),
    "one hub": by_source(topology_of([(vertex, 0) for vertex in range(1, 13)], 13)),
}
"Topologies for Triton's interpreter, which takes milliseconds for an edge."


def whole(dialect: str, name: str) -> Topology:
    return (ON_DEVICE if dialect == "gpu" else WHOLE)[name]


def assert_equals_whole(
    dialect: str,
    function: EdgeFunction,
    topology: Topology,
    cut: str,
    rtol: float,
    *,
    arrays: dict[str, Tensor] | None = None,
) -> None:
    """Compare with one naive pass: accumulated in order, and accumulated apart and merged."""
    arrays = arrays_of(function, topology) if arrays is None else arrays
    expected = naive.run(function, topology, arrays, seed=7)
    for apart in (False, True):
        device = DEVICES.get(dialect, "cpu")
        chunks = CUTS[cut](topology)
        actual = gather(RUNS[dialect], function, topology, chunks, arrays, apart=apart, device=device)
        cases.assert_close(actual, expected, rtol)


def ids_are_those_of_the_whole(function: EdgeFunction, cut: str) -> bool:
    """Chunks of a grid number their edges in another order, which random values and ids on edges show."""
    return "runs" in cut or cut == "1 x 1" or all(op.op not in ("random", "edge_id") for op in function.ops)


@pytest.mark.parametrize("dialect", RUNS)
@settings(max_examples=settings.default.max_examples // 2)
@given(function=functions(), name=st.sampled_from(sorted(WHOLE)), cut=st.sampled_from(sorted(CUTS)))
def test_random_functions(dialect: str, function: EdgeFunction, name: str, cut: str) -> None:
    assume(ids_are_those_of_the_whole(function, cut))
    # The interpreter takes seconds for many chunks.
    assume(dialect != "gpu" or "7" not in cut)
    assert_equals_whole(dialect, function, whole(dialect, name), cut, rtol=1e-10)


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("at", ["dst", "src"])
@pytest.mark.parametrize("dialect", RUNS)
def test_every_reduction_over_every_cut(dialect: str, at: str, cut: str) -> None:
    for name in WHOLE:
        # The interpreter takes seconds for many edges in many chunks.
        if dialect != "gpu" or cut == "2 x 2" or name in ("no edges", "isolated vertices"):
            assert_equals_whole(dialect, cases.all_reductions(at), whole(dialect, name), cut, rtol=1e-10)


@pytest.mark.parametrize("dialect", RUNS)
def test_half_precision_is_accumulated_in_float32(dialect: str) -> None:
    for dtype in (torch.float16, torch.bfloat16):
        assert_equals_whole(dialect, gated(41, dtype), whole(dialect, "skewed"), "2 x 2", rtol=1e-5)


@pytest.mark.parametrize("num_chunks", [1, 100])
@pytest.mark.parametrize("at", ["dst", "src"])
@pytest.mark.parametrize("dialect", RUNS)
def test_sums_over_hubs_in_float32(dialect: str, at: str, num_chunks: int) -> None:
    device = DEVICES.get(dialect, "cpu")
    # The interpreter takes milliseconds for an edge.
    num_edges = 100 if dialect == "gpu" and device == "cpu" else 50_000
    topology, functions = cases.hub(num_edges), []
    for dtype in (torch.float32, torch.float64):
        make = Builder(dtype)
        score, value = make.input("edge", ()), make.input("src" if at == "dst" else "dst", (2,))
        reduced = [(reduce, value) for reduce in ("sum", "total", "moments")]
        functions.append(make.function(*reduced, ("softmax", score, value), at=at))
    function, in_double = functions
    arrays = {name: array.abs() for name, array in arrays_of(function, topology).items()}
    # Every addition of equal terms is rounded the same way.
    arrays[value][:, 0] = 0.1
    expected = naive.run(in_double, topology, {name: array.double() for name, array in arrays.items()})
    chunks = runs(topology, min(num_chunks, num_edges // 50))
    actual = gather(RUNS[dialect], function, topology, chunks, arrays, device=device)
    for found, right in zip(actual, expected, strict=True):
        torch.testing.assert_close(found.double(), right, rtol=1e-5, atol=1e-6)


def narrow_beside_wide(features: int, at: str = "dst") -> EdgeFunction:
    """Results of one lane beside wide ones: what every tile of a row reads, only one may write."""
    make = Builder(torch.float64)
    score, value, weight = make.input("src", ()), make.input("src", (features,)), make.input("edge", ())
    narrow = [("sum", weight), ("total", weight), ("max", weight), ("softmax", weight, score)]
    return make.function(("softmax", score, value), *narrow, at=at)


@pytest.mark.parametrize("dialect", RUNS)
@pytest.mark.parametrize("at", ["dst", "src"])
def test_tiles_of_features_share_what_has_one_lane(dialect: str, at: str) -> None:
    # A tile is 128 features at most.
    name, cut = ("isolated vertices", "2 runs") if dialect == "gpu" else ("skewed", "2 x 2")
    assert_equals_whole(dialect, narrow_beside_wide(300, at), WHOLE["multi-edges"], "3 runs", rtol=1e-10)
    assert_equals_whole(dialect, narrow_beside_wide(300, at), WHOLE[name], cut, rtol=1e-10)


@pytest.mark.parametrize("at", ["dst", "src"])
@pytest.mark.parametrize("cut", ["2 x 2", "3 runs"])
def test_rows_cut_into_several_items(at: str, cut: str) -> None:
    # As few edges as leave rows of some chunk to be cut.
    topology = by_source(cases.hub(12_000))
    chunks = CUTS[cut](topology)
    assert any(len(divide(grouped(chunk.topology, at).indptr.numpy(), HOST_GRAIN).split_rows) for chunk in chunks)
    assert_equals_whole("cpu", cases.all_reductions(at), topology, cut, rtol=1e-10)
    assert_equals_whole("cpu", narrow_beside_wide(300, at), topology, cut, rtol=1e-10)


@pytest.mark.parametrize("at", ["dst", "src"])
def test_rows_cut_into_several_items_on_a_device(at: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton", reason=NO_TRITON)
    # In the middle and with small items, so that few edges suffice for its row to be cut in both runs.
    grain = replace(DEVICE_GRAIN, smallest=8)
    monkeypatch.setattr("sagann.kernels.edge.gpu.cut.DEVICE_GRAIN", grain)
    topology = by_source(cases.hub(40, vertex=25))
    for run in runs(topology, 2):
        assert divide(grouped(run.topology, at).indptr.numpy(), grain).split_rows.tolist() == [25]
    assert_equals_whole("gpu", cases.all_reductions(at), topology, "2 runs", rtol=1e-10)


def test_totals_and_edges_beside_a_row_that_is_cut_on_a_device() -> None:
    """The row's number is beyond the edges and beyond a total's only row."""
    gpu = pytest.importorskip("sagann.kernels.edge.gpu", reason=NO_TRITON)
    function = cases.all_reductions("dst")
    topology = Topology.from_coo(src=torch.arange(200), dst=torch.full((200,), 450), num_src=500)
    arrays = arrays_of(function, topology)
    found = []
    for run in (gpu.run, naive.run):
        state = GatherState(function, num_rows=500, num_edges=400, device="cpu")
        state.accumulate(run, topology, arrays, edge_offset=200)
        found.append(state.finish())
    cases.assert_close(*found, rtol=1e-10)


def scored(topology: Topology, scores: list[float], values: list[float]) -> dict[str, Tensor]:
    """Edge inputs, the numbers repeated over the edges at random."""
    generator = torch.Generator().manual_seed(0)

    def pick(numbers: list[float]) -> Tensor:
        at = torch.randint(len(numbers), (topology.num_edges,), generator=generator)
        return torch.tensor(numbers, dtype=torch.float64)[at]

    return {"edge0": pick(scores), "edge1": torch.stack([pick(values)] * 3, 1)}


def edge_reductions(at: str) -> EdgeFunction:
    make = Builder(torch.float64)
    score, value = make.input("edge", ()), make.input("edge", (3,))
    return make.function(("softmax", score, value), ("max", value), ("min", value), ("sum", value), at=at)


SCORES_AND_VALUES = [
    ([-torch.inf], [1.0, 2.0]),
    ([-torch.inf, -torch.inf, -torch.inf, 1.0], [1.0, 2.0]),
    ([0.0, 300.0, -300.0], [1.0, torch.inf, -torch.inf]),
    ([0.0, torch.nan, 1.0, 2.0], [1.0, torch.nan, 2.0, 3.0, 2.0]),
    ([1.0], [-torch.inf, -torch.inf, torch.inf]),
    ([0.0, torch.inf], [0.0, -0.0]),
]


# Every two of cut, end and numbers meet, not every three.
@pytest.mark.parametrize("dialect", RUNS)
@pytest.mark.parametrize(
    ("cut", "at", "numbers"),
    [
        (["2 x 2", "3 runs"][(place + side) % 2], at, numbers)
        for (place, numbers), (side, at) in product(enumerate(SCORES_AND_VALUES), enumerate(["dst", "src"]))
    ],
    ids=str,
)
def test_nan_infinity_and_ties(dialect: str, cut: str, at: str, numbers: tuple[list[float], list[float]]) -> None:
    # Of a hub's graph all other vertices are isolated.
    for name in ("multi-edges", "one hub") if dialect == "gpu" else ("isolated vertices", "multi-edges", "skewed"):
        topology = whole(dialect, name)
        arrays = scored(topology, *numbers)
        assert_equals_whole(dialect, edge_reductions(at), topology, cut, 1e-10, arrays=arrays)


@pytest.mark.parametrize("numbers", SCORES_AND_VALUES, ids=str)
def test_nan_infinity_and_ties_in_rows_cut_into_several_items(numbers: tuple[list[float], list[float]]) -> None:
    topology = by_source(cases.hub(12_000))
    arrays = scored(topology, *numbers)
    assert_equals_whole("cpu", edge_reductions("dst"), topology, "3 runs", 1e-10, arrays=arrays)


@pytest.mark.parametrize("at", ["dst", "src"])
@pytest.mark.parametrize("dialect", RUNS)
def test_random_values_and_ids_go_on_with_the_offset(dialect: str, at: str) -> None:
    make = Builder(torch.float64)
    value = make.op("mul", make.input("src", (5,)), make.op("random", shape=(5,), p=0.4, salt=2))
    number = make.op("cast", make.op("edge_id", dtype=torch.int64))
    function = make.function(("sum", value), ("edge", value), ("sum", number), ("max", value), at=at)
    assert_equals_whole(dialect, function, whole(dialect, "skewed"), "3 runs", rtol=1e-10)


def largest_gated() -> EdgeFunction:
    function = gated(5, torch.float64)
    return replace(function, outputs=(replace(function.outputs[0], reduce="max"),))


@pytest.mark.parametrize("dialect", RUNS)
@pytest.mark.parametrize(
    ("function", "cut"),
    [
        (gated(5, torch.float64), "2 x 7"),
        (attention(2, 3, torch.float64), "3 x 3"),
        # The argument of an extremum is an id, and a grid's are not those of the whole.
        (largest_gated(), "3 runs"),
    ],
    ids=["sum", "softmax", "max"],
)
def test_forward_and_backward_are_those_of_the_whole(dialect: str, function: EdgeFunction, cut: str) -> None:
    topology = WHOLE["multi-edges" if dialect == "gpu" else "skewed"]
    run, device, chunks = RUNS[dialect], DEVICES.get(dialect, "cpu"), CUTS[cut](topology)
    leaves = {name: array.requires_grad_() for name, array in arrays_of(function, topology).items()}
    expected = naive.run(function, topology, leaves)[0]
    upstream = torch.randn(expected.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    wanted = dict(zip(leaves, torch.autograd.grad(expected, list(leaves.values()), upstream), strict=True))

    arrays = {name: array.detach() for name, array in leaves.items()}
    result, *rest = gather(run, function, topology, chunks, arrays, device=device)
    reduce = function.outputs[0].reduce
    incoming = gathering(reduce).arrive(function, upstream, rest, result, torch.ones_like)
    found: dict[str, Tensor] = {}
    for step in backward_passes(function, tuple(leaves)):
        gradients = gather(run, step.function, topology, chunks, arrays | incoming, device=device)
        found |= dict(zip(step.results, gradients, strict=True))
    assert found.keys() == wanted.keys()
    for name, gradient in wanted.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("at", ["dst", "src"])
@pytest.mark.parametrize("dialect", RUNS)
def test_ids_beyond_32_bits(dialect: str, at: str) -> None:
    make = Builder(torch.float64)
    function = make.function(("max", make.input("edge", (3,))), at=at)
    topology, offset = WHOLE["skewed"], 5_000_000_000
    arrays = arrays_of(function, topology)
    device = DEVICES.get(dialect, "cpu")
    state = GatherState(function, num_rows=topology.num_src, num_edges=offset + 1000, device=device)
    moved = {name: array.to(device) for name, array in arrays.items()}
    state.accumulate(RUNS[dialect], topology.to(device), moved, edge_offset=offset)
    _, edge = state.finish()
    _, expected = naive.run(function, topology, arrays)
    assert edge.dtype == torch.int64
    assert torch.equal(edge.cpu(), torch.where(expected < 0, -1, expected.long() + offset))


def test_a_state_without_chunks_is_what_a_graph_without_edges_gives() -> None:
    function, topology = cases.all_reductions("dst"), TOPOLOGIES["no edges"]
    state = GatherState(function, num_rows=4, num_edges=0, device="cpu")
    expected = naive.run(function, topology, arrays_of(function, topology))
    # All but the rows of edges.
    cases.assert_close(state.finish(), (*expected[:2], *expected[3:]), 0.0)
