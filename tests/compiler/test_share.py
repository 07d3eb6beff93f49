"""Values of destinations that repeat values of sources are computed once."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from sagann.runtime.in_memory.engine import CompiledEngine
from sagann.saga import using_engine
from tests.compiler.layers import Layer, program_of
from tests.graphs import topology_of

RANDOM: dict[str, Any] = {
    "dropout": lambda m, e: F.linear(e.src, F.dropout(m.w)) - F.linear(e.dst, F.dropout(m.w)),
    "drawn": lambda m, e: (
        e.src @ torch.randn(4, 4, dtype=e.src.dtype) - e.dst @ torch.randn(4, 4, dtype=e.src.dtype)
    ),
}


@pytest.mark.parametrize("name", RANDOM)
def test_two_random_parameters_are_not_one(name: str) -> None:
    topology = topology_of([(vertex, vertex) for vertex in range(5)], 5)
    layer, x = Layer(RANDOM[name]), torch.randn(5, 4)
    assert program_of(layer, topology, x, CompiledEngine()).shared == ()
    with using_engine(CompiledEngine()):
        assert (layer(topology, x).abs() > 0.01).any()


def test_a_projection_of_both_ends_is_computed_for_sources_alone() -> None:
    topology = topology_of([(0, 1), (1, 2), (2, 0)], 3)
    layer = Layer(lambda m, e: torch.tanh(F.linear(e.src, m.w) + F.linear(e.dst, m.w)))
    program = program_of(layer, topology, torch.randn(3, 4), CompiledEngine())
    ((destinations, sources),) = program.shared
    assert sources in program.src.outputs
    assert destinations not in program.dst.outputs


def test_different_projections_of_the_ends_are_not_shared() -> None:
    topology = topology_of([(0, 1), (1, 2), (2, 0)], 3)
    layer = Layer(lambda m, e: torch.tanh(F.linear(e.src, m.w) + F.linear(e.dst, m.w.t())))
    assert program_of(layer, topology, torch.randn(3, 4), CompiledEngine()).shared == ()
