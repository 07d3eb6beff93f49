"""What is particular to generated CPU kernels. What all dialects do is tested in tests/kernels/edge/test_run.py."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from sagann.graph import Topology
from sagann.kernels.edge import cpu, naive
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
