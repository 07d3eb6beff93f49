"""Chunks: the edges of a hop, cut once and kept where they are read from."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from sagann.graph.topology import Csr, Topology
from sagann.plan.grid import ChunkGrid
from sagann.plan.sizes import CSC, CSR, HopSize
from sagann.plan.steps import Block
from sagann.runtime.host import Host

_DATA = "data:"


class Chunks:
    """The chunks of one hop, in both orders.

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
        self._num_src: dict[tuple[int, int], int] = {}
        self._in_memory: dict[tuple[int, int], Topology] = {}
        for chunk in grid.chunks():
            at = (chunk.src, chunk.dst)
            self.first_edge[at] = chunk.first_edge
            self._num_src[at] = chunk.topology.num_src
            edges[at] = chunk.topology.num_edges
            if host is None:
                self._in_memory[at] = chunk.topology
                continue
            for form in (CSC, CSR):
                host.put(Block("edges", form, *at, number), _arrays(chunk.topology, form))
        self.size = HopSize.of(topology, edges)

    def in_degrees(self, rows: slice) -> Tensor:
        """Of a range of vertices, in the whole hop."""
        offsets = self._topology.indptr[rows.start : rows.stop + 1]
        return offsets[1:] - offsets[:-1]

    def load(self, block: Block) -> Topology:
        """Read a chunk."""
        if self._host is None:
            return self._in_memory[block.interval, block.other]
        arrays = self._host.get(replace(block, number=self._number))
        topology = Topology(
            indptr=arrays["indptr"],
            indices=arrays["indices"],
            num_src=self._num_src[block.interval, block.other],
            edge_data={name.removeprefix(_DATA): rows for name, rows in arrays.items() if name.startswith(_DATA)},
            validate=False,
        )
        if block.name == CSR:
            topology.set_csr(
                Csr(indptr=arrays["csr_indptr"], indices=arrays["csr_indices"], edge_ids=arrays["csr_edge_ids"])
            )
        return topology


def _arrays(topology: Topology, form: str) -> dict[str, Tensor]:
    arrays = {"indptr": topology.indptr, "indices": topology.indices}
    arrays |= {_DATA + name: rows for name, rows in topology.edge_data.items()}
    if form == CSR:
        csr = topology.csr()
        arrays |= {"csr_indptr": csr.indptr, "csr_indices": csr.indices, "csr_edge_ids": csr.edge_ids}
    return arrays
