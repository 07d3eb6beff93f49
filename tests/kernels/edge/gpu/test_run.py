"""What is particular to generated Triton kernels, and that they compile well. What all dialects do is tested in tests/kernels/edge/test_run.py."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from sagann.graph import Topology
from sagann.kernels.edge import naive
from sagann.kernels.edge.function import EdgeFunction
from tests.cuda import INTERPRETED, NO_TRITON, on_device, waits_refused
from tests.kernels.edge import cases
from tests.kernels.edge.cases import KNOWN, ON_DEVICE
from tests.kernels.edge.functions import Builder, arrays_of, gated

gpu = pytest.importorskip("sagann.kernels.edge.gpu", reason=NO_TRITON)


DEVICE = "cpu" if INTERPRETED else "cuda"
pytestmark = [
    # The interpreter computes with NumPy, which warns of what floating point allows.
    pytest.mark.filterwarnings("ignore::RuntimeWarning:triton"),
    *([] if INTERPRETED else [pytest.mark.gpu]),
]


def assert_equals_naive(function: EdgeFunction, topology: Topology, rtol: float) -> None:
    cases.assert_equals_naive(gpu.run, function, topology, rtol, device=DEVICE)


@pytest.mark.parametrize(("seed", "shape"), [(1, ()), (2**31, (150,)), (2**32 - 1, (3, 5))], ids=str)
def test_random_values_are_bitwise_the_twin_s(seed: int, shape: tuple[int, ...]) -> None:
    make = Builder(torch.float32)
    x = make.input("dst", (3, 1))
    drawn = make.op("random", shape=shape, p=0.3, salt=5)
    function = make.function(("edge", drawn), ("sum", x), at="src")
    topology = ON_DEVICE["one hub"]
    arrays = arrays_of(function, topology)
    expected = naive.run(function, topology, arrays, seed=seed)[0]
    moved = {name: array.to(DEVICE) for name, array in arrays.items()}
    actual = gpu.run(function, topology.to(DEVICE), moved, seed=seed)[0]
    assert torch.equal(actual.cpu(), expected)


def test_rows_that_lie_apart_are_read_where_they_are() -> None:
    function, topology = gated(41), ON_DEVICE["skewed"]
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
    cases.assert_equals_naive(gpu.run, function, ON_DEVICE["self-loops"], 0.0, device=DEVICE)


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


SOME = ("gated", "gated, continued", "heads", "merge_sum", "gather_rows", "pick 32 different")


@pytest.mark.slow
@pytest.mark.parametrize("names", [SOME, pytest.param((), marks=pytest.mark.thorough)], ids=["some", "all"])
def test_kernels_compile_without_spills_and_load_16_bytes_a_thread(tmp_path: Path, names: tuple[str, ...]) -> None:
    settings = {"TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path), "SAGANN_CACHE": str(tmp_path)}
    command = [sys.executable, "-m", "tests.kernels.edge.gpu.compile_driver", *names]
    ran = subprocess.run(command, capture_output=True, text=True, env=os.environ | settings)
    assert ran.returncode == 0, ran.stderr
    lines = [line.split("\t") for line in ran.stdout.splitlines()]
    assert len(lines) == (len(names) or 25)
    figures = {name: [int(figure) for figure in others] for name, *others in lines}
    # All of arithmetic in one kernel is more than any layer asks for.
    usual = [name for name in figures if not name.startswith("float")]
    # A kernel that continues holds a row's earlier results as well, one of padded heads three results: a register may not
    # find room.
    allowed = {name: 4 if name.endswith("continued") or name == "heads, odd" else 0 for name in usual}
    assert {name: figures[name][1] for name in usual if figures[name][1] > allowed[name]} == {}
    # A row of 128 float32 is one load of each thread; 64 registers leave room for 32 warps on a multiprocessor.
    for name in ("gated", "gated, continued"):
        registers, _, widest = figures[name]
        assert widest == 128
        assert registers <= 64
