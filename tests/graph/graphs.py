"""Graphs for tests: a Hypothesis strategy, and a plain list of edges to compare with."""

from __future__ import annotations

import torch
from hypothesis import strategies as st

from sagann.graph import Graph, Topology
from sagann.graph.rows import csr_tensor


@st.composite
def graphs(draw, *, typed=None, weighted=None, max_vertices=12, max_edges=40):
    """A graph with multi-edges, self-loops and isolated vertices; integer weights keep sums exact."""
    n = draw(st.integers(0, max_vertices))
    num_edges = draw(st.integers(0, max_edges)) if n else 0
    vertex = st.integers(0, max(n - 1, 0))
    src = draw(st.lists(vertex, min_size=num_edges, max_size=num_edges))
    dst = draw(st.lists(vertex, min_size=num_edges, max_size=num_edges))
    data = {"number": torch.arange(num_edges, dtype=torch.float64).reshape(-1, 1) + 0.5}
    num_edge_types = 0
    if draw(st.booleans()) if typed is None else typed:
        num_edge_types = draw(st.integers(1, 3))
        types = st.integers(0, num_edge_types - 1)
        data["type"] = torch.tensor(
            draw(st.lists(types, min_size=num_edges, max_size=num_edges)),
            dtype=draw(st.sampled_from([torch.uint8, torch.int32, torch.int64])),
        )
    if draw(st.booleans()) if weighted is None else weighted:
        weights = draw(st.lists(st.integers(1, 5), min_size=num_edges, max_size=num_edges))
        data["weight"] = torch.tensor(weights, dtype=draw(st.sampled_from([torch.float32, torch.float64])))
    ids = draw(st.sampled_from([torch.int32, torch.int64]))
    topology = Topology.from_coo(
        src=torch.tensor(src, dtype=ids), dst=torch.tensor(dst, dtype=ids), num_src=n, edge_data=data
    )
    return Graph(
        topology=topology,
        features=torch.arange(n * 3, dtype=torch.float32).reshape(n, 3),
        labels=torch.arange(n) % 3 - 1,
        num_classes=2,
        splits={"train": torch.arange(n) % 4 == 1, "val": torch.arange(n) % 4 == 2},
        num_edge_types=num_edge_types,
    )


def make_graph(edges, n, **data):
    """A graph of (src, dst) pairs with named edge data in the same order."""
    pairs = torch.tensor(edges, dtype=torch.int64).reshape(-1, 2)
    topology = Topology.from_coo(src=pairs[:, 0], dst=pairs[:, 1], num_src=n, edge_data=data)
    return Graph(topology=topology, num_edge_types=int(data["type"].max()) + 1 if "type" in data else 0)


def edges_of(graph_or_topology, *names):
    """Every edge as (src, dst, *data) in CSC order."""
    topology = graph_or_topology if isinstance(graph_or_topology, Topology) else graph_or_topology.topology
    columns = [topology.indices.tolist()]
    columns.append([v for v, d in enumerate(topology.indptr.diff().tolist()) for _ in range(d)])
    columns += [topology.edge_data[name].flatten().tolist() for name in names]
    return list(zip(*columns, strict=True))


def sparse(dense):
    """A dense matrix as torch.sparse_csr, built without torch's own conversion."""
    offsets = torch.zeros(len(dense) + 1, dtype=torch.int64)
    offsets[1:] = (dense != 0).sum(1).cumsum(0)
    rows, columns = dense.nonzero(as_tuple=True)
    return csr_tensor(offsets, columns, dense[rows, columns], num_columns=dense.shape[1])
