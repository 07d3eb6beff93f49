"""What is particular to generated CPU kernels. What all dialects do is tested in tests/kernels/edge/test_run.py."""

from __future__ import annotations

import signal
import subprocess
import sys
from typing import Any

import pytest
import torch

from sagann import kernels
from sagann.graph import Topology
from sagann.kernels.edge import cpu, naive
from sagann.kernels.edge.cpu import scatter_extremum
from sagann.kernels.edge.cpu.writers import WRITERS
from sagann.kernels.edge.function import EdgeFunction
from tests.kernels.edge import cases
from tests.kernels.edge.cases import TOPOLOGIES
from tests.kernels.edge.functions import Builder, arrays_of, gated


def assert_equals_naive(function: EdgeFunction, topology: Topology, rtol: float) -> None:
    cases.assert_equals_naive(cpu.run, function, topology, rtol)


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [
        ((8, 16), torch.float32),
        ((3, 32), torch.float64),
        ((5, 2), torch.float32),
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


@pytest.mark.parametrize("num_edges", [1, 900])
def test_few_edges_are_added_up_one_after_the_other(num_edges: int) -> None:
    make = Builder(torch.float32)
    function = make.function(("sum", make.input("src", (3,))))
    (x,) = arrays_of(function, topology := cases.hub(num_edges, vertex=0)).values()
    (found,) = cpu.run(function, topology, {"src0": x})
    rows = x[topology.indices[: topology.indptr[1]].long()]
    assert torch.equal(found[0], torch.from_numpy(rows.numpy().cumsum(0)[-1]))


def test_a_reduction_without_a_writer_runs_in_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(WRITERS, "product")
    assert_equals_naive(cases.all_reductions("dst"), TOPOLOGIES["skewed"], 1e-11)


@pytest.mark.parametrize("at", ["dst", "src"])
def test_bitwise_the_same_for_any_number_of_threads(at: str, threads: Any) -> None:
    function, topology = cases.all_reductions(at), cases.hub(9000)
    arrays = arrays_of(function, topology)
    results = []
    for count in (1, 2):
        threads(count)
        results.append(cpu.run(function, topology, arrays))
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_rows_negated_by_a_bit() -> None:
    function = gated(7)
    topology = TOPOLOGIES["skewed"]
    arrays = {
        name: torch.complex(rows, rows).conj().imag if rows.ndim == 2 else torch._neg_view(rows)
        for name, rows in arrays_of(function, topology).items()
    }
    assert all(rows.is_neg() for rows in arrays.values())
    cases.assert_close(cpu.run(function, topology, arrays), naive.run(function, topology, arrays), rtol=1e-5)


def test_the_gradient_of_a_hub_does_not_drift() -> None:
    num_dst = 100_000
    topology = Topology.from_coo(src=torch.zeros(num_dst).long(), dst=torch.arange(num_dst), num_src=num_dst)
    found = scatter_extremum(topology, torch.arange(num_dst)[:, None], torch.full((num_dst, 1), 0.1))
    torch.testing.assert_close(found[0].item(), 0.1 * num_dst, rtol=1e-6, atol=0)


@pytest.mark.parametrize("name", TOPOLOGIES)
@pytest.mark.parametrize("shape", [(1,), (3, 5)], ids=str)
def test_equals_autograd(name: str, shape: tuple[int, ...]) -> None:
    topology = TOPOLOGIES[name]
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(4, (topology.num_src, *shape), generator=generator).double().requires_grad_()
    best, edge = kernels.naive.gather_extremum(topology, x.index_select(0, topology.indices.long()), "max")
    grad = torch.randn(best.shape, generator=generator, dtype=torch.float64)
    (expected,) = torch.autograd.grad(best, x, grad)
    torch.testing.assert_close(scatter_extremum(topology, edge, grad), expected, rtol=1e-14, atol=1e-14)
    torch.testing.assert_close(scatter_extremum(topology, edge.int(), grad), expected, rtol=1e-14, atol=1e-14)
    negated = torch._neg_view(-grad)
    torch.testing.assert_close(scatter_extremum(topology, edge, negated), expected, rtol=1e-14, atol=1e-14)


INTERRUPTED = """
import ctypes, signal, sys, threading, time
from sagann.kernels.edge.cpu import launch

called, done = threading.Event(), []
caller = threading.main_thread()

@ctypes.CFUNCTYPE(None, ctypes.c_void_p)
def kernel(args):
    if threading.current_thread() is caller:
        called.set()
        return
    called.wait()
    # What is raised in here is lost.
    while sys._current_frames()[caller.ident].f_code.co_name == "kernel":
        time.sleep(0.01)
    for _ in range(3):
        time.sleep(0.1)
        signal.pthread_kill(caller.ident, signal.SIGINT)
    time.sleep(0.2)
    done.append(args)

try:
    launch._on_python_threads(ctypes.cast(kernel, ctypes.c_void_p).value, 7, 2)
except KeyboardInterrupt:
    print("interrupted", done, flush=True)
"""


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="the system signals no single thread")
def test_an_interrupt_waits_for_the_threads_that_still_use_the_arrays() -> None:
    program = [sys.executable, "-c", INTERRUPTED]
    ended = subprocess.run(program, capture_output=True, text=True, timeout=240)
    assert (ended.stdout, ended.stderr) == ("interrupted [7]\n", "")
