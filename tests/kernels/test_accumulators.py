"""Accumulators' records: a finished state is what the twin in PyTorch gathers."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from sagann.kernels.accumulators import RECORDS, gathering
from tests.graphs import odd_topologies
from tests.tolerances import assert_close


@pytest.mark.parametrize("graph", ["isolated vertices", "one hub", "skewed"])
@pytest.mark.parametrize("name", sorted(RECORDS.keys() - {"concat"}))
def test_a_finished_state_is_what_the_twin_gathers(name: str, graph: str) -> None:
    topology, record = odd_topologies()[graph], RECORDS[name]
    values = [torch.randn(topology.num_edges, 3).double() for _ in range(record.reduction.num_values)]
    degrees = topology.in_degrees().clamp(min=1)

    def counts(rows: Tensor) -> Tensor:
        return degrees.to(rows.dtype).reshape(-1, *(1,) * (rows.ndim - 1))

    state = [rows.clone() for rows in record.reduction.reduce(topology, values)]
    assert_close(record.finish(state, counts), record.gather(topology, *values))


def test_an_unknown_accumulator_is_refused() -> None:
    with pytest.raises(ValueError, match="no accumulator 'median'; choose one of sum, mean, max"):
        gathering("sum+median")
