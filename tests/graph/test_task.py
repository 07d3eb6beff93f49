"""Tasks: one of a graph's answers is kept, and what is left out is said."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from sagann.errors import InputError
from sagann.graph import Graph, for_task
from sagann.graph.task import left_out, tasks_of, without_others
from tests.graph.graphs import make_graph

EMPTY = Graph(topology=make_graph([], 3).topology, name="toy")
LABELS = replace(EMPTY, labels=torch.tensor([0, 1, -1]), num_classes=2)
MULTI = replace(EMPTY, labels=torch.zeros(3, 4, dtype=torch.uint8), num_classes=4)
TARGETS = replace(EMPTY, targets=torch.zeros(3))
WHOLE = replace(
    EMPTY,
    graph_ptr=torch.tensor([0, 1, 3]),
    graph_labels=torch.zeros(2, 3, dtype=torch.uint8),
    num_graph_classes=3,
    graph_targets=torch.zeros(2),
)
BOTH = replace(LABELS, targets=torch.zeros(3, 2))


def test_tasks_are_those_of_labels_and_targets() -> None:
    found = [tasks_of(graph) for graph in (EMPTY, LABELS, MULTI, TARGETS, BOTH, WHOLE)]
    assert found == [
        (),
        ("classification",),
        ("multi-label",),
        ("regression",),
        ("classification", "regression"),
        ("graph-multi-label", "graph-regression"),
    ]


def test_one_task_is_kept() -> None:
    for graph in (EMPTY, LABELS, MULTI, TARGETS):
        assert for_task(graph) is graph
    regression = for_task(BOTH, "regression")
    assert (regression.labels, regression.num_classes, regression.num_targets) == (None, 0, 2)
    classification = for_task(BOTH, "classification")
    assert (classification.targets, classification.num_classes) == (None, 2)
    assert for_task(LABELS, "classification") is LABELS
    assert without_others(BOTH, None) is BOTH


@pytest.mark.parametrize(
    ("graph", "task", "message"),
    [
        (BOTH, None, r"labels of 2 classes and 2 targets per vertex, and no task is named .*classification or regression: TrainConfig\(task"),
        (LABELS, "regression", r"the task does not fit the graph: task 'regression', graph 'toy' has labels of 2 classes .*Choose classification\."),
        (EMPTY, "regression", r"neither labels nor targets .*Give the graph labels or targets"),
        (WHOLE, "regression", r"graph 'toy' has labels of 3 classes of graphs, several per graph and 1 target per graph .*Choose graph-multi-label or graph-reg"),
        (TARGETS, "graph-regression", r"task 'graph-regression', graph 'toy' has 1 target per vertex .*Choose regression\."),
        (BOTH, "clustering", r"unknown task: 'clustering', expected one of .*link-prediction \(in here\)"),
    ],
)  # fmt: skip
def test_a_task_that_does_not_fit_is_refused_with_both_values(graph: Graph, task: str | None, message: str) -> None:
    with pytest.raises(InputError, match=message):
        for_task(graph, task, where="here")


def test_what_a_task_leaves_out_is_said() -> None:
    assert left_out(BOTH, "classification") == (
        "Graph 'toy' also has 2 targets per vertex; the task 'classification' does not use them."
    )
    assert left_out(BOTH, "regression") == (
        "Graph 'toy' also has labels of 2 classes; the task 'regression' does not use them."
    )
    assert [left_out(LABELS, "classification"), left_out(BOTH, None)] == ["", ""]
    assert left_out(WHOLE, "graph-regression") == (
        "Graph 'toy' also has labels of 3 classes of graphs, several per graph; the task 'graph-regression' does not use them."
    )


def test_of_a_task_on_graphs_only_their_answers_are_kept() -> None:
    everything = replace(WHOLE, labels=LABELS.labels, num_classes=2, targets=torch.zeros(3))
    kept = for_task(everything, "graph-regression")
    assert tasks_of(kept) == ("graph-regression",)
    assert (kept.num_classes, kept.num_graph_classes, kept.answers.unit) == (0, 0, "graph")
    assert for_task(everything, "classification").answers.unit == "vertex"
