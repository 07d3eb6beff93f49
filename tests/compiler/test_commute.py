"""Linear maps change places with gathers and with scales."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from sagann.compiler.classify import verify
from sagann.compiler.commute import commute, scale_last
from sagann.compiler.operators import GATHER
from sagann.compiler.rewrite import linear_parts
from sagann.nn import GCN, GIN, CommNet, GatedGCN
from tests.compiler.graphs import traced
from tests.compiler.layers import Layer


def widths_gathered(module: Any) -> list[int]:
    return [node.meta["val"].shape[-1] for node in module.graph.nodes if node.target is GATHER]


@pytest.mark.parametrize(
    ("layer", "gathered"),
    [
        (GCN(8, 4), 4),
        (GCN(4, 8), 4),
        (CommNet(8, 4), 4),
        (GIN(8, 6), 8),
        (GatedGCN(8, 4), 8),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, torch.nn.Module) else str(value),
)
def test_the_narrower_row_travels(layer: Any, gathered: int) -> None:
    dim = next(p for p in layer.parameters() if p.ndim == 2).shape[1]
    module = traced(layer, dim)
    notes = commute(module, keep_constant=False)
    verify(module)
    assert widths_gathered(module) == [gathered]
    assert len(notes) == (gathered != dim)


def test_a_map_that_widens_in_apply_edge_goes_last() -> None:
    module = traced(Layer(lambda m, e: F.linear(e.src, m.wide.T) * e.data[:, None]), 6)
    assert widths_gathered(module) == [8]
    (note,) = commute(module, keep_constant=False)
    verify(module)
    assert widths_gathered(module) == [6]
    assert "6 features travel, not 8" in note.text


def test_what_is_gathered_from_constant_rows_stays_free_of_parameters() -> None:
    module = traced(GCN(8, 4), 8)
    assert commute(module, keep_constant=True) == []
    module = traced(Layer(lambda m, e: F.linear(e.src, m.w)))
    (note,) = commute(module, keep_constant=True)
    assert "the gather is constant" in note.text


def test_what_a_parameter_scales_beside_constant_rows_is_mapped_first() -> None:
    module = traced(GIN(8, 4), 8)
    (note,) = commute(module, keep_constant=True)
    assert "4 features travel, not 8" in note.text
    (note,) = scale_last(module)
    verify(module)
    assert "scaled afterwards" in note.text
    operands = [node.args[0] for node in module.graph.nodes if linear_parts(node)]
    assert [row.meta["place"] for row in operands if row.op == "placeholder"] == ["src", "dst"]
    assert commute(traced(GIN(8, 6), 8), keep_constant=True) == []


def test_with_many_sources_no_map_moves_to_them() -> None:
    assert commute(traced(GCN(8, 4), 8), keep_constant=False, map_first=False) == []


@pytest.mark.parametrize("accumulator", ["max", "min"])
def test_only_linear_accumulators_commute(accumulator: str) -> None:
    layer = Layer(None, lambda m, v, a: F.linear(a, m.w[:1]), accumulator=accumulator)
    assert commute(traced(layer), keep_constant=False) == []


@pytest.mark.parametrize(
    "vertex",
    [lambda m, v, a: F.linear(a.relu(), m.w[:1]), lambda m, v, a: F.linear(a, m.w[:1]) + a[:, :1]],
    ids=["not linear", "read twice"],
)
def test_a_gather_with_another_reader_stays(vertex: Any) -> None:
    assert commute(traced(Layer(None, vertex)), keep_constant=False) == []
