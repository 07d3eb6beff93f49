"""Mini-batches of whole graphs, and the thread that makes them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from sagann.errors import InputError
from sagann.graph import Graph, Topology, subgraph
from sagann.runtime.loading import GraphBatches
from sagann.storage import load_graph, save_graph
from tests.forks import run_fresh
from tests.graph.graphs import sparse
from tests.runtime.loading.batches import arrays_of, assert_same
from tests.runtime.loading.many_graphs import SIZES, many_graphs
from tests.stores import ComputedRows


def of(graph: Graph | None = None, **options: Any) -> GraphBatches:
    options = {"batch_size": 3, "graphs": None, **options}
    return GraphBatches(many_graphs() if graph is None else graph, **options)


def test_a_batch_is_the_subgraph_of_its_graphs() -> None:
    graph = many_graphs()
    for batch in of(graph, seed=3):
        vertices = torch.cat(
            [torch.arange(int(graph.graph_ptr[g]), int(graph.graph_ptr[g + 1])) for g in batch.graphs]
        )
        expected = subgraph(graph, vertices)
        assert torch.equal(batch.vertices, vertices)
        assert torch.equal(batch.topology.indptr, expected.topology.indptr)
        assert torch.equal(batch.topology.indices, expected.topology.indices)
        assert batch.topology.indices.dtype == graph.topology.indices.dtype
        for name, rows in expected.topology.edge_data.items():
            assert torch.equal(batch.topology.edge_data[name], rows)
        assert torch.equal(batch.features, expected.features)
        assert batch.graph_ptr.diff().tolist() == [SIZES[g] for g in batch.graphs]
        assert torch.equal(batch.graph_labels, graph.graph_labels[batch.graphs])
        assert torch.equal(batch.graph_targets, graph.graph_targets[batch.graphs])
        assert (batch.num_graphs, batch.num_vertices) == (len(batch.graphs), len(vertices))
        assert batch.num_edges == expected.num_edges
        batch.topology.validate()
        assert {array.device.type for array in arrays_of(batch.to("meta"))} == {"meta"}


def test_each_graph_is_in_an_epoch_once() -> None:
    graph = many_graphs()
    for graphs, expected in (
        (None, list(range(11))),
        ("val", [1, 5, 9]),
        (graph.graph_splits["test"], [3, 7]),
        (torch.tensor([8, 2, 5]), [2, 5, 8]),
    ):
        assert torch.cat([batch.graphs for batch in of(graph, graphs=graphs)]).sort().values.tolist() == expected
    in_order = of(graph, graphs=torch.tensor([8, 2, 5]), shuffle=False, batch_size=2)
    assert [batch.graphs.tolist() for batch in in_order] == [[8, 2], [5]]
    assert len(in_order) == 2
    dropped = of(graph, drop_last=True)
    assert [len(batch.graphs) for batch in dropped] == [3, 3, 3]
    assert len(dropped) == 3


def test_graphs_of_unknown_label_are_left_out_of_a_split_unless_they_have_targets() -> None:
    labels = torch.arange(11) % 3 - 1
    graph = replace(many_graphs(), graph_labels=labels, graph_targets=None)
    taken = torch.cat([batch.graphs for batch in of(graph, graphs="train")])
    assert sorted(taken.tolist()) == [g for g in range(0, 11, 2) if labels[g] >= 0]
    with_targets = replace(many_graphs(), graph_labels=labels)
    assert len(of(with_targets, graphs="train").graphs) == 6


def test_sparse_features_stores_and_mapped_graphs_give_the_same_batches(tmp_path: Path) -> None:
    graph = many_graphs()
    expected = list(of(graph))
    for batch, other in zip(of(replace(graph, features=sparse(graph.features))), expected, strict=True):
        assert batch.features.layout == torch.sparse_csr
        assert torch.equal(batch.features.to_dense(), other.features)
    save_graph(graph, tmp_path / "g")
    assert_same(list(of(load_graph(tmp_path / "g"), ahead=2)), expected)
    store = ComputedRows(graph.num_vertices, 4)
    for batch in of(replace(graph, features=store)):
        assert torch.equal(batch.features, store.rows(batch.vertices))
    assert all(batch.features is None for batch in of(replace(graph, features=None)))


def two_graphs(*offsets: int) -> Graph:
    """Vertices in a row, each joined to the next one."""
    ids = torch.arange(3)
    topology = Topology.from_coo(src=ids, dst=ids + 1, num_src=4)
    return Graph(topology=topology, graph_ptr=torch.tensor(offsets))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"graph": many_graphs().topology}, r"Open it with sagann\.load_graph"),
        ({"graph": Graph(topology=many_graphs().topology)}, r"one graph, without graph_ptr .*sagann\.MiniBatches"),
        ({"graph": two_graphs(0, 5, 4)}, "graph offsets decrease: 5 then 4 at position 1"),
        ({"graph": two_graphs(0, 2, 3)}, "graph offsets have the wrong ends: from 0 to 3, expected 0 to 4"),
        ({"graph": two_graphs(0, 1, 4)}, "an edge joins two graphs: 0 -> 1, from graph 0 to graph 1"),
        (
            {"graph": replace(many_graphs(), graph_splits={}), "graphs": "train"},
            "'train', there are none .*random_graph_s",
        ),
        ({"graphs": torch.empty(0, dtype=torch.int64)}, "an epoch has no batch: 0 graphs, batch_size 3"),
        ({"batch_size": 12, "drop_last": True}, "11 graphs, batch_size 12 .*Leave drop_last out"),
        ({"batch_size": 0}, "batch_size is out of range: 0, expected an integer from 1 to"),
        (
            {"graphs": torch.tensor([3, 11])},
            r"11, but there are 11 graphs, .* \(in GraphBatches\.graphs, position 1\)",
        ),
        ({"graphs": torch.tensor([3, 4, 3])}, "graph repeated: 3 stands more than once"),
        ({"graphs": torch.ones(40, dtype=torch.bool)}, r"torch\.bool \[40\], expected torch\.bool \[11\]"),
        ({"shuffle": 1}, "Pass True or False"),
    ],
)
def test_bad_arguments_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        of(**options)


PROGRAM = """
import threading, torch
from sagann.runtime.loading.serial_thread import work_serially
torch.set_num_threads(4)
found = []
def body():
    work_serially()
    torch.ones(1 << 20).index_select(0, torch.arange(1 << 20))
    found.append(torch.get_num_threads())
thread = threading.Thread(target=body)
thread.start()
thread.join()
other = threading.Thread(target=lambda: found.append(torch.get_num_threads()))
other.start()
other.join()
print(*found, torch.get_num_threads(), "mkl_get_max_threads() : 4" in torch.__config__.parallel_info())
"""


def test_only_the_calling_thread_is_serial() -> None:
    assert run_fresh(PROGRAM).split() == ["1", "4", "4", "True"]
