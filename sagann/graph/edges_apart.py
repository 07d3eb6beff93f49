"""EdgesApart: the edges of a worker's part, apart by whether the rows of their sources are given or come from other workers.

The protocols by which an engine gathers the one while the rows for the other travel. A worker's part implements them
(:mod:`sagann.runtime.workers.part_topology`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Protocol

from torch import Tensor

if TYPE_CHECKING:
    from sagann.graph.topology import Topology


class RowsUnderWay(Protocol):
    """Rows that other workers send, and the way back for their gradients."""

    def wait(self) -> Mapping[str, Tensor]:
        """The rows that have come, by name: a row for each source of the outer edges. Called once."""

    def give_back(self, grad: Tensor) -> Callable[[Tensor], None]:
        """Begin to send the gradient of rows that have come to those who own them.

        The result, called with the gradient of the given rows, waits for what other workers send back, and adds it in place, in the
        order of the ranks.
        """

    def end(self) -> None:
        """Say that all gradients have been given back."""


class EdgesApart(Protocol):
    """The edges of a topology in two, both to the same destinations."""

    @property
    def inner(self) -> Topology:
        """The edges whose sources are the rows that a layer is called with, in the same order, with ids in the whole topology."""

    @property
    def outer(self) -> Topology:
        """The other edges, with sources numbered from 0, in the same order, with ids in the whole topology.

        A topology has at least as many sources as destinations, so there may be more sources than rows that come. No edge has
        one of those.
        """

    def begin(self, rows: Mapping[str, Tensor], *, keeps: bool) -> RowsUnderWay:
        """Begin to exchange the rows that the edges read together, by name: send own rows, and receive those of the outer edges.

        With ``keeps``, what has come for constant features is kept for later epochs.
        """
