"""GraphBatches: the batches of an epoch over many graphs, each of which is one topology."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sagann.errors import InputError
from sagann.graph import Graph
from sagann.graph.feature_store import read_rows
from sagann.graph.rows import Arrays, gather_ranges, offsets_of
from sagann.graph.topology import Topology
from sagann.graph.validate import validate_graphs
from sagann.runtime.loading.batches import Batches, chosen, require_graph, size_of_rows
from sagann.runtime.loading.pipeline import Stage


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class GraphBatch(Arrays):
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
        return len(self.graphs)

    @property
    def num_vertices(self) -> int:
        return self.topology.num_dst

    @property
    def num_edges(self) -> int:
        """Number of directed edges in the batch."""
        return self.topology.num_edges

    def hops(self, k: int) -> list[Topology]:
        return [self.topology] * k

    def to(self, device: torch.device | str) -> GraphBatch:
        return self.mapped(lambda array: array.to(device))


def side_by_side(graph: Graph, graphs: Tensor) -> tuple[Topology, Tensor, Tensor]:
    """The topology of some graphs side by side, its graphs' offsets int64 [B + 1], and its vertices' ids in ``graph``.

    In CSC the in-edges of a graph's vertices are one range, as the vertices are. So a batch is a gather of ranges, and every id moves with
    its graph. Edges that were overwritten are a LayerError.
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


class GraphBatches(Batches[GraphBatch]):
    """The batches of many graphs: an iterable that has new ones in every epoch. PyG's ``DataLoader``, for graphs in one :class:`Graph`.

    ``for batch in batches`` goes through the next epoch, the first time through epoch 0; each graph is in one batch of an epoch. Batches
    are made ahead of the loop, on a thread that ends with the loop.

    Args:
        graph: several graphs in one (``graph_ptr``), as the model reads it: ``model.prepare(graph)`` for a model that has ``prepare``.
            Topology and features may be mapped from files, and features may be a feature store.
        batch_size: number of graphs in a batch; the last batch may have fewer.
        graphs: name of a split of graphs, whose graphs with a known answer are taken; or a mask, bool [num_graphs]; or distinct numbers of
            graphs; or None for all graphs.
        shuffle: take the graphs in another random order in each epoch.
        seed: seed of the order.
        drop_last: leave out a last batch that is smaller than the others.
        ahead: most batches that are made before they are asked for; 0 makes each one on the calling thread. None chooses
            (:func:`sagann.runtime.loading.batches.useful_ahead`). Does not change the batches. Where edge data learn, no batch is made ahead.
    Raises:
        InputError: an argument has the wrong form, the graph has no ``graph_ptr`` or an edge that joins two graphs, there is no graph to
            take, or features require a gradient.
    Example:
        >>> from sagann.graph import Topology
        >>> topology = Topology.from_coo(src=torch.tensor([0, 3]), dst=torch.tensor([1, 2]), num_src=5)
        >>> graph = Graph(topology=topology, graph_ptr=torch.tensor([0, 2, 4, 5]), graph_targets=torch.tensor([0.5, 1.5, 2.5]))
        >>> for batch in GraphBatches(graph, batch_size=2, graphs=None, shuffle=False):
        ...     print(batch.graphs.tolist(), batch.graph_ptr.tolist(), batch.topology, batch.graph_targets.tolist())
        [0, 1] [0, 2, 4] Topology(num_src=4, num_dst=4, num_edges=2) [0.5, 1.5]
        [2] [0, 1] Topology(num_src=1, num_dst=1, num_edges=0) [2.5]
    """

    def __init__(
        self,
        graph: Graph,
        *,
        batch_size: int = 32,
        graphs: str | Tensor | Sequence[int] | None = "train",
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
        ahead: int | None = None,
    ) -> None:
        require_graph(graph, "GraphBatches")
        _require_graphs(graph)
        every = torch.arange(graph.num_graphs)
        self.graphs = every if graphs is None else chosen(graph.graphs, graphs, where="GraphBatches.graphs")
        "Numbers of the graphs that are taken, int64."
        super().__init__(
            graph,
            self.graphs,
            "graphs",
            batch_size=batch_size,
            shuffle=shuffle,
            seed=seed,
            drop_last=drop_last,
            ahead=ahead,
            device=torch.device("cpu"),
        )

    def stages(self, epoch: int) -> tuple[tuple[Stage, ...], Callable[[GraphBatch], GraphBatch]]:
        graphs = self.items_of(epoch)
        stage = Stage(
            name="load",
            work=lambda number: self.load(graphs[number][self.team.share_of(len(graphs[number]))]),
            size_of=lambda batch: size_of_rows(batch.features, batch.num_vertices),
        )
        return (stage,), lambda batch: batch

    def load(self, graphs: Tensor) -> GraphBatch:
        """The batch of some graphs, int64 [n]."""
        topology, graph_ptr, vertices = side_by_side(self.graph, graphs)
        labels, targets = self.graph.graph_labels, self.graph.graph_targets
        return GraphBatch(
            topology=topology,
            features=None if self._features is None else read_rows(self._features, vertices),
            graph_ptr=graph_ptr,
            graphs=graphs,
            vertices=vertices,
            graph_labels=None if labels is None else labels.index_select(0, graphs),
            graph_targets=None if targets is None else targets.index_select(0, graphs),
        )


def _require_graphs(graph: Graph) -> None:
    where = f"graph '{graph.name}'"
    if graph.graph_ptr is None:
        raise InputError(
            f"there are no graphs to make batches of: one graph, without graph_ptr (in {where})",
            hint="Pass several graphs in one, with graph_ptr; batches of one graph's vertices are made by sagann.MiniBatches.",
        )
    validate_graphs(graph)
