"""Kernels that dialects generate against their twin in plain PyTorch. Triton's run on a CUDA device, else in its interpreter."""

from __future__ import annotations

import importlib
import os
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
from tests.graphs import random_topology
from tests.kernels.edge import cases
from tests.kernels.edge.functions import Builder, arrays_of, functions, gated


def times_by_file(folder: Path) -> dict[Path, int]:
    """When each file below a folder was written, in nanoseconds."""
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}


INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
# The interpreter takes milliseconds for an edge.
TOPOLOGIES = cases.TOPOLOGIES | ({"skewed": random_topology(29, 131)} if INTERPRETED else {})
# The interpreter computes with NumPy, which warns of what floating point allows.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning:triton")


class Dialect(NamedTuple):
    """A dialect, where it computes, and edges of a hub that are cut into many items."""

    name: str
    run: cases.Run
    device: str
    topologies: dict[str, Topology]
    hub_edges: int

    def assert_equals_naive(self, function: EdgeFunction, topology: Topology, rtol: float) -> None:
        cases.assert_equals_naive(self.run, function, topology, rtol, device=self.device)

    def on(self, function: EdgeFunction, topology: Topology, arrays: dict[str, Tensor]) -> tuple[Tensor, ...]:
        moved = {name: array.to(self.device) for name, array in arrays.items()}
        return self.run(function, topology.to(self.device), moved)


@pytest.fixture(params=["cpu", pytest.param("gpu", marks=[] if INTERPRETED else [pytest.mark.gpu])])
def dialect(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Dialect:
    if request.param == "gpu":
        pytest.importorskip("triton", reason="triton is not installed: pip install sagann[cuda]")
        cut = importlib.import_module("sagann.kernels.edge.gpu.cut")
        if INTERPRETED:
            # Items of fewer edges, so that few edges are cut into many items, of which three are merged at a time.
            monkeypatch.setattr(cut, "DEVICE_GRAIN", replace(DEVICE_GRAIN, smallest=8))
            monkeypatch.setattr(cut, "FAN_IN", 3)
    run = importlib.import_module(f"sagann.kernels.edge.{request.param}").run
    if request.param == "cpu":
        return Dialect("cpu", run, "cpu", cases.TOPOLOGIES, 9000)
    # Enough for two levels of merges.
    return Dialect("gpu", run, *(("cpu", TOPOLOGIES, 40) if INTERPRETED else ("cuda", TOPOLOGIES, 4500)))


@pytest.mark.parametrize(
    ("function", "name"),
    [*((function, "skewed") for function in cases.KNOWN), *(("gated", name) for name in TOPOLOGIES)],
)
def test_odd_topologies(dialect: Dialect, function: str, name: str) -> None:
    dialect.assert_equals_naive(cases.KNOWN[function], dialect.topologies[name], rtol=1e-5)


@pytest.mark.parametrize("name", cases.MOVED)
def test_lanes_that_move_though_all_values_are_as_wide(dialect: Dialect, name: str) -> None:
    dialect.assert_equals_naive(cases.MOVED[name], dialect.topologies["skewed"], rtol=1e-11)


def test_random_functions(dialect: Dialect) -> None:
    # Each example compiles kernels for the processor.
    @settings(max_examples=settings.default.max_examples // (2 if dialect.device == "cpu" else 1))
    @given(function=functions(), name=st.sampled_from(sorted(TOPOLOGIES)))
    def check(function: EdgeFunction, name: str) -> None:
        dialect.assert_equals_naive(function, dialect.topologies[name], rtol=1e-11)

    check()


def test_rows_that_no_edge_reaches_are_not_read(dialect: Dialect) -> None:
    cases.assert_reads_no_row_without_edges(dialect.run, dialect.device)


@pytest.mark.parametrize("at", ["dst", "src"])
def test_rows_cut_into_several_items(dialect: Dialect, at: str) -> None:
    dialect.assert_equals_naive(cases.all_reductions(at), cases.hub(dialect.hub_edges), rtol=1e-11)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_accumulated_in_float32(dialect: Dialect, dtype: torch.dtype) -> None:
    dialect.assert_equals_naive(gated(41, dtype), dialect.topologies["skewed"], rtol=1e-5)


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
    function, topology, arrays = cases.nan_and_infinity()
    expected = naive.run(function, topology, arrays)
    for a, b in zip(dialect.on(function, topology, dict(arrays)), expected, strict=True):
        torch.testing.assert_close(a.cpu(), b, rtol=1e-14, atol=1e-300, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_functions_over_their_whole_range(dialect: Dialect, dtype: torch.dtype) -> None:
    cases.assert_exact_over_the_whole_range(dialect.run, dtype, dialect.device)


def test_a_piece_of_a_cut_row_that_weighs_nothing(dialect: Dialect) -> None:
    make = Builder(torch.float64)
    score, value = make.input("edge", ()), make.input("edge", (3,))
    function = make.function(("softmax", score, value))
    size = 2 * dialect.hub_edges
    topology = Topology.from_coo(src=torch.arange(size), dst=torch.zeros(size, dtype=torch.int64), num_src=size)
    arrays = arrays_of(function, topology)
    # Items that weigh nothing, and one a part of which does.
    arrays[score][: 9 * size // 20] = -torch.inf
    cases.assert_close(dialect.on(function, topology, arrays), naive.run(function, topology, arrays), rtol=1e-11)


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
