"""PartApart: a worker's edges apart by whether their sources are its own vertices or in the halo, and the exchange between the two.

The engine gathers the edges inside the part while the halo's rows travel (:mod:`sagann.runtime.gather`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from torch import Tensor

from sagann.graph.topology import Topology
from sagann.graph.transform import keep_edges

if TYPE_CHECKING:
    from sagann.runtime.workers.part_topology import Halo


@dataclass(frozen=True, kw_only=True, slots=True)
class PartApart:
    """The edges inside a part, and those that come from the halo.

    Beside the part they take 8 bytes per edge where ids have 32 bits, 16 bytes per own vertex, the edge data once more, and for the
    backward pass the out-edges of both.
    """

    halo: Halo
    "Exchanges rows."
    inner: Topology
    "See :class:`sagann.graph.edges_apart.EdgesApart`."
    outer: Topology
    "See :class:`sagann.graph.edges_apart.EdgesApart`."

    @classmethod
    def of(cls, topology: Topology, halo: Halo) -> PartApart:
        """The edges of a worker's part, apart."""
        is_inner = topology.indices < halo.num_own
        return cls(
            halo=halo,
            inner=_renumbered(keep_edges(topology, is_inner, with_ids=True), 0, halo.num_own),
            outer=_renumbered(
                keep_edges(topology, ~is_inner, with_ids=True),
                halo.num_own,
                # A topology has at least as many sources as destinations.
                max(halo.num_own, halo.num_src - halo.num_own),
            ),
        )

    def with_data_of(self, topology: Topology) -> PartApart:
        """The same edges with the edge data of a topology of all of them."""
        return replace(self, inner=_with_data(self.inner, topology), outer=_with_data(self.outer, topology))

    def begin(self, rows: Mapping[str, Tensor], *, keeps: bool) -> RowsOfHalo:
        """See :meth:`sagann.graph.edges_apart.EdgesApart.begin`."""
        return RowsOfHalo(self.halo, rows, keeps=keeps)


class RowsOfHalo:
    """Rows of the halo on their way; see :class:`sagann.graph.edges_apart.RowsUnderWay`.

    Args:
        halo: exchanges rows.
        rows: own rows that others read, by name.
        keeps: whether rows of constant features are kept for later epochs.
    """

    def __init__(self, halo: Halo, rows: Mapping[str, Tensor], *, keeps: bool) -> None:
        self._halo = halo
        self._number = halo.exchanged(rows)
        self._found: dict[str, Tensor] = {}
        self._finishes: list[Callable[[], None]] = []
        for name, own in rows.items():
            self._found[name], finish = halo.rows(own, keeps=keeps)
            self._finishes.append(finish)

    def wait(self) -> Mapping[str, Tensor]:
        """The rows, by name: [num_halo, ...]. Called once."""
        # Nothing is held until the backward but what the engine keeps.
        finishes, self._finishes = self._finishes, []
        found, self._found = self._found, {}
        for finish in finishes:
            finish()
        return found

    def give_back(self, grad: Tensor) -> Callable[[Tensor], None]:
        """Begin to send the gradient of the halo's rows [num_halo or more, ...] to their owners."""
        return self._halo.give_back(grad[: self._halo.num_src - self._halo.num_own])

    def end(self) -> None:
        """Say that all gradients have been given back."""
        self._halo.workers.stopwatch.give_back(self._number)


def _with_data(edges: Topology, topology: Topology) -> Topology:
    assert edges.edge_ids is not None
    ids = edges.edge_ids
    return edges.with_edge_data(**{name: rows.index_select(0, ids) for name, rows in topology.edge_data.items()})


def _renumbered(topology: Topology, first: int, num_src: int) -> Topology:
    """The same edges with sources counted from ``first``."""
    return Topology(
        indptr=topology.indptr,
        indices=topology.indices - first if first else topology.indices,
        num_src=num_src,
        edge_data=topology.edge_data,
        edge_ids=topology.edge_ids,
        validate=False,
    )
