"""The generated Triton kernels against their twin in plain PyTorch: on a CUDA device, else in Triton's interpreter."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings, strategies as st

pytest.importorskip("triton", reason="triton is not installed: pip install sagann[cuda]")

from sagann.graph import Topology
from sagann.kernels.edge import gpu, naive
from sagann.kernels.edge.function import EdgeFunction
from sagann.kernels.edge.gpu import cut
from sagann.kernels.edge.gpu.emit import emit
from sagann.kernels.edge.work import DEVICE_GRAIN
from tests.cuda import waits_refused
from tests.graphs import random_topology
from tests.kernels.edge import cases
from tests.kernels.edge.cases import KNOWN, MOVED
from tests.kernels.edge.functions import Builder, arrays_of, functions, gated
from tests.kernels.files import times_by_file

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cpu" if INTERPRETED else "cuda"
# The interpreter takes milliseconds for an edge.
TOPOLOGIES = cases.TOPOLOGIES | ({"skewed": random_topology(29, 131)} if INTERPRETED else {})
GRAIN = replace(DEVICE_GRAIN, smallest=8) if INTERPRETED else DEVICE_GRAIN
"Items of fewer edges, so that few edges are cut into many items."
pytestmark = [
    # The interpreter computes with NumPy, which warns of what floating point allows.
    pytest.mark.filterwarnings("ignore::RuntimeWarning:triton"),
    *([] if INTERPRETED else [pytest.mark.gpu]),
]


@pytest.fixture(autouse=True)
def small_items(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cut, "DEVICE_GRAIN", GRAIN)


def assert_equals_naive(function: EdgeFunction, topology: Topology, rtol: float) -> None:
    cases.assert_equals_naive(gpu.run, function, topology, rtol, device=DEVICE)


@pytest.mark.parametrize("name", TOPOLOGIES)
@pytest.mark.parametrize("function", KNOWN)
def test_odd_topologies(name: str, function: str) -> None:
    assert_equals_naive(KNOWN[function], TOPOLOGIES[name], rtol=1e-5)


@pytest.mark.parametrize("name", MOVED)
def test_lanes_that_move_though_all_values_are_as_wide(name: str) -> None:
    assert_equals_naive(MOVED[name], TOPOLOGIES["skewed"], rtol=1e-11)


@pytest.mark.parametrize("features", [1, 128, 150, 300])
def test_tiles_of_features(features: int) -> None:
    assert_equals_naive(gated(features), TOPOLOGIES["one hub"], rtol=1e-5)


@settings(max_examples=12 if INTERPRETED else 60, deadline=None)
@given(function=functions(), name=st.sampled_from(sorted(TOPOLOGIES)))
def test_random_functions(function: EdgeFunction, name: str) -> None:
    assert_equals_naive(function, TOPOLOGIES[name], rtol=1e-11)


def test_rows_that_no_edge_reaches_are_not_read() -> None:
    cases.assert_reads_no_row_without_edges(gpu.run, DEVICE)


@pytest.mark.parametrize("at", ["dst", "src"])
def test_rows_cut_into_several_items(at: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Enough for two levels of merges. The interpreter merges 5 items, 3 of them at a time.
    fan_in, num_edges = (3, 40) if INTERPRETED else (cut.FAN_IN, 4500)
    assert num_edges > fan_in * GRAIN.smallest
    monkeypatch.setattr(cut, "FAN_IN", fan_in)
    assert_equals_naive(cases.all_reductions(at), cases.hub(num_edges), rtol=1e-11)


@pytest.mark.parametrize("name", ["isolated vertices", "one hub", "skewed"])
@pytest.mark.parametrize("at", ["dst", "src"])
def test_every_number_is_written(name: str, at: str) -> None:
    assert torch.empty(1).isnan()
    assert_equals_naive(cases.all_reductions(at), TOPOLOGIES[name], rtol=1e-11)


def test_a_cut_row_part_of_which_weighs_nothing() -> None:
    make = Builder(torch.float64)
    score, value = make.input("edge", ()), make.input("edge", (3,))
    function = make.function(("softmax", score, value))
    size = 8 * GRAIN.smallest
    topology = Topology.from_coo(src=torch.arange(size), dst=torch.zeros(size, dtype=torch.int64), num_src=size)
    arrays = arrays_of(function, topology)
    # Items that weigh nothing, and one a part of which does.
    arrays[score][: 5 * GRAIN.smallest // 2] = -float("inf")
    expected = naive.run(function, topology, arrays)
    arrays = {name: array.to(DEVICE) for name, array in arrays.items()}
    cases.assert_close(gpu.run(function, topology.to(DEVICE), arrays), expected, rtol=1e-11)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_accumulated_in_float32(dtype: torch.dtype) -> None:
    assert_equals_naive(gated(41, dtype), TOPOLOGIES["skewed"], rtol=1e-5)


@pytest.mark.parametrize("index_dtype", [torch.int32, torch.int64])
def test_both_widths_of_ids(index_dtype: torch.dtype) -> None:
    skewed = TOPOLOGIES["skewed"]
    topology = Topology(indptr=skewed.indptr, indices=skewed.indices.to(index_dtype), num_src=skewed.num_src)
    assert_equals_naive(gated(41), topology, rtol=1e-5)


@pytest.mark.parametrize(
    ("seed", "shape"),
    [(0, ()), (1, ()), (2**31, ()), (2**32 - 1, ()), (0, (150,)), (2**32 - 1, (3, 5))],
    ids=str,
)
def test_random_values_are_bitwise_the_twin_s(seed: int, shape: tuple[int, ...]) -> None:
    make = Builder(torch.float32)
    x = make.input("dst", (3, 1))
    drawn = make.op("random", shape=shape, p=0.3, salt=5)
    function = make.function(("edge", drawn), ("sum", x), at="src")
    topology = TOPOLOGIES["one hub"]
    arrays = arrays_of(function, topology)
    expected = naive.run(function, topology, arrays, seed=seed)[0]
    moved = {name: array.to(DEVICE) for name, array in arrays.items()}
    actual = gpu.run(function, topology.to(DEVICE), moved, seed=seed)[0]
    assert torch.equal(actual.cpu(), expected)


def test_integer_and_mask_data() -> None:
    make = Builder(torch.float32)
    kind, chosen = make.input("edge", (), torch.int64), make.input("edge", (3,), torch.bool)
    x = make.input("src", (3,))
    scaled = make.op("mul", x, make.op("cast", kind, dtype=torch.float32))
    either = make.op("or", make.op("eq", kind, 1), make.op("not", chosen))
    function = make.function(("sum", make.op("where", either, scaled, -1.0)), ("max", scaled))
    topology = TOPOLOGIES["skewed"]
    arrays = arrays_of(function, topology)
    expected = naive.run(function, topology, arrays)
    # An array may have another integer type than the input says.
    moved = {name: array.to(DEVICE) for name, array in arrays.items()} | {kind: arrays[kind].int().to(DEVICE)}
    cases.assert_close(gpu.run(function, topology.to(DEVICE), moved), expected, rtol=1e-5)


@pytest.mark.parametrize("comparison", ["lt", "le", "gt", "ge", "eq", "ne"])
def test_numbers_of_float64_are_compared_in_float64(comparison: str) -> None:
    make = Builder(torch.float64)
    x = make.input("src", (3,))
    results = [
        make.op("where", make.op(comparison, *operands), x, -1.0) for operands in ((x, 0.1), (0.1, x), (x, 1e300))
    ]
    function = make.function(*(("edge", result) for result in results))
    # The nearest number of float32 lies between the second and the third.
    row = torch.tensor([0.1 - 1e-12, 0.1, 0.1 + 1e-8], dtype=torch.float64)
    topology = TOPOLOGIES["self-loops"]
    rows = row.repeat(topology.num_src, 1)
    expected = naive.run(function, topology, {x: rows})
    cases.assert_close(gpu.run(function, topology.to(DEVICE), {x: rows.to(DEVICE)}), expected, rtol=0.0)


@pytest.mark.parametrize("at", ["dst", "src"])
def test_ids_of_edges(at: str) -> None:
    make = Builder(torch.float64)
    edge_id = make.op("edge_id", dtype=torch.int64)
    function = make.function(("sum", make.op("cast", edge_id)), ("sum", make.input("src", (3,))), at=at)
    assert_equals_naive(function, TOPOLOGIES["skewed"], rtol=1e-12)


@pytest.mark.parametrize("exponent", [2, 3, 0.5, -1, 2.5, -2, 0, 1])
def test_powers(exponent: float) -> None:
    make = Builder(torch.float64)
    base = make.input("src", (7,))
    function = make.function(("edge", make.op("pow", base, exponent)), ("edge", make.op("pow", base, base)))
    topology = TOPOLOGIES["self-loops"]
    x = torch.tensor([-2.0, -1.0, -0.5, 0.0, 1.0, 3.0, float("inf")], dtype=torch.float64).expand(3, 7).contiguous()
    expected = naive.run(function, topology, {base: x})
    cases.assert_close(gpu.run(function, topology.to(DEVICE), {base: x.to(DEVICE)}), expected, rtol=1e-12)


def test_nan_and_infinity_propagate() -> None:
    function, topology, arrays = cases.nan_and_infinity()
    expected = naive.run(function, topology, arrays)
    arrays = {name: array.to(DEVICE) for name, array in arrays.items()}
    for a, b in zip(gpu.run(function, topology.to(DEVICE), arrays), expected, strict=True):
        torch.testing.assert_close(a.cpu(), b, rtol=1e-14, atol=1e-300, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_functions_over_their_whole_range(dtype: torch.dtype) -> None:
    cases.assert_exact_over_the_whole_range(gpu.run, dtype, DEVICE)


def test_the_own_edge_data_is_reordered_once_and_again_when_it_changes() -> None:
    make = Builder(torch.float32)
    weight, dst = make.input("edge", ()), make.input("dst", (3,))
    function = make.function(("sum", make.op("mul", dst, weight)), at="src")
    topology = TOPOLOGIES["skewed"].with_edge_data(weight=torch.rand(TOPOLOGIES["skewed"].num_edges)).to(DEVICE)
    data = topology.edge_data["weight"]
    arrays = {name: array.to(DEVICE) for name, array in arrays_of(function, topology).items()} | {weight: data}
    for _ in range(2):
        cases.assert_close(
            gpu.run(function, topology, arrays),
            tuple(result.cpu() for result in naive.run(function, topology, arrays)),
            rtol=1e-5,
        )
        data.mul_(2)


def test_rows_that_lie_apart_are_read_where_they_are() -> None:
    function, topology = gated(41), TOPOLOGIES["skewed"]
    arrays = {name: array.to(DEVICE) for name, array in arrays_of(function, topology).items()}
    apart = {name: torch.cat([array, array], 1)[:, :41] for name, array in arrays.items()}
    expected = gpu.run(function, topology.to(DEVICE), arrays)
    assert torch.equal(gpu.run(function, topology.to(DEVICE), apart)[0], expected[0])


def test_the_reason_why_a_function_is_not_supported() -> None:
    make = Builder(torch.float32)
    function = make.function(("sum", make.op("sum", make.input("src", (5000,)), dims=(0,))))
    reason = "value 'src0' of shape [5000] takes 8192 lanes where rows are resident, at most 4096"
    assert gpu.supports(function) == reason
    assert all(gpu.supports(function) is None for function in KNOWN.values())


def test_kernels_are_kept_on_disk_and_found_again(tmp_path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setenv("SAGANN_CACHE", str(tmp_path))
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    assert_equals_naive(gated(17), TOPOLOGIES["multi-edges"], rtol=1e-5)
    files = times_by_file(tmp_path)
    # The interpreter compiles nothing.
    kinds = {".py"} if INTERPRETED else {".py", ".cubin"}
    assert kinds <= {path.suffix for path in files}
    assert_equals_naive(gated(17), TOPOLOGIES["multi-edges"], rtol=1e-5)
    assert times_by_file(tmp_path) == files


@pytest.mark.parametrize("continued", [False, True])
def test_parameters_named_like_variables_of_a_kernel_ask_for_nothing(*, continued: bool) -> None:
    by_source, by_destination = (emit(cases.named_like_variables(at), continued=continued) for at in ("src", "dst"))
    assert "v_parameter_edge_id" in by_source
    assert "tl.load(p_edge_ids" not in by_source
    assert " other = " in by_source
    assert " other = " not in by_destination


on_device = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.mark.gpu
@on_device
@pytest.mark.parametrize("at", ["dst", "src"])
def test_the_host_waits_for_nothing_once_a_pass_is_known(at: str) -> None:
    function, topology = cases.all_reductions(at), cases.hub(9000).to("cuda")
    arrays = {name: array.to("cuda") for name, array in arrays_of(function, topology).items()}
    expected = gpu.run(function, topology, arrays)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with waits_refused(), torch.cuda.stream(stream):
        actual = gpu.run(function, topology, arrays)
    torch.cuda.synchronize()
    assert all(torch.equal(a, b) for a, b in zip(actual, expected, strict=True))


@pytest.mark.gpu
@on_device
def test_a_row_with_a_million_edges() -> None:
    assert_equals_naive(gated(64, torch.float64), cases.hub(1_000_000), rtol=1e-11)


@pytest.mark.gpu
@pytest.mark.slow
@on_device
def test_more_than_2_to_the_31_numbers() -> None:
    num_vertices, features = (1 << 24) + 5, 136
    x = torch.zeros(num_vertices, features, dtype=torch.float16, device="cuda")
    x[-1] = torch.arange(features, dtype=torch.float16)
    make = Builder(torch.float16)
    function = make.function(("sum", make.input("src", (features,))))
    last = torch.tensor([num_vertices - 1])
    topology = Topology.from_coo(src=last, dst=last, num_src=num_vertices).to("cuda")
    (total,) = gpu.run(function, topology, {"src0": x})
    assert torch.equal(total[-1].cpu(), torch.arange(features, dtype=torch.float32))
    assert not total[:-1].any()
