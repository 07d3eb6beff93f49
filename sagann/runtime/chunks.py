"""Chunks: the edges of a hop, cut once and kept where they are read from."""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from sagann.graph.topology import Topology
from sagann.graph.widths import id_dtype, local_id_dtype
from sagann.kernels.edge.pass_edges import Edges, PassEdges
from sagann.plan.grid import ChunkGrid
from sagann.plan.intervals import sizes
from sagann.plan.sizes import CSC, CSR, NUMBERED, HopSize
from sagann.plan.steps import Block
from sagann.runtime.host import Host

_IDS = "ids"
_DATA = "data:"


class Chunks:
    """The chunks of one hop, in both orders; each order has what its passes read, and the edges' ids lie apart.

    Args:
        grid: how the hop is cut; column by column, so that no more than a column is in memory at a time.
        host: keeps them; None where they stay in memory as they are.
        number: of the hop, in the blocks' names.
    """

    def __init__(self, grid: ChunkGrid, host: Host | None, number: int) -> None:
        self._topology = topology = grid.topology
        self.num_edges = topology.num_edges
        self.first_edge: dict[tuple[int, int], int] = {}
        edges: dict[tuple[int, int], int] = {}
        self._host, self._number = host, number
        self._rows = sizes(grid.bounds)
        self._in_memory: dict[tuple[int, int], Topology] = {}
        for chunk in grid.chunks():
            at = (chunk.src, chunk.dst)
            self.first_edge[at] = chunk.first_edge
            edges[at] = chunk.topology.num_edges
            if host is None:
                self._in_memory[at] = chunk.topology
            else:
                self._keep(host, chunk.topology, *at)
        self.size = HopSize.of(topology, edges, are_topologies=host is None)

    def _keep(self, host: Host, topology: Topology, src: int, dst: int) -> None:
        by_destination, by_source = PassEdges.of(topology, "dst"), PassEdges.of(topology, "src")
        host.put(self._block(CSC, src, dst), _arrays(by_destination, self._rows[dst], self._rows[src]))
        host.put(self._block(CSR, src, dst), _arrays(by_source, self._rows[src], self._rows[dst]))
        assert by_source.edge_ids is not None
        host.put(self._block(_IDS, src, dst), {_IDS: by_source.edge_ids})

    def _block(self, name: str, src: int, dst: int) -> Block:
        return Block("edges", name, src, dst, self._number)

    def in_degrees(self, rows: slice) -> Tensor:
        """Of a range of vertices, in the whole hop."""
        offsets = self._topology.indptr[rows.start : rows.stop + 1]
        return offsets[1:] - offsets[:-1]

    def load(self, block: Block) -> Edges:
        """Read a chunk."""
        src, dst = block.interval, block.other
        if self._host is None:
            return self._in_memory[src, dst]
        at: Literal["dst", "src"] = "dst" if block.name == CSC else "src"
        arrays = self._host.get(self._block(CSC if at == "dst" else CSR, src, dst))
        return PassEdges(
            at=at,
            indptr=arrays["indptr"],
            indices=arrays["indices"],
            num_others=self._rows[src if at == "dst" else dst],
            edge_ids=self._host.get(self._block(_IDS, src, dst))[_IDS] if block.name == NUMBERED else None,
            edge_data={name.removeprefix(_DATA): rows for name, rows in arrays.items() if name.startswith(_DATA)},
        )


def _arrays(edges: PassEdges, num_rows: int, num_others: int) -> dict[str, Tensor]:
    """What is kept of edges between so many rows and others, of which the topology may count more."""
    arrays = {
        "indptr": edges.indptr[: num_rows + 1].to(id_dtype(edges.num_edges)),
        "indices": edges.indices.to(local_id_dtype(num_others)),
    }
    return arrays | {_DATA + name: rows for name, rows in edges.edge_data.items()}
