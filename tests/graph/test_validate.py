from dataclasses import replace
from functools import partial

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


SPARSE = partial(csr_tensor, num_columns=3)
OFFSETS, COLUMNS = torch.tensor([0, 1, 1, 2, 2]), torch.tensor([2, 0])
OUTSIDE = Topology(indptr=torch.tensor([0, 1, 1, 1, 2]), indices=torch.tensor([1, 4]), num_src=4, validate=False)
TARGETS = torch.tensor([[0.0, 1.0], [2.0, nan], [0.0, 0.0], [0.0, 0.0]])
SETS = torch.tensor([[0, 1], [1, 1], [0, 2], [0, 0]], dtype=torch.uint8)

CASES = [
    (
        {"targets": TARGETS},
        r"target .*nan in column 1 \(in targets of graph 'toy', vertex 1\). Write any finite number",
    ),
    (
        {"targets": torch.zeros(4).double()},
        r"float64 \[4\], expected torch.float32 \[num_vertices\], or .*\.float\(\)",
    ),
    (
        {"graph_labels": torch.tensor([0, 3]), "num_graph_classes": 3},
        r"label out of range: 3, but there are 3 classes.*graph_labels of graph 'toy', graph 1\)",
    ),
    (
        {"graph_splits": {"train": torch.zeros(2).bool()}},
        r"empty: 0 graphs.*graph_split 'train'.*random_graph_split",
    ),
    ({"features": features(2, 1, nan)}, r"feature is not finite: nan in column 1 .*'toy', vertex 2\).*nan_to_num"),
    ({"features": sparse(features(1, 2, nan) + features(0, 1, 5.0))}, r"feature .*: nan .*vertex 1, column 2\)"),
    (
        {"features": SPARSE(torch.tensor([0, 0, 1, 2, 2]), torch.tensor([2, 3]), torch.ones(2))},
        r"feature column out of range: 3, but there are 3 features, .*vertex 2, column 3\)",
    ),
    (
        {"features": SPARSE(torch.tensor([0, 2, 1, 2, 2]), COLUMNS, torch.ones(2))},
        r"offsets of sparse features decrease: 2 then 1 at position 1",
    ),
    ({"features": SPARSE(OFFSETS, COLUMNS, torch.ones(1))}, r"2 columns and 1 values .*check_invariants=True"),
    ({"features": torch.zeros(4, 3).to_sparse()}, r"layout .*: torch.sparse_coo, expected .*to_sparse_csr\(\)"),
    (
        {"features": torch.zeros(4, 3).long()},
        r"int64 \[4, 3\], expected floating point \[num_vertices, num_features\]",
    ),
    (
        {"original_ids": torch.tensor([0, 1, 4, 2])},
        r"id out of range: 4, but there are 4 .*original_ids .*position 2\)",
    ),
    ({"original_ids": torch.tensor([0, 1, 3, 1])}, r"vertex repeated: 1 stands more than once .*original_ids"),
    (
        {"labels": torch.tensor([0, 2, -1, 1])},
        r"label out of range: 2, but there are 2 classes.*labels .*vertex 1\)",
    ),
    ({"labels": SETS}, r"label out of range: \[0, 2\], but multi-label rows hold 0 and 1 .*vertex 2\)"),
    (
        {"labels": torch.zeros(4, 1).long()},
        r"int64 \[4, 1\], expected torch.uint8 \[num_vertices, 2\].*labels\[:, 0\]",
    ),
    ({"labels": torch.zeros(4).int()}, r"int32 \[4\], expected torch.int64 \[num_vertices\] .*\.long\(\)"),
    (
        {"splits": {"train": mask(0, 1), "val": mask(3), "test": mask(1, 3)}},
        r"splits overlap: vertex 1 is in 'train' and in 'test', 1 in all",
    ),
    (
        {"splits": {"train": mask(), "val": mask(3)}},
        r"empty: 0 vertices.*split 'train' of graph 'toy'.*random_split",
    ),
    ({"splits": {"train": mask(0, 2)}}, r"without a label: vertex 2 has label -1, 1 in all \(in split 'train'"),
    ({"splits": {"train": torch.arange(4)}}, r"int64 \[4\], expected torch.bool .*Pass a mask, not vertex ids"),
    ({"splits": {"training": mask(0)}}, r"unknown split: 'training', expected .*Did you mean 'train'"),
    (
        {"graph_ptr": torch.tensor([0, 3, 2, 4]), "graph_names": ()},
        r"graph offsets decrease: 3 then 2 at position 1",
    ),
    (
        {"graph_ptr": torch.tensor([0, 2, 3, 4]), "graph_names": ()},
        r"an edge joins two graphs: 2 -> 3, from graph 1 to graph 2 \(in edges of graph 'toy', edge 2\)",
    ),
    ({"graph_names": ("a",)}, r"differ in number: 1 names, 2 graphs \(in graph_names"),
    ({"graph_ptr": None}, r"2 names, 0 graphs because there is no graph_ptr"),
    (
        {"topology": with_edges(type=torch.tensor([0, 2, 1]))},
        r"type out of range: 2, but there are 2 .*'type'.*edge 1\)",
    ),
    (
        {"topology": with_edges(type=torch.tensor([0, 200, 1], dtype=torch.uint8)), "num_edge_types": 200},
        r"type out of range: 200, but there are 200 edge types",
    ),
    ({"topology": make_graph([], 4).topology}, r"edge types are missing: num_edge_types 2, no edge data 'type'"),
    ({"topology": with_edges(type=torch.zeros(3))}, r"float32 \[3\], expected integers \[num_edges\] .*'type'"),
    (
        {"topology": with_edges(weight=torch.tensor([1.0, nan, inf]))},
        r"edge data 'weight' is not finite: nan .*edge 1\)",
    ),
    (
        {"topology": with_edges(weight=torch.arange(3))},
        r"int64 \[3\], expected floating point \[num_edges\] .*'weight'",
    ),
    ({"topology": OUTSIDE, "num_edge_types": 0}, r"source id out of range: 4, but there are 4 .*indices, edge 1\)"),
]


@pytest.mark.parametrize(("changes", "message"), CASES, ids=[message for _, message in CASES])
def test_every_fault_is_named(changes, message, monkeypatch):
    # What is wrong stands in a slice behind the first one, and not at its begin.
    monkeypatch.setattr(checks_module, "CHECKED_AT_ONCE", 2)
    with pytest.raises(InputError, match=message):
        validate_graph(good(**changes))


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
