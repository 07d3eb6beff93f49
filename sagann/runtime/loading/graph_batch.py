"""GraphBatch: some of many graphs side by side, as one topology."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from sagann.graph.graph import Graph
from sagann.graph.rows import gather_ranges, mapped_rows, offsets_of, row_arrays
from sagann.graph.topology import Topology


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class GraphBatch:
    """All that a training step needs of some graphs: ``model(batch.hops(model.num_hops), batch.features)`` gives a row per vertex, and
    ``sagann.nn.pool(rows, batch.graph_ptr)`` a row per graph.
    """

    topology: Topology
    "The edges of all graphs of the batch, with their edge data; no edge joins two graphs."
    features: Tensor | None
    "Features of the vertices, [num_vertices, F], dense or ``torch.sparse_csr``; None where there are none."
    graph_ptr: Tensor
    "Offsets of the graphs, int64 [num_graphs + 1]: the graph in place g has the vertices graph_ptr[g] to graph_ptr[g + 1] - 1."
    graphs: Tensor
    "Numbers of the graphs among all graphs, int64 [num_graphs]."
    vertices: Tensor
    "Ids of the vertices among those of all graphs, int64 [num_vertices]."
    graph_labels: Tensor | None
    "Labels of the graphs, int64 [num_graphs] or uint8 [num_graphs, num_graph_classes]; None where there are none."
    graph_targets: Tensor | None
    "Targets of the graphs, float32 [num_graphs] or [num_graphs, num_graph_targets]; None where there are none."

    @property
    def num_graphs(self) -> int:
        """Number of graphs in the batch."""
        return len(self.graphs)

    @property
    def num_vertices(self) -> int:
        """Number of vertices in the batch."""
        return self.topology.num_dst

    @property
    def num_edges(self) -> int:
        """Number of directed edges in the batch."""
        return self.topology.num_edges

    def hops(self, k: int) -> list[Topology]:
        """The k topologies that a k-layer model walks: k times the topology of the batch."""
        return [self.topology] * k

    @property
    def feature_arrays(self) -> tuple[Tensor, ...]:
        """The arrays of the features: one of dense features, three of sparse ones."""
        return row_arrays(self.features)

    def mapped(self, move: Callable[[Tensor], Tensor]) -> GraphBatch:
        """The same batch with every array replaced by the result of ``move``, for example a copy on a device."""
        return replace(
            self,
            topology=self.topology.mapped(move),
            features=mapped_rows(self.features, move),
            graph_ptr=move(self.graph_ptr),
            graphs=move(self.graphs),
            vertices=move(self.vertices),
            graph_labels=None if self.graph_labels is None else move(self.graph_labels),
            graph_targets=None if self.graph_targets is None else move(self.graph_targets),
        )

    def to(self, device: torch.device | str) -> GraphBatch:
        """The same batch on ``device``."""
        return self.mapped(lambda array: array.to(device))


def side_by_side(graph: Graph, graphs: Tensor) -> tuple[Topology, Tensor, Tensor]:
    """The topology of some graphs side by side, cut from that of all graphs.

    In CSC the in-edges of a graph's vertices are one range, as the vertices are. So a batch is a gather of ranges, and every id moves
    with its graph.

    Args:
        graph: several graphs in one, none of whose edges joins two of them.
        graphs: int64 [B], numbers of graphs.
    Returns:
        the topology, its graphs' offsets int64 [B + 1], and its vertices' ids in ``graph``.
    Raises:
        LayerError: edges were overwritten.
    """
    graph.topology.require_unwritten()
    topology, all_graphs = graph.topology, graph.graph_ptr
    assert all_graphs is not None
    graph_ptr, vertices = gather_ranges(all_graphs, graphs)
    starts, ends = all_graphs[graphs], all_graphs[graphs + 1]
    edge_starts = topology.indptr[starts]
    edge_counts = topology.indptr[ends] - edge_starts
    edge_ptr = offsets_of(edge_counts)
    num_edges = int(edge_ptr[-1])

    def per_edge(values: Tensor) -> Tensor:
        return torch.repeat_interleave(values, edge_counts, output_size=num_edges)

    edges = torch.arange(num_edges) + per_edge(edge_starts - edge_ptr[:-1])
    indices = topology.indices[edges]
    indices += per_edge((graph_ptr[:-1] - starts).to(indices.dtype))
    degrees = topology.indptr[vertices + 1] - topology.indptr[vertices]
    joined = Topology(
        indptr=offsets_of(degrees),
        indices=indices,
        num_src=len(vertices),
        edge_data={name: rows[edges] for name, rows in topology.edge_data.items()},
        validate=False,
    )
    return joined, graph_ptr, vertices
