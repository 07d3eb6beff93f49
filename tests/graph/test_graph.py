"""Graphs: their fields, their checks, and their task."""

from __future__ import annotations

import copy
import pickle
from dataclasses import replace

import numpy as np
import pytest
import torch

from sagann.errors import InputError
from sagann.graph import (
    Graph,
    Topology,
    for_task,
    subgraph,
    validate_graph,
)
from sagann.graph.graph import left_out, tasks_of, without_others
from tests.graph.graphs import make_graph, sparse


def example(**changes):
    fields = {
        "topology": make_graph([(0, 1), (1, 2)], 3).topology,
        "features": torch.zeros(3, 5),
        "labels": torch.tensor([0, 1, -1]),
        "num_classes": 2,
        "splits": {"train": torch.tensor([True, False, False])},
    }
    return Graph(**{**fields, **changes})


def test_whole_graphs_have_labels_targets_and_splits():
    graph = example(
        graph_ptr=torch.tensor([0, 2, 3]),
        graph_labels=torch.tensor([0, 1]),
        num_graph_classes=2,
        graph_targets=torch.zeros(2, 3),
    )
    assert graph.graphs.num_targets == 3
    assert repr(graph) == (
        "Graph(num_vertices=3, num_edges=2, num_features=5, num_classes=2, num_graphs=2, num_graph_classes=2, num_graph_targets=3)"
    )
    split = replace(graph, graph_splits={"val": torch.tensor([True, False])})
    moved = split.to("meta")
    assert {moved.graph_labels.device.type, moved.graph_targets.device.type} == {"meta"}
    assert moved.graph_splits["val"].device.type == "meta"
    assert pickle.loads(pickle.dumps(split)).graph_splits["val"].tolist() == [True, False]
    column = example(graph_ptr=torch.tensor([0, 3]), graph_targets=torch.ones(1, 1))
    assert (column.graph_targets.shape, column.graphs.num_targets, example().graphs.num_targets) == ((1,), 1, 0)
    with pytest.raises(
        InputError, match=r"graph_targets and graphs differ in number: 3 rows, 2 graphs .*one row per graph"
    ):
        example(graph_ptr=torch.tensor([0, 2, 3]), graph_targets=torch.zeros(3))
    with pytest.raises(InputError, match=r"graph_split_val and graphs differ in number: 3 rows, 1 graphs"):
        example(graph_ptr=torch.tensor([0, 3]), graph_splits={"val": torch.ones(3, dtype=torch.bool)})
    with pytest.raises(
        InputError, match=r"graph_labels and graphs differ in number: 1 rows, 0 graphs .* graph_ptr"
    ):
        example(graph_labels=torch.tensor([0]))
    for ptr in (torch.tensor(3), torch.tensor([[0, 3]])):
        with pytest.raises(
            InputError, match=r"array has the wrong form: .* expected int64 \[num_graphs \+ 1\] .*ptr"
        ):
            example(graph_ptr=ptr)


def test_targets_are_one_or_several_numbers_per_vertex():
    assert example().num_targets == 0
    one, several = example(targets=torch.arange(3.0)), example(targets=torch.zeros(3, 2))
    assert (one.num_targets, several.num_targets) == (1, 2)
    assert repr(several) == "Graph(num_vertices=3, num_edges=2, num_features=5, num_classes=2, num_targets=2)"
    # A single column would broadcast against [num_vertices].
    column = example(targets=torch.arange(3.0)[:, None])
    assert column.targets.tolist() == [0, 1, 2]
    assert one.to("meta").targets.device.type == "meta"
    with pytest.raises(InputError, match="targets and vertices differ in number: 2 rows, 3 vertices"):
        example(targets=torch.zeros(2))
    with pytest.raises(InputError, match=r"a list, expected Tensor or None \(in Graph.targets\)"):
        example(targets=[1.0, 2.0, 3.0])


def test_to_moves_everything():
    moved = example(features=sparse(torch.eye(3)), graph_ptr=torch.tensor([0, 1, 3])).to("meta")
    tensors = [moved.topology.indices, moved.features, moved.labels, moved.graph_ptr, *moved.splits.values()]
    assert {tensor.device.type for tensor in tensors} == {"meta"}


@pytest.mark.parametrize("again", [copy.deepcopy, lambda graph: pickle.loads(pickle.dumps(graph))])
def test_copies_and_pickles_are_the_same_graph(again):
    graph = example(graph_names=("one",), graph_ptr=torch.tensor([0, 3]), name="mine")
    other = again(graph)
    assert repr(other) == repr(graph)
    assert (other.name, other.graph_names) == ("mine", ("one",))
    assert other.topology.indices.tolist() == graph.topology.indices.tolist()
    assert torch.equal(other.features, graph.features)
    assert other.features is not graph.features
    assert other.splits["train"].tolist() == [True, False, False]
    assert copy.copy(graph).features is graph.features


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"topology": Topology.from_coo(src=torch.tensor([2]), dst=torch.tensor([0]), num_src=3, num_dst=1)},
            "a graph needs a square topology: 3 sources, 1 destinations",
        ),
        ({"features": torch.zeros(2, 5), "name": "toy"}, "features and .*: 2 rows, 3 vertices .in graph 'toy'"),
        (
            {"splits": {"val": torch.tensor([0, 2])}},
            r"split_val and .*: 2 rows, 3 vertices .*mask = torch.zeros\(3, ",
        ),
    ],
)
def test_sizes_that_do_not_fit_are_refused(changes, message):
    with pytest.raises(InputError, match=message):
        example(**changes)


@pytest.mark.parametrize(
    ("name", "count"), [("num_edge_types", 2**40), ("num_classes", 2**48), ("num_classes", -1)]
)
def test_counts_out_of_range_are_refused(name: str, count: int) -> None:
    topology = Topology.from_coo(src=torch.tensor([0]), dst=torch.tensor([1]), num_src=2)
    with pytest.raises(
        InputError, match=rf"{name} is out of range: {count}, expected an integer from 0 .*Graph.{name}"
    ):
        Graph(topology=topology, **{name: count})


def test_counts_may_be_integers_of_numpy():
    ends = torch.tensor([0, 1])
    topology = Topology.from_coo(
        src=ends, dst=ends, num_src=np.int64(3), edge_data={"type": torch.tensor([0, 1], dtype=torch.uint8)}
    )
    graph = Graph(
        topology=topology, num_edge_types=np.int64(4), labels=torch.zeros(3).long(), num_classes=np.int32(2)
    )
    counts = (topology.num_src, graph.num_edge_types, graph.num_classes)
    assert counts == (3, 4, 2)
    assert {type(count) for count in counts} == {int}


def test_labels_and_types_say_how_many_there_are():
    topology = Topology.from_coo(
        src=torch.tensor([0, 1]),
        dst=torch.tensor([1, 2]),
        num_src=3,
        edge_data={"type": torch.tensor([4, 0], dtype=torch.uint8)},
    )
    labels = torch.tensor([2, -1, 0])
    graph = Graph(
        topology=topology, labels=labels, graph_ptr=torch.tensor([0, 3, 3]), graph_labels=torch.tensor([6, -1])
    )
    assert (graph.num_classes, graph.num_graph_classes, graph.num_edge_types) == (3, 7, 5)
    validate_graph(graph)
    assert replace(graph, num_classes=9).num_classes == 9
    assert replace(graph, labels=torch.zeros(3, 4, dtype=torch.uint8), num_classes=0).num_classes == 4
    assert graph.with_labels(labels + 1).num_classes == 4
    assert graph.with_labels(None).num_classes == 0
    assert Graph(topology=topology, labels=torch.full((3,), -1)).num_classes == 0


def test_names_stay_where_their_number_fits():
    graph = replace(
        example(features=torch.eye(3)), feature_names=("a", "b", "c"), class_names=("cat", "dog"), num_classes=2
    )
    assert graph.with_features(graph.features * 2).feature_names == ("a", "b", "c")
    assert graph.with_features(None).feature_names == graph.with_features(torch.eye(3, 2)).feature_names == ()
    assert subgraph(graph, torch.tensor([1])).class_names == ("cat", "dog")
    assert for_task(graph.with_labels(torch.tensor([0, 1, 2])), "classification").class_names == ()


def test_other_features_labels_and_splits():
    graph = example()
    features, mask = torch.ones(3, 2), torch.tensor([False, True, True])
    assert torch.equal(graph.with_features(features).features, features)
    assert graph.with_features(features).topology is graph.topology
    assert graph.with_features(None).num_features == 0
    assert graph.with_labels(torch.tensor([0, 1, 0]), num_classes=7).num_classes == 7
    assert graph.with_splits({"val": mask}).splits == {"val": mask}
    with pytest.raises(InputError, match="a list, expected Tensor"):
        graph.with_features([1, 2, 3])


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
    found = [tuple(tasks_of(graph)) for graph in (EMPTY, LABELS, MULTI, TARGETS, BOTH, WHOLE)]
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
    assert tuple(tasks_of(kept)) == ("graph-regression",)
    assert (kept.num_classes, kept.num_graph_classes, kept.answers.unit) == (0, 0, "graph")
    assert for_task(everything, "classification").answers.unit == "vertex"
