"""PassEdges: edges grouped by one end, for passes that reduce to that end.

A topology serves passes to either end. A chunk of a grid is copied for one pass at a time, so it has only the arrays of that
pass: offsets, the other ends, edge data in the order of the pass, and the edges' ids where the pass asks for ids. Ids and
offsets are as narrow as the chunk allows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from sagann.graph.topology import Csr, Topology


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class PassEdges:
    """The edges of a chunk, for passes at one end.

    Example:
        >>> topology = Topology.from_coo(src=torch.tensor([1, 0]), dst=torch.tensor([0, 1]), num_src=2)
        >>> edges = PassEdges.of(topology, "src")
        >>> edges.indptr.tolist(), edges.indices.tolist(), edges.edge_ids.tolist()
        ([0, 1, 2], [1, 0], [1, 0])
    """

    at: Literal["dst", "src"]
    "The end by which the edges are grouped."
    indptr: Tensor
    "int32 or int64 [num_rows + 1]: offsets of the rows at that end."
    indices: Tensor
    "int16, int32 or int64 [num_edges]: vertex at the other end of every edge."
    num_others: int
    edge_ids: Tensor | None = None
    "Position of every edge in CSC order [num_edges]; None in CSC order, and where no pass asks for ids."
    edge_data: Mapping[str, Tensor] = field(default_factory=dict)
    "Edge data by name, a row for every edge, in the order of ``indices``."
    _derived: dict[object, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, topology: Topology, at: Literal["dst", "src"]) -> PassEdges:
        """A topology's edges, for passes at one end."""
        indptr, indices, data = topology.indptr, topology.indices, topology.edge_data
        if at == "dst":
            return cls(at=at, indptr=indptr, indices=indices, num_others=topology.num_src, edge_data=data)
        csr = topology.csr()
        return cls(
            at=at,
            indptr=csr.indptr,
            indices=csr.indices,
            num_others=topology.num_dst,
            edge_ids=csr.edge_ids,
            edge_data={name: rows.index_select(0, csr.edge_ids) for name, rows in data.items()},
        )

    @property
    def num_rows(self) -> int:
        """Number of vertices at the end by which the edges are grouped."""
        return self.indptr.shape[0] - 1

    @property
    def num_src(self) -> int:
        """Number of sources."""
        return self.num_rows if self.at == "src" else self.num_others

    @property
    def num_dst(self) -> int:
        """Number of destinations."""
        return self.num_rows if self.at == "dst" else self.num_others

    @property
    def num_edges(self) -> int:
        """Number of edges."""
        return self.indices.shape[0]

    @property
    def device(self) -> torch.device:
        """Device of the arrays."""
        return self.indices.device

    def holds(self, array: Tensor) -> bool:
        """Whether an array is data of these edges, in their order."""
        return any(array is rows for rows in self.edge_data.values())

    def derived(self, key: object, build: Callable[[], Any]) -> Any:
        """The result of ``build``, which runs at the first call; kept with these edges."""
        if key not in self._derived:
            self._derived[key] = build()
        return self._derived[key]

    def mapped(self, move: Callable[[Tensor], Tensor]) -> PassEdges:
        """The same edges with every array replaced by ``move(array)``: a copy on a device, say. Derived results are left out."""
        return PassEdges(
            at=self.at,
            indptr=move(self.indptr),
            indices=move(self.indices),
            num_others=self.num_others,
            edge_ids=None if self.edge_ids is None else move(self.edge_ids),
            edge_data={name: move(rows) for name, rows in self.edge_data.items()},
        )

    def topology(self) -> Topology:
        """The same edges as a topology, with the same ids if they have ids."""
        if self.at == "dst":
            return self._topology(self.indptr.long(), self.indices, self.edge_data)
        rows = torch.arange(self.num_rows, device=self.device)
        sources = torch.repeat_interleave(rows, self.indptr.diff().long(), output_size=self.num_edges)
        others = self.indices.long()
        # Without ids any order is right in which a destination's edges are side by side.
        places = others.argsort(stable=True).argsort() if self.edge_ids is None else self.edge_ids.long()
        counts = torch.bincount(others, minlength=self.num_others)
        # The destinations of a topology are its first sources.
        missing = max(self.num_src, self.num_dst) - self.num_rows
        indptr = torch.nn.functional.pad(self.indptr.long(), (0, missing), value=self.num_edges)
        return self._topology(
            torch.nn.functional.pad(counts.cumsum(0), (1, 0)),
            _placed(sources, places),
            {name: _placed(data, places) for name, data in self.edge_data.items()},
            Csr(indptr=indptr, indices=self.indices.int(), edge_ids=places),
        )

    def _topology(
        self, indptr: Tensor, indices: Tensor, edge_data: Mapping[str, Tensor], csr: Csr | None = None
    ) -> Topology:
        return Topology(
            indptr=indptr,
            indices=indices if indices.dtype == torch.int64 else indices.int(),
            num_src=max(self.num_src, self.num_dst),
            edge_data=edge_data,
            csr=csr,
            validate=False,
        )


Edges = Topology | PassEdges
"The edges of a pass."


def _placed(rows: Tensor, places: Tensor) -> Tensor:
    """The rows, each at its place."""
    placed = torch.empty_like(rows)
    placed[places] = rows
    return placed
