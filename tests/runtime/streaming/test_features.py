"""A streamed model reads a feature store as it reads the tensor of the same rows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sagann.errors import InputError
from sagann.graph import Graph
from sagann.graph.feature_store import Features
from sagann.nn import ModelConfig, build_model
from sagann.plan.selection import Select
from sagann.runtime.streaming.capturing import are_constant
from sagann.runtime.streaming.stream import foretell, stream
from sagann.runtime.tiered import TieredFeatures
from tests.graphs import labelled_graph
from tests.stores import ComputedRows


def prepared(name: str) -> tuple[nn.Module, Graph, ComputedRows]:
    torch.manual_seed(0)
    rows = ComputedRows(53, 6)
    graph = replace(labelled_graph(), features=rows)
    model = build_model(ModelConfig(model=name, hidden=8, heads=2, layers=2, dropout=0.0), graph)
    return model, model.prepare(graph), rows


@pytest.mark.parametrize("place", ["memory", "picked", "disk", "unlimited"])
@pytest.mark.parametrize("name", ["gcn", "sage", "gated-gcn"])
def test_a_store_has_the_numbers_of_its_tensor(name: str, place: str, tmp_path: Path) -> None:
    model, graph, rows = prepared(name)
    assert graph.features is rows
    select: Select = "always" if place == "picked" else "never"
    budget = 1 << 62 if place == "unlimited" else 40_000
    found = []
    for each in (graph, graph.in_memory()):
        spill = tmp_path if place == "disk" else None
        streamed = stream(model, each, budget_bytes=budget, num_intervals=4, select=select, spill=spill)
        asked = len(rows.asked)
        loss = streamed.loss(each.features, _loss_of)
        found.append([loss, *torch.autograd.grad(loss, list(model.parameters()))])
        if each is graph:
            # Read by intervals, and never whole.
            ranges = rows.asked[asked:]
            assert all(stop - start < 53 for start, stop in ranges)
            assert ranges or select == "always"
    for of_store, of_tensor in zip(*found, strict=True):
        assert torch.equal(of_store, of_tensor)


@pytest.mark.parametrize("select", ["always", "never"])
def test_a_tiered_store_has_the_numbers_of_its_rows(select: Select) -> None:
    model, graph, rows = prepared("sage")
    tiered = TieredFeatures(rows, hot=0.2, cache="look-ahead")
    losses = []
    for each in (graph, replace(graph, features=tiered)):
        streamed = stream(model, each, budget_bytes=40_000, num_intervals=4, select=select)
        losses.append(streamed.loss(each.features, _loss_of))
    assert torch.equal(*losses)


def _loss_of(z: Tensor, vertices: slice) -> Tensor:
    return F.log_softmax(z, 1).square().sum()


def test_rows_of_a_store_take_room_of_the_budget_and_are_planned_so() -> None:
    model, graph, _ = prepared("gat")
    sizes = []
    for each in (graph, graph.in_memory()):
        planned = foretell(model, each, budget_bytes=1 << 20, select="never")
        streamed = stream(model, each, budget_bytes=1 << 20)
        assert streamed.plan(each.features, folded=True).plan.peak_bytes == planned.plan.peak_bytes
        sizes.append(planned.plan.peak_bytes)
    assert sizes[0] >= sizes[1] + 53 * 6 * 4


def test_what_is_gathered_is_kept_only_where_the_owner_says_that_features_are_constant() -> None:
    model, graph, rows = prepared("gcn")
    streamed = stream(model, graph, budget_bytes=40_000, num_intervals=3)
    constant: list[tuple[Features, bool]] = [(rows, True)]
    in_memory = graph.in_memory().features
    constant += [(in_memory, True), (in_memory.clone(), False)]
    for x, is_kept in constant:
        assert are_constant(x) == is_kept
        assert [gather.constant for gather in streamed.plan(x).program.gathers] == [is_kept, False]
        reads = []
        for _ in range(2):
            rows.asked.clear()
            streamed(x)
            reads.append(len(rows.asked))
        if x is rows:
            assert reads[1] == 0 < reads[0]


def test_features_that_do_not_fit_are_refused() -> None:
    model, graph, _ = prepared("gcn")
    streamed = stream(model, graph, budget_bytes=40_000)
    with pytest.raises(InputError, match=r"\[20, 6\] of a ComputedRows, expected rows of 53 vertices"):
        streamed(ComputedRows(20, 6))
    with pytest.raises(InputError, match="a list, expected Tensor or FeatureStore"):
        streamed([1.0])
