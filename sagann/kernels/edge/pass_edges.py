"""PassEdges: edges grouped by one end, as a pass that reduces to that end reads them, and nothing else.

A topology serves passes to either end. A chunk of a grid is copied for one pass at a time, so it comes with what that
pass reads: offsets, the other ends, edge data in the order of the pass, and the edges' ids only for a pass that asks for
them. Ids and offsets are as narrow as the chunk allows.
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
    "The end by which they are grouped."
    indptr: Tensor
    "int32 or int64 [num_rows + 1]: offsets of the rows at that end."
    indices: Tensor
    "int16, int32 or int64 [num_edges]: the other ends."
    num_others: int
    "Vertices at the other end."
    edge_ids: Tensor | None = None
    "Position of every edge in CSC order [num_edges]; None in CSC order, and where no pass asks for it."
    edge_data: Mapping[str, Tensor] = field(default_factory=dict)
    "By name, a row for every edge, in the order in which they lie here."
    _derived: dict[object, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, topology: Topology, at: Literal["dst", "src"]) -> PassEdges:
        """A topology's edges, for passes at one end."""
        if at == "dst":
            return cls(
                at=at,
                indptr=topology.indptr,
                indices=topology.indices,
                num_others=topology.num_src,
                edge_data=topology.edge_data,
            )
        csr = topology.csr()
        return cls(
            at=at,
            indptr=csr.indptr,
            indices=csr.indices,
            num_others=topology.num_dst,
            edge_ids=csr.edge_ids,
            edge_data={name: rows.index_select(0, csr.edge_ids) for name, rows in topology.edge_data.items()},
        )

    @property
    def num_rows(self) -> int:
        """Vertices at the end by which they are grouped."""
        return len(self.indptr) - 1

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
        return len(self.indices)

    @property
    def device(self) -> torch.device:
        """Where the arrays lie."""
        return self.indices.device

    def holds(self, array: Tensor) -> bool:
        """Whether an array is data of these edges, and thus in their order."""
        return any(array is rows for rows in self.edge_data.values())

    def derived(self, key: object, build: Callable[[], Any]) -> Any:
        """What follows from these edges, built at the first call and kept as long as they are."""
        if key not in self._derived:
            self._derived[key] = build()
        return self._derived[key]

    def mapped(self, move: Callable[[Tensor], Tensor]) -> PassEdges:
        """The same edges with every array replaced by what ``move`` makes of it: a copy on a device, say.

        What was derived from them does not come along.
        """
        return PassEdges(
            at=self.at,
            indptr=move(self.indptr),
            indices=move(self.indices),
            num_others=self.num_others,
            edge_ids=None if self.edge_ids is None else move(self.edge_ids),
            edge_data={name: move(rows) for name, rows in self.edge_data.items()},
        )

    def topology(self) -> Topology:
        """The same edges as a topology, with the same ids where they have any."""
        if self.at == "dst":
            return self._topology(self.indptr.long(), self.indices, self.edge_data)
        rows = torch.arange(self.num_rows, device=self.device)
        sources = torch.repeat_interleave(rows, self.indptr.diff().long(), output_size=self.num_edges)
        others = self.indices.long()
        # Without ids any numbering does, if a destination's edges are side by side.
        places = others.argsort(stable=True).argsort() if self.edge_ids is None else self.edge_ids.long()
        counts = torch.bincount(others, minlength=self.num_others)
        topology = self._topology(
            torch.nn.functional.pad(counts.cumsum(0), (1, 0)),
            _placed(sources, places),
            {name: _placed(data, places) for name, data in self.edge_data.items()},
        )
        # A topology says that its destinations are among its sources.
        missing = topology.num_src - self.num_rows
        indptr = torch.nn.functional.pad(self.indptr.long(), (0, missing), value=self.num_edges)
        topology.set_csr(Csr(indptr=indptr, indices=self.indices.int(), edge_ids=places))
        return topology

    def _topology(self, indptr: Tensor, indices: Tensor, edge_data: Mapping[str, Tensor]) -> Topology:
        return Topology(
            indptr=indptr,
            indices=indices if indices.dtype == torch.int64 else indices.int(),
            num_src=max(self.num_src, self.num_dst),
            edge_data=edge_data,
            validate=False,
        )


Edges = Topology | PassEdges
"What a pass goes over."


def _placed(rows: Tensor, places: Tensor) -> Tensor:
    """The rows, each at its place."""
    placed = torch.empty_like(rows)
    placed[places] = rows
    return placed
