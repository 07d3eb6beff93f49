"""Kernels that dialects generate against their twin in plain PyTorch. Triton's run on a CUDA device, else in its interpreter."""

from __future__ import annotations

import importlib
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor

from sagann.graph import Topology
from sagann.kernels.edge import naive
from sagann.kernels.edge.cpu.launch import loaded
from sagann.kernels.edge.function import EdgeFunction
from sagann.kernels.edge.source import renamed
from sagann.kernels.edge.work import DEVICE_GRAIN
from tests.cuda import INTERPRETED, NO_TRITON
from tests.kernels.edge import cases
from tests.kernels.edge.functions import Builder, arrays_of, functions, gated


def times_by_file(folder: Path) -> dict[Path, int]:
    """When each file below a folder was written, in nanoseconds."""
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}


# The interpreter computes with NumPy, which warns of what floating point allows.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning:triton")


class Dialect(NamedTuple):
    """A dialect, where it computes, and edges of a hub that are cut into many items."""

    name: str
    run: cases.Run
    device: str
    topologies: dict[str, Topology]
    hub_edges: int

    def assert_equals_naive(
        self, function: EdgeFunction, topology: Topology, rtol: float, arrays: dict[str, Tensor] | None = None
    ) -> None:
        cases.assert_equals_naive(self.run, function, topology, rtol, arrays=arrays, device=self.device)


@pytest.fixture(params=["cpu", pytest.param("gpu", marks=[] if INTERPRETED else [pytest.mark.gpu])])
def dialect(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Dialect:
    if request.param == "gpu":
        pytest.importorskip("triton", reason=NO_TRITON)
        cut = importlib.import_module("sagann.kernels.edge.gpu.cut")
        if INTERPRETED:
            # Items of fewer edges, so that few edges are cut into many items, of which three are merged at a time.
            monkeypatch.setattr(cut, "DEVICE_GRAIN", replace(DEVICE_GRAIN, smallest=8))
            monkeypatch.setattr(cut, "FAN_IN", 3)
    run = importlib.import_module(f"sagann.kernels.edge.{request.param}").run
    if request.param == "cpu":
        return Dialect("cpu", run, "cpu", cases.TOPOLOGIES, 9000)
    # Enough for two levels of merges.
    return Dialect("gpu", run, *(("cpu", cases.ON_DEVICE, 40) if INTERPRETED else ("cuda", cases.ON_DEVICE, 4500)))


@pytest.mark.parametrize(
    ("function", "name"),
    [*((function, "skewed") for function in cases.KNOWN), *(("gated", name) for name in cases.TOPOLOGIES)],
)
def test_odd_topologies(dialect: Dialect, function: str, name: str) -> None:
    dialect.assert_equals_naive(cases.KNOWN[function], dialect.topologies[name], rtol=1e-5)


@pytest.mark.parametrize("name", cases.MOVED)
def test_lanes_that_move_though_all_values_are_as_wide(dialect: Dialect, name: str) -> None:
    dialect.assert_equals_naive(cases.MOVED[name], dialect.topologies["skewed"], rtol=1e-11)


def test_random_functions(dialect: Dialect) -> None:
    # Each example compiles kernels for the processor.
    @settings(max_examples=settings.default.max_examples // (2 if dialect.device == "cpu" else 1))
    @given(function=functions(), name=st.sampled_from(sorted(cases.TOPOLOGIES)))
    def check(function: EdgeFunction, name: str) -> None:
        dialect.assert_equals_naive(function, dialect.topologies[name], rtol=1e-11)

    check()


def test_rows_that_no_edge_reaches_are_not_read(dialect: Dialect) -> None:
    """An array has rows for the first vertices alone; what lies beyond it is nobody's memory.

    Its stride says that rows are 4 MiB apart, so that reading one that is not there ends the process.
    """
    make = Builder(torch.float32)
    x, grad = make.input("src", (16,)), make.input("dst", (16,))
    function = make.function(("sum", make.op("where", make.op("gt", x, 0.0), grad, 0.0)), at="src")
    topology = Topology.from_coo(src=torch.tensor([0]), dst=torch.tensor([0]), num_src=1000, num_dst=1)
    rows = torch.ones(1, 16, device=dialect.device).as_strided((1, 16), (1 << 20, 1))
    arrays = {x: rows, grad: torch.full((1, 16), 3.0, device=dialect.device)}
    (found,) = dialect.run(function, topology.to(dialect.device), arrays)
    assert found[0].tolist() == [3] * 16
    assert not found[1:].any()


@pytest.mark.parametrize("at", ["dst", "src"])
def test_rows_cut_into_several_items(dialect: Dialect, at: str) -> None:
    dialect.assert_equals_naive(cases.all_reductions(at), cases.hub(dialect.hub_edges), rtol=1e-11)


def test_ids_of_64_bits(dialect: Dialect) -> None:
    narrow = dialect.topologies["skewed"]
    wide = Topology(indptr=narrow.indptr, indices=narrow.indices.long(), num_src=narrow.num_src)
    dialect.assert_equals_naive(gated(41), wide, rtol=1e-5)


def test_the_own_edge_data_is_reordered_once_and_again_when_it_changes(dialect: Dialect) -> None:
    make = Builder(torch.float32)
    weight, dst = make.input("edge", ()), make.input("dst", (3,))
    function = make.function(("sum", make.op("mul", dst, weight)), at="src")
    skewed = dialect.topologies["skewed"]
    topology = skewed.with_edge_data(weight=torch.rand(skewed.num_edges)).to(dialect.device)
    data = topology.edge_data["weight"]
    arrays = {name: array.to(dialect.device) for name, array in arrays_of(function, topology).items()}
    arrays[weight] = data
    for _ in range(2):
        expected = tuple(result.cpu() for result in naive.run(function, topology, arrays))
        cases.assert_close(dialect.run(function, topology, arrays), expected, rtol=1e-5)
        data.mul_(2)


def test_nan_and_infinity_propagate(dialect: Dialect) -> None:
    make = Builder(torch.float64)
    value = make.input("src", (3,))
    grown = [make.op(name, value) for name in ("exp", "expm1", "sigmoid", "tanh")]
    function = make.function(*(("edge", name) for name in grown), ("max", value), ("min", value), ("sum", value))
    x = torch.tensor([[float("nan"), 1.0, float("inf")], [-float("inf"), 800.0, 2.0], [0.0, -800.0, -0.5]]).double()
    topology = cases.TOPOLOGIES["self-loops"]
    expected = naive.run(function, topology, {value: x})
    actual = dialect.run(function, topology.to(dialect.device), {value: x.to(dialect.device)})
    for a, b in zip(actual, expected, strict=True):
        torch.testing.assert_close(a.cpu(), b, rtol=1e-14, atol=1e-300, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_functions_over_their_whole_range(dialect: Dialect, dtype: torch.dtype) -> None:
    """exp, expm1, sigmoid and tanh to 4 units in the last place, near 0 and far from it."""
    make = Builder(dtype)
    value = make.input("src", (1000,))
    names = ["exp", "expm1", "sigmoid", "tanh"]
    function = make.function(*(("sum", make.op(name, value)) for name in names))
    topology = Topology.from_coo(src=torch.tensor([0]), dst=torch.tensor([0]), num_src=1).to(dialect.device)
    scale = {torch.float32: 80.0, torch.float64: 700.0}[dtype]
    spaced = torch.linspace(-1, 1, 1000, dtype=torch.float64) ** 5
    for x in (spaced * scale, spaced * 1e-3):
        results = dialect.run(function, topology, {value: x.to(dtype).unsqueeze(0).to(dialect.device)})
        for name, result in zip(names, results, strict=True):
            exact = getattr(torch, name)(x.to(dtype).double())
            error = ((result[0].double().cpu() - exact) / exact.abs().clamp(min=1e-30)).abs().max()
            assert error < 4 * torch.finfo(dtype).eps, name


def test_integer_and_mask_data(dialect: Dialect) -> None:
    make = Builder(torch.float32)
    kind, chosen = make.input("edge", (), torch.int64), make.input("edge", (3,), torch.bool)
    x = make.input("src", (3,))
    scaled = make.op("mul", x, make.op("cast", kind, dtype=torch.float32))
    either = make.op("or", make.op("eq", kind, 1), make.op("not", chosen))
    function = make.function(("sum", make.op("where", either, scaled, -1.0)), ("max", scaled))
    topology = dialect.topologies["skewed"]
    arrays = arrays_of(function, topology)
    # An array may have another integer type than the input says.
    dialect.assert_equals_naive(function, topology, 1e-5, arrays | {kind: arrays[kind].int()})


def test_numbers_of_float64_are_compared_in_float64(dialect: Dialect) -> None:
    make = Builder(torch.float64)
    x = make.input("src", (3,))
    results = [
        make.op("where", make.op(comparison, *operands), x, -1.0)
        for comparison in ("lt", "le", "gt", "ge", "eq", "ne")
        for operands in ((x, 0.1), (0.1, x), (x, 1e300))
    ]
    function = make.function(*(("edge", result) for result in results))
    # The nearest number of float32 lies between the second and the third.
    row = torch.tensor([0.1 - 1e-12, 0.1, 0.1 + 1e-8], dtype=torch.float64)
    dialect.assert_equals_naive(function, cases.TOPOLOGIES["self-loops"], 0.0, {x: row.repeat(3, 1)})


def test_powers(dialect: Dialect) -> None:
    make = Builder(torch.float64)
    base = make.input("src", (7,))
    exponents = (2, 3, 0.5, -1, 2.5, -2, 0, 1, base)
    function = make.function(*(("edge", make.op("pow", base, exponent)) for exponent in exponents))
    x = torch.tensor([-2.0, -1.0, -0.5, 0.0, 1.0, 3.0, float("inf")], dtype=torch.float64).repeat(3, 1)
    dialect.assert_equals_naive(function, cases.TOPOLOGIES["self-loops"], 1e-12, {base: x})


def test_a_piece_of_a_cut_row_that_weighs_nothing(dialect: Dialect) -> None:
    make = Builder(torch.float64)
    score, value = make.input("edge", ()), make.input("edge", (3,))
    function = make.function(("softmax", score, value))
    size = 2 * dialect.hub_edges
    topology = Topology.from_coo(src=torch.arange(size), dst=torch.zeros(size, dtype=torch.int64), num_src=size)
    arrays = arrays_of(function, topology)
    # Items that weigh nothing, and one a part of which does.
    arrays[score][: 9 * size // 20] = -torch.inf
    dialect.assert_equals_naive(function, topology, 1e-11, arrays)


@pytest.fixture
def kept_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A cache of its own: forgets what this process has loaded, and gives the files that are kept."""
    monkeypatch.setenv("SAGANN_CACHE", str(tmp_path))
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))

    def files() -> dict[Path, int]:
        loaded.cache_clear()
        return times_by_file(tmp_path)

    files()
    return files


def test_kernels_are_kept_on_disk_and_found_again_under_any_names(dialect: Dialect, kept_files: Any) -> None:
    function = gated(17)
    other = renamed(function, {value.name: f"my_{value.name}" for value in function.values})
    check = partial(dialect.assert_equals_naive, topology=dialect.topologies["multi-edges"], rtol=1e-5)
    check(function)
    files = kept_files()
    # The interpreter compiles nothing.
    kinds = {path.suffix for path in files}
    if dialect.name == "cpu":
        assert kinds == {".py", ".nbc", ".nbi", ".lock"}
    assert kinds >= ({".py"} if INTERPRETED or dialect.name == "cpu" else {".py", ".cubin"})
    for each in (function, other):
        check(each)
        assert kept_files() == files
