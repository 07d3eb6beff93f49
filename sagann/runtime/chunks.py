"""Chunks: the edges of a hop, cut once and kept where they are read from."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from sagann.graph.topology import Csr, Topology
from sagann.plan.grid import ChunkGrid, EdgeChunk
from sagann.plan.intervals import sizes
from sagann.plan.selection import NEVER, OTHER_END, Selection
from sagann.plan.sizes import CSC, CSR, PICKED, PICKED_CSC, HopSize
from sagann.plan.steps import Block
from sagann.runtime.compact import compact, expand_ids, expand_offsets, needed_ids
from sagann.runtime.host import Host

_DATA = "data:"


class Chunks:
    """The chunks of one hop, in both orders.

    Args:
        grid: how the hop is cut; column by column, so that no more than a column is in memory at a time.
        host: keeps them; None where they stay in memory as they are.
        number: of the hop, in the blocks' names.
        selection: which chunks may be read with picked rows.
    """

    def __init__(self, grid: ChunkGrid, host: Host | None, number: int, selection: Selection = NEVER) -> None:
        self._topology = grid.topology
        self.num_edges = grid.topology.num_edges
        self.first_edge: dict[tuple[int, int], int] = {}
        edges: dict[tuple[int, int], int] = {}
        self._host, self._number = host, number
        self._num_src: dict[tuple[int, int], int] = {}
        self._in_memory: dict[tuple[int, int], Topology] = {}
        self._num_rows = sizes(grid.bounds)
        self._needed: dict[tuple[str, int, int], int] = {}
        for chunk in grid.chunks():
            at = (chunk.src, chunk.dst)
            self.first_edge[at] = chunk.first_edge
            self._num_src[at] = chunk.topology.num_src
            edges[at] = chunk.topology.num_edges
            if host is None:
                self._in_memory[at] = chunk.topology
                continue
            for form in (CSC, CSR):
                topology, kept = self._as_kept(chunk, form, selection)
                host.put(Block("edges", kept, *at, number), _arrays(topology, form))
        self.size = HopSize.of(grid.topology, edges, self._needed)

    def in_degrees(self, rows: slice) -> Tensor:
        """Of a range of vertices, in the whole hop."""
        offsets = self._topology.indptr[rows.start : rows.stop + 1]
        return offsets[1:] - offsets[:-1]

    def needed_by(self, chunk: Block) -> Tensor:
        """The rows that are picked for a chunk: ids within their interval, ascending, [n]."""
        assert self._host is not None
        return self._host.get(replace(chunk, kind="needed", number=self._number))[""]

    def _as_kept(self, chunk: EdgeChunk, form: str, selection: Selection) -> tuple[Topology, str]:
        """A chunk's edges and their form: counting needed rows, where these may be picked for it."""
        picked = PICKED[form]
        if self._host is None or not selection.share:
            return chunk.topology, form
        needed = needed_ids(chunk.topology, picked)
        rows = self._num_rows[chunk.src if OTHER_END[picked] == "src" else chunk.dst]
        if not selection.picks(needed=len(needed), rows=rows):
            return chunk.topology, form
        self._needed[picked, chunk.src, chunk.dst] = len(needed)
        self._host.put(Block("needed", picked, chunk.src, chunk.dst, self._number), {"": needed})
        return compact(chunk.topology, picked, needed), picked

    def load(self, block: Block) -> Topology:
        """Read a chunk."""
        if self._host is None:
            return self._in_memory[block.interval, block.other]
        form = CSC if block.name in (CSC, PICKED_CSC) else CSR
        is_compact = (PICKED[form], block.interval, block.other) in self._needed
        kept = replace(block, name=PICKED[form] if is_compact else form, number=self._number)
        arrays = self._host.get(kept)
        if kept.name != block.name:
            _expand(arrays, form, self.needed_by(kept), self._num_rows[block.other])
        topology = Topology(
            indptr=arrays["indptr"],
            indices=arrays["indices"],
            num_src=self._num_src[block.interval, block.other],
            edge_data={name.removeprefix(_DATA): rows for name, rows in arrays.items() if name.startswith(_DATA)},
            validate=False,
        )
        if form == CSR:
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


def _expand(arrays: dict[str, Tensor], form: str, needed: Tensor, num_rows: int) -> None:
    """Have a chunk's edges count all rows again.

    Args:
        arrays: of the chunk as it is kept; changed in place.
        form: by which end they are grouped.
        needed: the rows that they count.
        num_rows: of destinations.
    """
    if form == CSC:
        expand_ids(arrays["indices"], needed)
    else:
        arrays["indptr"] = expand_offsets(arrays["indptr"], needed, num_rows)
        expand_ids(arrays["csr_indices"], needed)
