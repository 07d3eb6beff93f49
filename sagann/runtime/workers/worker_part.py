"""WorkerPart: what a worker holds of a prepared graph: its topology and the features of its own vertices."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from torch import Tensor

from sagann.graph import Graph
from sagann.graph.constant import declare_constant
from sagann.graph.feature_store import feature_store, read_slice
from sagann.graph.large_arrays import empty_array
from sagann.graph.rows import csr_slice, is_sparse
from sagann.kernels.row_dropout import rows_of
from sagann.partition import part_of
from sagann.runtime.workers.group import Workers
from sagann.runtime.workers.halo_blocks import HaloBlocks
from sagann.runtime.workers.part_topology import Halo, PartTopology


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class WorkerPart:
    """A worker's part of a graph that the model has prepared."""

    workers: Workers
    "All workers."
    topology: PartTopology
    "The in-edges of the worker's own vertices, with edge data as the whole graph has it."
    features: Tensor
    "Features of the worker's own vertices [num_own, F]: dense, or torch.sparse_csr."
    first_value: int
    "Number of non-zeros in the features of the vertices before; 0 for dense features."
    num_edges: int
    "Number of edges of the whole graph."

    @property
    def bounds(self) -> tuple[int, ...]:
        """Bounds of the ranges of vertices that the workers own."""
        return self.topology.part.bounds

    @property
    def vertices(self) -> slice:
        """Ids in the graph of the worker's own vertices."""
        return self.topology.part.vertices

    def hops(self, k: int) -> list[PartTopology]:
        """The topologies that a model of k layers walks: k times the part's."""
        return [self.topology] * k

    @property
    def blocks(self) -> HaloBlocks:
        """The exchange of the halo where the part is streamed."""
        return HaloBlocks(
            self.topology.halo,
            first_vertex=self.vertices.start,
            first_value=self.first_value,
        )

    @contextmanager
    def computing(self) -> Iterator[None]:
        """Inside the ``with`` block, dropouts drop what they would drop of these rows in the whole graph."""
        with rows_of(self.vertices, first_value=self.first_value):
            yield

    def gather(self, own: Tensor, doing: str) -> Tensor:
        """The rows of all vertices, from each worker's own."""
        return self.workers.gather_rows(own, self.bounds, doing)


def worker_part(graph: Graph, workers: Workers, *, opened: Graph) -> WorkerPart:
    """A worker's part of a prepared graph with features. All workers call this at the same time.

    Of edges, edge data and features, the worker's slices alone are read.

    Args:
        graph: the graph as the model has prepared it.
        workers: all workers.
        opened: the same graph before it was prepared, which may be mapped from files. Slices of its arrays are not copied; slices of
            arrays that the model has made are, so that these arrays can be freed.
    """
    topology, features = graph.topology, graph.features
    assert features is not None
    part = part_of(topology, workers.bounds(topology.indptr), workers.rank)
    kept = {id(rows) for rows in (opened.features, *opened.topology.edge_data.values())}
    data = {name: _alone(rows[part.edges], id(rows) in kept) for name, rows in topology.edge_data.items()}
    start, stop = part.vertices.start, part.vertices.stop
    first_value = 0
    if is_sparse(features):
        first_value = int(features.crow_indices()[start])
        own = csr_slice(features, start, stop)
    else:
        own = read_slice(feature_store(features), start, stop)
    return WorkerPart(
        workers=workers,
        topology=PartTopology(part, Halo(part, workers), data),
        features=declare_constant(_alone(own, id(features) in kept)),
        first_value=first_value,
        num_edges=graph.num_edges,
    )


def _alone(rows: Tensor, is_kept: bool) -> Tensor:
    """Rows that keep no larger array in memory, unless that is kept anyway."""
    if is_kept:
        return rows
    # Where a streamed part is made, large arrays lie in files.
    return rows.clone() if is_sparse(rows) else empty_array(rows.shape, rows.dtype, rows.device).copy_(rows)
