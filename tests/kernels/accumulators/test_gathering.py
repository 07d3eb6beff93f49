"""Gathers by the names of their accumulators."""

from __future__ import annotations

import pytest
import torch

from sagann.kernels.accumulators import gathering
from tests.graphs import odd_topologies


@pytest.mark.parametrize(
    ("names", "name", "shape"),
    [
        ("sum", "sum", (4, 5)),
        (["mean", "std"], "mean+std", (4, 10)),
        ("max+min", "max+min", (4, 10)),
        ({"a": "sum", "b": ["max", "min"]}, "sum, max+min", (60,)),
        ("sum, softmax", "sum, softmax", (40,)),
    ],
)
def test_names_and_shapes(names: object, name: str, shape: tuple[int, ...]) -> None:
    gather = gathering(names)  # type: ignore[arg-type]
    topology = odd_topologies()["skewed"]
    values = [torch.randn(topology.num_edges, 4, 5) for _ in range(gather.num_values)]
    assert gather.name == name
    assert gather.shape([(4, 5)] * gather.num_values) == shape
    assert gather.gather(topology, values).shape == (topology.num_dst, *shape)


def test_an_unknown_accumulator_is_refused() -> None:
    with pytest.raises(ValueError, match="no accumulator 'median'; choose one of sum, mean, max"):
        gathering("sum+median")
