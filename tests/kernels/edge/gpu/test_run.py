"""What is particular to generated Triton kernels. What all dialects do is tested in tests/kernels/edge/test_run.py."""

from __future__ import annotations

import os

import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed: pip install sagann[cuda]")

from sagann.graph import Topology
from sagann.kernels.edge import gpu, naive
from sagann.kernels.edge.function import EdgeFunction
from tests.cuda import waits_refused
from tests.graphs import random_topology
from tests.kernels.edge import cases
from tests.kernels.edge.cases import KNOWN
from tests.kernels.edge.functions import Builder, arrays_of, gated

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cpu" if INTERPRETED else "cuda"
# The interpreter takes milliseconds for an edge.
TOPOLOGIES = cases.TOPOLOGIES | ({"skewed": random_topology(29, 131)} if INTERPRETED else {})
pytestmark = [
    # The interpreter computes with NumPy, which warns of what floating point allows.
    pytest.mark.filterwarnings("ignore::RuntimeWarning:triton"),
    *([] if INTERPRETED else [pytest.mark.gpu]),
]


def assert_equals_naive(function: EdgeFunction, topology: Topology, rtol: float) -> None:
    cases.assert_equals_naive(gpu.run, function, topology, rtol, device=DEVICE)


@pytest.mark.parametrize("features", [1, 128, 300])
def test_tiles_of_features(features: int) -> None:
    assert_equals_naive(gated(features), TOPOLOGIES["one hub"], rtol=1e-5)


@pytest.mark.parametrize(("seed", "shape"), [(1, ()), (2**31, (150,)), (2**32 - 1, (3, 5))], ids=str)
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


def test_numbers_of_float64_are_compared_in_float64() -> None:
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
    topology = TOPOLOGIES["self-loops"]
    rows = row.repeat(topology.num_src, 1)
    expected = naive.run(function, topology, {x: rows})
    cases.assert_close(gpu.run(function, topology.to(DEVICE), {x: rows.to(DEVICE)}), expected, rtol=0.0)


def test_powers() -> None:
    make = Builder(torch.float64)
    base = make.input("src", (7,))
    exponents = (2, 3, 0.5, -1, 2.5, -2, 0, 1, base)
    function = make.function(*(("edge", make.op("pow", base, exponent)) for exponent in exponents))
    topology = TOPOLOGIES["self-loops"]
    x = torch.tensor([-2.0, -1.0, -0.5, 0.0, 1.0, 3.0, float("inf")], dtype=torch.float64).expand(3, 7).contiguous()
    expected = naive.run(function, topology, {base: x})
    cases.assert_close(gpu.run(function, topology.to(DEVICE), {base: x.to(DEVICE)}), expected, rtol=1e-12)


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


def test_a_function_that_is_not_supported_runs_in_pytorch() -> None:
    make = Builder(torch.float32)
    function = make.function(("sum", make.op("sum", make.input("src", (5000,)), dims=(0,))))
    cases.assert_equals_naive(gpu.run, function, TOPOLOGIES["self-loops"], 0.0, device=DEVICE)


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
