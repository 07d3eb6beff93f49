"""Remote: the other workers that own sources of a part of a graph, as engines see them.

The topology of a part has its own vertices as destinations and first sources, and behind these the halo, whose rows other workers send. The
protocols are implemented by :mod:`sagann.runtime.workers.halo`.
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
        """Begin to send the gradient of rows that have come to their owners.

        The result, called with the gradient of the own rows, adds to it what other workers send back, in the order of the ranks.
        """

    def end(self) -> None:
        """Say that all gradients have been given back."""


class Remote(Protocol):
    """Other workers that own sources of a part. All workers call its methods at the same times."""

    @property
    def first_edge(self) -> int:
        """Id in the graph of the part's first edge: random numbers of edges go by the ids in the graph."""

    @property
    def inner(self) -> Topology:
        """The edges whose sources are own vertices, in the same order, without edge data, with ids in the whole part."""

    @property
    def outer(self) -> Topology:
        """The other edges, likewise, with sources numbered from 0; there may be more sources than rows that come, which no edge has."""

    def begin(self, rows: Mapping[str, Tensor], *, keeps: bool) -> RowsUnderWay:
        """Begin to exchange the rows that the edges read together, by name. With ``keeps``, constant features are kept for later epochs."""

    def complete(self, rows: Mapping[str, Tensor], *, keeps: bool = False) -> Mapping[str, Tensor]:
        """Exchange rows: given those of the own vertices, return those of all sources, [num_src, ...]. Differentiable once."""
