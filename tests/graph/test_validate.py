from dataclasses import replace

import pytest
import torch
from hypothesis import given

from sagann.errors import InputError
from sagann.graph import Graph, Topology, checks as checks_module
from sagann.graph.rows import csr_tensor
from sagann.graph.validate import validate_graph
from tests.graph.graphs import graphs, make_graph, sparse

nan, inf = float("nan"), float("inf")


def good(**changes):
    graph = Graph(
        topology=make_graph(
            [(0, 1), (1, 0), (2, 3)], 4, weight=torch.ones(3), type=torch.tensor([0, 1, 1]), age=torch.zeros(3, 2)
        ).topology,
        features=torch.zeros(4, 3),
        labels=torch.tensor([0, 1, -1, 1]),
        num_classes=2,
        splits={"train": mask(0), "val": mask(1), "test": mask(3)},
        graph_ptr=torch.tensor([0, 2, 4]),
        graph_names=("a", "b"),
        num_edge_types=2,
        name="toy",
    )
    return replace(graph, **changes)


def mask(*vertices):
    return torch.tensor([v in vertices for v in range(4)])


def with_edges(**data):
    return good().topology.with_edge_data(**data)


def features(vertex, column, value, dtype=torch.float32):
    rows = torch.zeros(4, 3, dtype=dtype)
    rows[vertex, column] = value
    return rows


CASES = {
    "nan target": (
        lambda: good(targets=torch.tensor([[0.0, 1.0], [2.0, nan], [0.0, 0.0], [0.0, 0.0]])),
        "target is not finite: nan in column 1 (in targets of graph 'toy', vertex 1). "
        "Write any finite number for an unknown target, and leave the vertex out of every split.",
    ),
    "targets in double precision": (
        lambda: good(targets=torch.zeros(4, dtype=torch.float64)),
        "array has the wrong form: torch.float64 [4], expected torch.float32 [num_vertices], or [num_vertices, num_targets] "
        "(in targets of graph 'toy'). Convert the targets with .float(), one row per vertex.",
    ),
    "label of a graph too high": (
        lambda: good(graph_labels=torch.tensor([0, 3]), num_graph_classes=3),
        "label out of range: 3, but there are 3 classes, numbered from 0 (in graph_labels of graph 'toy', graph 1). "
        "Number the classes from 0, write -1 for an unknown label, and state the right number of classes.",
    ),
    "no graph to train on": (
        lambda: good(graph_splits={"train": torch.tensor([False, False])}),
        "the training split is empty: 0 graphs, at least 1 is needed (in graph_split 'train' of graph 'toy'). "
        "Split again, with random_graph_split for example.",
    ),
    "nan feature": (
        lambda: good(features=features(2, 1, nan)),
        "feature is not finite: nan in column 1 "
        "(in features of graph 'toy', vertex 2). Replace NaN and infinite values, with torch.nan_to_num for example.",
    ),
    "nan sparse feature": (
        lambda: good(features=sparse(features(1, 2, nan) + features(0, 1, 5.0))),
        "feature is not finite: nan "
        "(in features of graph 'toy', vertex 1, column 2). Replace NaN and infinite values, with torch.nan_to_num for example.",
    ),
    "sparse column out of range": (
        lambda: good(
            features=csr_tensor(torch.tensor([0, 0, 1, 2, 2]), torch.tensor([2, 3]), torch.ones(2), num_columns=3)
        ),
        "feature column out of range: 3, but there are 3 features, numbered from 0 "
        "(in features of graph 'toy', vertex 2, column 3). Number the columns from 0, or widen the matrix.",
    ),
    "sparse offsets": (
        lambda: good(
            features=csr_tensor(torch.tensor([0, 2, 1, 2, 2]), torch.tensor([2, 0]), torch.ones(2), num_columns=3)
        ),
        "offsets of sparse features decrease: 2 then 1 at position 1 "
        "(in features of graph 'toy'). Pass offsets that start at 0, never decrease, and end at the number of entries.",
    ),
    "sparse values": (
        lambda: good(
            features=csr_tensor(torch.tensor([0, 1, 1, 2, 2]), torch.tensor([2, 0]), torch.ones(1), num_columns=3)
        ),
        "columns and values of sparse features differ in number: 2 columns and 1 values (in features of graph 'toy'). "
        "Make the features with torch.sparse_csr_tensor(..., check_invariants=True), which says where they differ.",
    ),
    "features of another layout": (
        lambda: good(features=torch.zeros(4, 3).to_sparse()),
        "features have a layout that is not supported: torch.sparse_coo, expected torch.strided or torch.sparse_csr "
        "(in features of graph 'toy'). Convert them with .to_sparse_csr(), or .to_dense().",
    ),
    "integer features": (
        lambda: good(features=torch.zeros(4, 3, dtype=torch.int64)),
        "array has the wrong form: torch.int64 [4, 3], expected floating point [num_vertices, num_features] "
        "(in features of graph 'toy'). Convert the features with .float(), one row per vertex.",
    ),
    "original id out of range": (
        lambda: good(original_ids=torch.tensor([0, 1, 4, 2])),
        "vertex id out of range: 4, but there are 4 vertices, numbered from 0 (in original_ids of graph 'toy', position 2). "
        "Number the vertices from 0 without gaps, or state the right number of vertices.",
    ),
    "original id repeated": (
        lambda: good(original_ids=torch.tensor([0, 1, 3, 1])),
        "vertex repeated: 1 stands more than once (in original_ids of graph 'toy'). Pass every id once, with ids.unique() for example.",
    ),
    "label too high": (
        lambda: good(labels=torch.tensor([0, 2, -1, 1])),
        "label out of range: 2, but there are 2 classes, numbered from 0 "
        "(in labels of graph 'toy', vertex 1). Number the classes from 0, write -1 for an unknown label, and state the right number of classes.",
    ),
    "multi-label of 2": (
        lambda: good(labels=torch.tensor([[0, 1], [1, 1], [0, 2], [0, 0]], dtype=torch.uint8)),
        "label out of range: [0, 2], but multi-label rows hold 0 and 1 "
        "(in labels of graph 'toy', vertex 2). Write 1 for each class that a vertex has, and 0 for the others, also where it is unknown. One label per vertex is one column.",
    ),
    "labels as one column": (
        lambda: good(labels=torch.zeros(4, 1, dtype=torch.int64)),
        "array has the wrong form: torch.int64 [4, 1], expected torch.uint8 [num_vertices, 2] for several labels per vertex "
        "(in labels of graph 'toy'). Take the only column, labels[:, 0].long(), and state num_classes.",
    ),
    "label dtype": (
        lambda: good(labels=torch.zeros(4, dtype=torch.int32)),
        "array has the wrong form: torch.int32 [4], expected torch.int64 [num_vertices] "
        "(in labels of graph 'toy'). Convert the labels with .long() (numbers to predict are targets), and state num_classes.",
    ),
    "overlap": (
        lambda: good(splits={"train": mask(0, 1), "val": mask(3), "test": mask(1, 3)}),
        "splits overlap: vertex 1 is in 'train' and in 'test', 1 in all (in splits of graph 'toy'). "
        "Put every vertex into one split at most.",
    ),
    "empty training split": (
        lambda: good(splits={"train": mask(), "val": mask(3)}),
        "the training split is empty: 0 vertices, at least 1 is needed (in split 'train' of graph 'toy'). "
        "Split again, with random_split for example.",
    ),
    "split of unlabelled": (
        lambda: good(splits={"train": mask(0, 2)}),
        "a split holds vertices without a label: vertex 2 has label -1, 1 in all (in split 'train' of graph 'toy'). "
        "Leave vertices of unknown label out of every split.",
    ),
    "split of ids": (
        lambda: good(splits={"train": torch.tensor([0, 1, 2, 3])}),
        "array has the wrong form: torch.int64 [4], expected torch.bool [num_vertices] "
        "(in split 'train' of graph 'toy'). Pass a mask, not vertex ids.",
    ),
    "split name": (
        lambda: good(splits={"training": mask(0)}),
        "unknown split: 'training', expected one of train, val, test (in splits of graph 'toy'). Did you mean 'train'? Choose one of these.",
    ),
    "graph_ptr decreases": (
        lambda: good(graph_ptr=torch.tensor([0, 3, 2, 4]), graph_names=()),
        "graph offsets decrease: 3 then 2 at position 1 "
        "(in graph_ptr of graph 'toy'). Pass offsets that start at 0, never decrease, and end at the number of entries.",
    ),
    "edge joins graphs": (
        lambda: good(graph_ptr=torch.tensor([0, 2, 3, 4]), graph_names=()),
        "an edge joins two graphs: 2 -> 3, from graph 1 to graph 2 "
        "(in edges of graph 'toy', edge 2). Remove the edge, or correct graph_ptr.",
    ),
    "graph names": (
        lambda: good(graph_names=("a",)),
        "graphs and their names differ in number: 1 names, 2 graphs (in graph_names of graph 'toy'). "
        "Pass one name per graph, or none.",
    ),
    "names without offsets": (
        lambda: good(graph_ptr=None),
        "graphs and their names differ in number: 2 names, 0 graphs because there is no graph_ptr "
        "(in graph_names of graph 'toy'). Pass one name per graph, or none.",
    ),
    "edge type too high": (
        lambda: good(topology=with_edges(type=torch.tensor([0, 2, 1]))),
        "edge type out of range: 2, but there are 2 edge types, numbered from 0 "
        "(in edge data 'type' of graph 'toy', edge 1). Number the types from 0, or state the right number of edge types.",
    ),
    "narrow edge type too high": (
        lambda: good(topology=with_edges(type=torch.tensor([0, 200, 1], dtype=torch.uint8)), num_edge_types=200),
        "edge type out of range: 200, but there are 200 edge types, numbered from 0 "
        "(in edge data 'type' of graph 'toy', edge 1). Number the types from 0, or state the right number of edge types.",
    ),
    "edge types missing": (
        lambda: good(topology=make_graph([], 4).topology),
        "edge types are missing: num_edge_types 2, no edge data 'type' (in edge data of graph 'toy'). "
        "Pass edge data 'type', or num_edge_types 0.",
    ),
    "edge type dtype": (
        lambda: good(topology=with_edges(type=torch.zeros(3))),
        "array has the wrong form: torch.float32 [3], expected integers [num_edges] "
        "(in edge data 'type' of graph 'toy'). Convert the types with .to(torch.int64).",
    ),
    "nan weight": (
        lambda: good(topology=with_edges(weight=torch.tensor([1.0, nan, inf]))),
        "edge data 'weight' is not finite: nan "
        "(in edge data 'weight' of graph 'toy', edge 1). Replace NaN and infinite values, with torch.nan_to_num for example.",
    ),
    "integer weight": (
        lambda: good(topology=with_edges(weight=torch.tensor([1, 2, 3]))),
        "array has the wrong form: torch.int64 [3], expected floating point [num_edges] "
        "(in edge data 'weight' of graph 'toy'). Convert the weights with .float(), one per edge.",
    ),
    "source out of range": (
        lambda: good(
            topology=Topology(
                indptr=torch.tensor([0, 1, 1, 1, 2]), indices=torch.tensor([1, 4]), num_src=4, validate=False
            ),
            num_edge_types=0,
        ),
        "source id out of range: 4, but there are 4 vertices, numbered from 0 "
        "(in Topology.indices, edge 1). Number the vertices from 0 without gaps, or state the right number of vertices.",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_every_fault_has_its_message(case, monkeypatch):
    # What is wrong stands in a slice behind the first one, and not at its begin.
    monkeypatch.setattr(checks_module, "CHECKED_AT_ONCE", 2)
    make, message = CASES[case]
    with pytest.raises(InputError) as error:
        validate_graph(make())
    assert str(error.value) == message


def test_a_good_graph_passes(monkeypatch):
    monkeypatch.setattr(checks_module, "CHECKED_AT_ONCE", 1)
    validate_graph(good())
    validate_graph(good(features=sparse(torch.eye(4)), labels=torch.zeros(4, 2, dtype=torch.uint8)))
    types = torch.tensor([0, 255, 128], dtype=torch.uint8)
    validate_graph(good(topology=with_edges(type=types), num_edge_types=256))
    validate_graph(Graph(topology=make_graph([], 0).topology, features=torch.zeros(0, 5)))
    validate_graph(Graph(topology=make_graph([], 3).topology, features=torch.zeros(3, 0)))


@given(graphs())
def test_any_sound_graph_passes(graph):
    splits = {name: part & (graph.labels >= 0) for name, part in graph.splits.items()}
    validate_graph(replace(graph, splits={name: part for name, part in splits.items() if part.any()}))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_fault_on_the_gpu_is_named_like_one_on_the_cpu():
    validate_graph(good().to("cuda"))
    graph = good(features=sparse(torch.tensor([[0.0], [0.0], [nan], [1.0]])))
    with pytest.raises(InputError, match=r"not finite: nan .*vertex 2, column 0"):
        validate_graph(graph.to("cuda"))


def test_a_split_may_hold_vertices_without_a_label_that_have_targets():
    split = {"train": mask(0, 2)}
    validate_graph(good(targets=torch.zeros(4), splits=split))
    with pytest.raises(InputError, match="a split holds vertices without a label"):
        validate_graph(good(splits=split))
