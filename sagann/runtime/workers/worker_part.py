"""WorkerPart: what a worker holds of a prepared graph: its topology and the features of its own vertices.

Between epochs a part may move: it then has other vertices, and those who hold it see these.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from sagann.errors import InputError
from sagann.graph import Graph, Topology
from sagann.graph.feature_store import Features, declare_constant, feature_store, read_slice
from sagann.graph.large_arrays import empty_array
from sagann.graph.rows import csr_slice, is_sparse, mapped_rows
from sagann.kernels.row_dropout import rows_of
from sagann.partition import part_of
from sagann.runtime.workers.exchange import HaloBlocks
from sagann.runtime.workers.group import Workers
from sagann.runtime.workers.halo import Halo
from sagann.runtime.workers.move import entries_before, moved_edges, moved_features


@dataclass(kw_only=True, slots=True, eq=False)
class WorkerPart:
    """A worker's part of a graph that the model has prepared. :meth:`move` alone changes it."""

    workers: Workers
    halo: Halo
    "The worker's vertices and edges, and the exchange of rows with the others."
    topology: Topology
    "The in-edges of the worker's own vertices, with edge data as the whole graph has it."
    features: Tensor
    "Features of the worker's own vertices [num_own, F]: dense, or torch.sparse_csr."
    first_value: int
    "Number of non-zeros in the features of the vertices before; 0 for dense features."
    num_edges: int
    first_bounds: tuple[int, ...]
    "Bounds that the workers begin with, by their policy."
    opened_features: Features | None
    "Features of the whole graph as it was opened, if ``features`` are rows of these; None if the model has made others."
    made_s: float
    "Seconds that the part took to make, or to move, the last time."

    @property
    def bounds(self) -> tuple[int, ...]:
        return self.halo.part.bounds

    @property
    def vertices(self) -> slice:
        return self.halo.part.vertices

    def hops(self, k: int) -> list[Topology]:
        """The topologies that a model of k layers walks: k times the part's."""
        return [self.topology] * k

    @property
    def blocks(self) -> HaloBlocks:
        """The exchange of the halo where the part is streamed."""
        return HaloBlocks(self.halo, first_value=self.first_value)

    @contextmanager
    def computing(self) -> Iterator[None]:
        """Inside the ``with`` block, dropouts drop what they would drop of these rows in the whole graph."""
        with rows_of(self.vertices, first_value=self.first_value):
            yield

    def move(self, bounds: Sequence[int]) -> None:
        """Give the part other vertices. All workers call this at the same time, with the same bounds.

        Edges, edge data and features that the model has made travel; features as the graph was opened are read anew. What was kept of the
        part is dropped, such as gathers of constant features.
        """
        began_s = time.perf_counter()
        before, workers = self.bounds, self.workers
        part, data = moved_edges(self.halo.part, self.topology.edge_data, bounds, workers)
        if self.opened_features is not None:
            features, first_value = _own_features(self.opened_features, part.vertices)
            features = _on(features, self.features.device)
        else:
            features = moved_features(self.features, before, bounds, workers)
            first_value = entries_before(features.values().numel(), workers) if is_sparse(features) else 0
        self.halo = Halo(part, workers, timeout_s=None)
        self.topology = self.halo.topology(data)
        self.features, self.first_value = declare_constant(features), first_value
        self.made_s = time.perf_counter() - began_s


def worker_part(
    graph: Graph,
    workers: Workers,
    *,
    opened: Graph,
    device: torch.device | str = "cpu",
    bounds: Sequence[int] | None = None,
) -> WorkerPart:
    """A worker's part of a prepared graph with features. All workers call this at the same time, with bounds or for those of their policy.

    Of edges, edge data and features, the worker's slices alone are read. Slices of the arrays of ``opened``, the graph before it was
    prepared, are not copied; slices of arrays that the model has made are, so that these arrays can be freed.

    Raises:
        InputError: features or edge data require a gradient.
    """
    began_s = time.perf_counter()
    device = torch.device(device)
    topology, features = graph.topology, graph.features
    assert features is not None
    _require_constant(graph)
    bounds = workers.bounds(topology.indptr) if bounds is None else bounds
    part = part_of(topology, bounds, workers.rank).to(device)
    kept = {id(rows) for rows in opened.topology.edge_data.values()}
    data = {name: _alone(rows[part.edges], id(rows) in kept, device) for name, rows in topology.edge_data.items()}
    is_opened = features is opened.features
    own, first_value = _own_features(features, part.vertices)
    halo = Halo(part, workers)
    return WorkerPart(
        workers=workers,
        halo=halo,
        topology=halo.topology(data),
        features=declare_constant(_alone(own, is_opened, device)),
        first_value=first_value,
        num_edges=graph.num_edges,
        first_bounds=part.bounds,
        opened_features=features if is_opened else None,
        made_s=time.perf_counter() - began_s,
    )


def _require_constant(graph: Graph) -> None:
    """Refuse rows that learn: each worker would train its own, and no other one would see them."""
    for name, rows in {"features": graph.features, **graph.topology.edge_data}.items():
        if isinstance(rows, Tensor) and rows.requires_grad:
            raise InputError(
                f"features and edge data that learn are not divided among workers: '{name}' requires a "
                f"gradient (in graph '{graph.name}')",
                hint="Train in one process, or detach it, and keep what learns among the model's parameters.",
            )


def _own_features(features: Features, vertices: slice) -> tuple[Tensor, int]:
    """The rows of some vertices, and the number of non-zeros before them, if the features are sparse."""
    start, stop = vertices.start, vertices.stop
    if is_sparse(features):
        return csr_slice(features, start, stop), int(features.crow_indices()[start])
    return read_slice(feature_store(features), start, stop), 0


def _alone(rows: Tensor, is_kept: bool, device: torch.device) -> Tensor:
    """Rows on a device that keep no larger array in memory, unless that is kept anyway."""
    if rows.device != device:
        return _on(rows, device)
    if is_kept:
        return rows
    # Where a streamed part is made, large arrays lie in files.
    return rows.clone() if is_sparse(rows) else empty_array(rows.shape, rows.dtype, rows.device).copy_(rows)


def _on(rows: Tensor, device: torch.device) -> Tensor:
    # .to() would check the offsets and columns of sparse rows again.
    found = mapped_rows(rows, lambda array: array.to(device))
    assert found is not None
    return found
