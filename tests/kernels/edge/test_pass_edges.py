"""Edges that come for one pass give what the topology gives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal

import pytest
import torch
from torch import Tensor

from sagann.graph import Topology
from sagann.kernels.edge import cpu, naive
from sagann.kernels.edge.function import EdgeFunction
from sagann.kernels.edge.pass_edges import Edges, PassEdges
from sagann.kernels.edge.state import Run
from tests.kernels.edge import cases
from tests.kernels.edge.cases import TOPOLOGIES
from tests.kernels.edge.chunks import CUTS, by_source, gather
from tests.kernels.edge.functions import arrays_of

RUNS: dict[str, Run] = {"naive": naive.run, "cpu": cpu.run}


def for_one_pass(run: Run, *, own: bool) -> Run:
    """Run on edges that come for the pass alone, as narrow as they may be; ``own`` of them carry their data along."""

    def run_on(
        function: EdgeFunction,
        edges: Edges,
        arrays: Mapping[str, Tensor],
        *,
        seed: int = 0,
        into: Sequence[Tensor] | None = None,
        edge_offset: int = 0,
    ) -> tuple[Tensor, ...]:
        assert isinstance(edges, Topology)
        names = [given.name for given in function.inputs if given.side == "edge"] if own else []
        # A topology counts no fewer sources than destinations; the rest of the sources have no edges.
        found = PassEdges.of(edges.with_edge_data(**{name: arrays[name] for name in names}), function.at)
        narrow = replace(found, indptr=found.indptr.int(), indices=found.indices.to(torch.int16))
        arrays = {**arrays, **narrow.edge_data}
        return run(function, narrow, arrays, seed=seed, into=into, edge_offset=edge_offset)

    return run_on


@pytest.mark.parametrize(("at", "own"), [("dst", True), ("src", False)])
@pytest.mark.parametrize("dialect", RUNS)
def test_every_reduction(dialect: str, at: Literal["dst", "src"], own: bool) -> None:
    function = cases.all_reductions(at)
    run = for_one_pass(RUNS[dialect], own=own)
    for topology in map(by_source, TOPOLOGIES.values()):
        arrays = arrays_of(function, topology)
        expected = naive.run(function, topology, arrays, seed=7)
        cases.assert_close(gather(run, function, topology, CUTS["3 x 3"](topology), arrays), expected, 1e-10)
