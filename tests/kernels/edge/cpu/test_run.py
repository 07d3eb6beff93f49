"""The generated CPU kernels against their twin in plain PyTorch."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings, strategies as st

from sagann.graph import Topology
from sagann.kernels.edge import cpu, naive
from sagann.kernels.edge.canonical import renamed
from sagann.kernels.edge.cpu.launch import loaded
from sagann.kernels.edge.function import EdgeFunction
from tests.kernels.edge import cases
from tests.kernels.edge.cases import KNOWN, MOVED, TOPOLOGIES
from tests.kernels.edge.functions import Builder, arrays_of, functions, gated
from tests.kernels.files import times_by_file


def assert_equals_naive(function: EdgeFunction, topology: Topology, rtol: float) -> None:
    cases.assert_equals_naive(cpu.run, function, topology, rtol)


def test_rows_that_no_edge_reaches_are_not_read() -> None:
    cases.assert_reads_no_row_without_edges(cpu.run)


@pytest.mark.parametrize("name", TOPOLOGIES)
@pytest.mark.parametrize("function", KNOWN)
def test_odd_topologies(name: str, function: str) -> None:
    assert_equals_naive(KNOWN[function], TOPOLOGIES[name], rtol=1e-5)


@pytest.mark.parametrize("name", MOVED)
def test_lanes_that_move_though_all_values_are_as_wide(name: str) -> None:
    assert_equals_naive(MOVED[name], TOPOLOGIES["skewed"], rtol=1e-11)


@settings(max_examples=12, deadline=None)
@given(function=functions(), name=st.sampled_from(sorted(TOPOLOGIES)))
def test_random_functions(function: EdgeFunction, name: str) -> None:
    assert_equals_naive(function, TOPOLOGIES[name], rtol=1e-11)


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [
        ((8, 16), torch.float32),
        ((3, 32), torch.float64),
        ((5, 2), torch.float32),
        ((5, 2), torch.float64),
        ((2, 4), torch.float64),
        ((17, 8), torch.float32),
        ((2, 6), torch.float32),
        ((2, 6), torch.float64),
        ((3, 1), torch.float64),
    ],
    ids=str,
)
def test_reductions_within_heads(shape: tuple[int, int], dtype: torch.dtype) -> None:
    make = Builder(dtype)
    product = make.op("mul", make.input("src", shape), make.input("dst", shape))
    reduced = [make.op(name, product, dims=(1,)) for name in ("sum", "amax", "amin")]
    tolerance = 1e-5 if dtype == torch.float32 else 1e-11
    assert_equals_naive(make.function(*(("sum", name) for name in reduced)), TOPOLOGIES["skewed"], tolerance)


@pytest.mark.parametrize("at", ["dst", "src"])
def test_rows_cut_into_several_items(at: str) -> None:
    assert_equals_naive(cases.all_reductions(at), cases.hub(9000), rtol=1e-11)


@pytest.mark.parametrize("num_edges", [1, 500, 900])
def test_few_edges_are_added_up_one_after_the_other(num_edges: int) -> None:
    make = Builder(torch.float32)
    function = make.function(("sum", make.input("src", (3,))))
    (x,) = arrays_of(function, topology := cases.hub(num_edges, vertex=0)).values()
    (found,) = cpu.run(function, topology, {"src0": x})
    rows = x[topology.indices[: topology.indptr[1]].long()]
    assert torch.equal(found[0], torch.from_numpy(rows.numpy().cumsum(0)[-1]))


@pytest.mark.parametrize("at", ["dst", "src"])
def test_bitwise_the_same_for_any_number_of_threads(at: str) -> None:
    function, topology = cases.all_reductions(at), cases.hub(9000)
    arrays = arrays_of(function, topology)
    results = []
    before = torch.get_num_threads()
    for threads in (1, 2, 5):
        torch.set_num_threads(threads)
        results.append(cpu.run(function, topology, arrays))
    torch.set_num_threads(before)
    for others in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], others, strict=True))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_accumulated_in_float32(dtype: torch.dtype) -> None:
    assert_equals_naive(gated(41, dtype), TOPOLOGIES["skewed"], rtol=1e-5)


@pytest.mark.parametrize("index_dtype", [torch.int32, torch.int64])
def test_both_widths_of_ids(index_dtype: torch.dtype) -> None:
    skewed = TOPOLOGIES["skewed"]
    topology = Topology(indptr=skewed.indptr, indices=skewed.indices.to(index_dtype), num_src=skewed.num_src)
    assert_equals_naive(gated(41), topology, rtol=1e-5)


def test_the_own_edge_data_is_reordered_once_and_again_when_it_changes() -> None:
    make = Builder(torch.float32)
    weight, dst = make.input("edge", ()), make.input("dst", (3,))
    function = make.function(("sum", make.op("mul", dst, weight)), at="src")
    skewed = TOPOLOGIES["skewed"]
    data = torch.rand(skewed.num_edges)
    topology = skewed.with_edge_data(weight=data)
    arrays = arrays_of(function, topology) | {weight: topology.edge_data["weight"]}
    for _ in range(2):
        (actual,), (expected,) = cpu.run(function, topology, arrays), naive.run(function, topology, arrays)
        torch.testing.assert_close(actual, expected)
        data.mul_(2)


@pytest.mark.parametrize("num_features", [1, 7])
def test_rows_negated_by_a_bit(num_features: int) -> None:
    function = gated(num_features)
    topology = TOPOLOGIES["skewed"]
    arrays = {
        name: torch.complex(rows, rows).conj().imag if rows.ndim == 2 else torch._neg_view(rows)
        for name, rows in arrays_of(function, topology).items()
    }
    assert all(rows.is_neg() for rows in arrays.values())
    cases.assert_close(cpu.run(function, topology, arrays), naive.run(function, topology, arrays), rtol=1e-5)


def test_nan_and_infinity_propagate() -> None:
    function, topology, arrays = cases.nan_and_infinity()
    for a, b in zip(cpu.run(function, topology, arrays), naive.run(function, topology, arrays), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-14, atol=1e-300, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_functions_over_their_whole_range(dtype: torch.dtype) -> None:
    cases.assert_exact_over_the_whole_range(cpu.run, dtype)


def test_kernels_are_kept_on_disk_and_found_again(tmp_path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setenv("SAGANN_CACHE", str(tmp_path))
    loaded.cache_clear()
    assert_equals_naive(gated(17), TOPOLOGIES["skewed"], rtol=1e-5)
    files = times_by_file(tmp_path)
    assert {path.suffix for path in files} == {".py", ".nbc", ".nbi", ".lock"}
    # As in a process that has not loaded them.
    loaded.cache_clear()
    assert_equals_naive(gated(17), TOPOLOGIES["skewed"], rtol=1e-5)
    assert times_by_file(tmp_path) == files


def test_functions_that_differ_in_names_alone_share_a_kernel(tmp_path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setenv("SAGANN_CACHE", str(tmp_path))
    loaded.cache_clear()
    function = gated(17)
    assert_equals_naive(function, TOPOLOGIES["skewed"], rtol=1e-5)
    files = times_by_file(tmp_path)
    loaded.cache_clear()
    assert_equals_naive(
        renamed(function, {value.name: f"my_{value.name}" for value in function.values}),
        TOPOLOGIES["skewed"],
        rtol=1e-5,
    )
    assert times_by_file(tmp_path) == files


@pytest.mark.parametrize("continued", [False, True])
def test_parameters_named_like_variables_of_a_kernel_ask_for_nothing(*, continued: bool) -> None:
    by_source, by_destination = (
        cpu.source_of(cases.named_like_variables(at), continued=continued) for at in ("src", "dst")
    )
    assert "v_parameter_edge_id" in by_source
    assert "id_of_edge(p_edge_ids" not in by_source
    assert " other = " in by_source
    assert " other = " not in by_destination


def test_a_piece_of_a_cut_row_that_weighs_nothing() -> None:
    make = Builder(torch.float64)
    score, value = make.input("edge", ()), make.input("src", (3,))
    function = make.function(("softmax", score, value))
    topology = Topology.from_coo(
        src=torch.arange(20_000) % 50, dst=torch.zeros(20_000, dtype=torch.int64), num_src=50
    )
    arrays = arrays_of(function, topology)
    arrays[score][:9000] = -torch.inf
    for found, expected in zip(
        cpu.run(function, topology, arrays), naive.run(function, topology, arrays), strict=True
    ):
        torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-11)
