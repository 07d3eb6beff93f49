"""Chunks: the edges of a hop, cut once and kept for the passes over them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Literal, cast

import numpy as np
import torch
from torch import Tensor

from sagann.graph.topology import Topology
from sagann.graph.widths import id_dtype, local_id_dtype
from sagann.kernels.edge.pass_edges import Edges, PassEdges
from sagann.plan.grid import ChunkGrid
from sagann.plan.hops import CSC, CSR, NUMBERED, PICKED, PICKED_NUMBERED, HopSize, is_by_destination
from sagann.plan.intervals import sizes
from sagann.plan.selection import NEVER, OTHER_END, Selection
from sagann.plan.steps import Block
from sagann.runtime.blocks.host import Host, RamHost, copied
from sagann.runtime.blocks.spill import DiskHost

_IDS = "ids"
_DATA = "data:"
# Ids are expanded in parts, so that there is no second array of all of them.
_EXPANDED_AT_ONCE = 1 << 16


class Chunks:
    """The chunks of one hop. A chunk is kept by destination and by source, and its edges' ids are kept apart.

    Where rows may be picked for a chunk, its edges hold positions in a list of the needed rows, which is kept as well. Without a
    host, chunks stay in memory as topologies. The number is that of the hop in the names of blocks.
    """

    def __init__(self, grid: ChunkGrid, host: Host | None, number: int, selection: Selection = NEVER) -> None:
        self._topology = grid.topology
        self.num_edges = grid.topology.num_edges
        self.first_edge = np.zeros((grid.num_intervals, grid.num_destinations), np.int64)
        "Number of each chunk's first edge among all chunks', by source and destination interval."
        edges: dict[tuple[int, int], int] = {}
        self._host, self._number, self._selection = host, number, selection
        self._rows = sizes(grid.bounds)
        self._in_memory: dict[tuple[int, int], Topology] = {}
        self._needed: dict[tuple[str, int, int], int] = {}
        for chunk in grid.chunks():
            at = (chunk.src, chunk.dst)
            self.first_edge[at] = chunk.first_edge
            edges[at] = chunk.topology.num_edges
            if host is None:
                self._in_memory[at] = chunk.topology
            else:
                self._keep(host, chunk.topology, *at)
        size = HopSize.of(grid.topology, edges)
        self.size = replace(size, needed=self._needed, are_topologies=host is None)

    def _keep(self, host: Host, topology: Topology, src: int, dst: int) -> None:
        by_destination, by_source = PassEdges.of(topology, "dst"), PassEdges.of(topology, "src")
        for form, edges in ((CSC, by_destination), (CSR, by_source)):
            arrays = _arrays(edges, *self._sides(form, src, dst))
            self._number_needed(host, arrays, form, src, dst)
            host.put(self._block(form, src, dst), arrays)
        assert by_source.edge_ids is not None
        host.put(self._block(_IDS, src, dst), {_IDS: by_source.edge_ids})

    def _number_needed(self, host: Host, arrays: dict[str, Tensor], form: str, src: int, dst: int) -> None:
        """Where rows may be picked for a chunk, keep their ids, and make its edges hold positions among them."""
        if not self._selection.share:
            return
        _, num_others = self._sides(form, src, dst)
        needed = _needed_ids(arrays["indices"], num_others)
        if self._selection.picks(needed=len(needed), rows=num_others):
            self._needed[PICKED[form], src, dst] = len(needed)
            host.put(self._needed_block(form, src, dst), {"": needed})
            arrays["indices"] = _compact_ids(arrays["indices"], needed, num_others)

    def _sides(self, form: str, src: int, dst: int) -> tuple[int, int]:
        """Number of rows at the end that groups the edges, and at the other end."""
        ends = self._rows[src], self._rows[dst]
        return ends[::-1] if is_by_destination(form) else ends

    def _block(self, name: str, src: int, dst: int) -> Block:
        return Block("edges", name, src, dst, self._number)

    def _needed_block(self, form: str, src: int, dst: int) -> Block:
        return Block("row_ids", form, src, dst, self._number)

    def in_degrees(self, rows: slice) -> Tensor:
        """In-degrees of a range of vertices in the whole hop."""
        offsets = self._topology.indptr[rows.start : rows.stop + 1]
        return offsets[1:] - offsets[:-1]

    def needed_by(self, chunk: Block) -> Tensor:
        """The rows that are picked for a chunk: ids within their interval, ascending, [n]."""
        assert self._host is not None
        form = CSC if is_by_destination(chunk.name) else CSR
        return self._host.get(self._needed_block(form, chunk.interval, chunk.dst_interval))[""]

    def known_as(self, chunk: Block) -> Block:
        """A chunk's block by the number of these chunks."""
        return chunk._replace(hop=self._number)

    def is_at_hand(self, chunk: Block) -> bool:
        """Whether a chunk lies in files that can be read without waiting for a disk, as far as the system tells."""
        host = self._host
        return isinstance(host, DiskHost) and all(map(host.is_at_hand, self._read_for(chunk)))

    def lies_pinned(self, chunk: Block) -> bool:
        """Whether a chunk beside a device is loaded from where it lies in pinned memory, with no array made anew."""
        host = self._host
        return host is not None and not host.gives_copies and not self._is_expanded(chunk)

    def _is_expanded(self, chunk: Block) -> bool:
        """Whether a chunk's edges hold positions among picked rows, and are read as ids of all rows."""
        form = CSC if is_by_destination(chunk.name) else CSR
        return chunk.name not in OTHER_END and (PICKED[form], chunk.interval, chunk.dst_interval) in self._needed

    def _read_for(self, chunk: Block) -> list[Block]:
        """The blocks of the host that are read when a chunk is loaded."""
        src, dst = chunk.interval, chunk.dst_interval
        form = CSC if is_by_destination(chunk.name) else CSR
        read = [self._block(form, src, dst)]
        if chunk.name in (NUMBERED, PICKED_NUMBERED):
            read.append(self._block(_IDS, src, dst))
        if self._is_expanded(chunk):
            read.append(self._needed_block(form, src, dst))
        return read

    def load(self, block: Block) -> Edges:
        """Read a chunk."""
        host = self._host
        if host is None:
            return self._in_memory[block.interval, block.dst_interval]
        return self._read(block, host.get, gives_copies=host.gives_copies)

    def view(self, block: Block) -> Edges:
        """A chunk where it lies: in memory, in the form in which it is read."""
        if self._host is None:
            return self._in_memory[block.interval, block.dst_interval]
        return self._read(block, cast("RamHost", self._host).view, gives_copies=False)

    def _read(self, block: Block, get: Callable[[Block], dict[str, Tensor]], *, gives_copies: bool) -> Edges:
        """A chunk, from the blocks of the host."""
        src, dst = block.interval, block.dst_interval
        at: Literal["dst", "src"] = "dst" if is_by_destination(block.name) else "src"
        form = CSC if at == "dst" else CSR
        arrays = get(self._block(form, src, dst))
        _, num_others = self._sides(form, src, dst)
        num_needed = self._needed.get((PICKED[form], src, dst))
        if block.name in OTHER_END:
            assert num_needed is not None
            num_others = num_needed
        elif num_needed is not None:
            if not gives_copies:
                arrays["indices"] = copied(arrays["indices"])
            _expand_ids(arrays["indices"], self.needed_by(block))
        has_ids = block.name in (NUMBERED, PICKED_NUMBERED)
        return PassEdges(
            at=at,
            indptr=arrays["indptr"],
            indices=arrays["indices"],
            num_others=num_others,
            edge_ids=get(self._block(_IDS, src, dst))[_IDS] if has_ids else None,
            edge_data={name.removeprefix(_DATA): rows for name, rows in arrays.items() if name.startswith(_DATA)},
        )


def _arrays(edges: PassEdges, num_rows: int, num_others: int) -> dict[str, Tensor]:
    """The arrays of edges that are kept; the topology may count more rows and other ends than there are."""
    arrays = {
        "indptr": edges.indptr[: num_rows + 1].to(id_dtype(edges.num_edges)),
        "indices": edges.indices.to(local_id_dtype(num_others)),
    }
    return arrays | {_DATA + name: rows for name, rows in edges.edge_data.items()}


def _needed_ids(ids: Tensor, num_rows: int) -> Tensor:
    """The distinct rows among the edges' rows at one end, ascending."""
    has_edges = torch.zeros(num_rows, dtype=torch.bool, device=ids.device)
    has_edges[ids.long()] = True
    return has_edges.nonzero().squeeze(1).to(ids.dtype)


def _compact_ids(ids: Tensor, needed: Tensor, num_rows: int) -> Tensor:
    """Each edge's row as its position among the needed rows."""
    numbers = torch.empty(num_rows, dtype=ids.dtype, device=ids.device)
    numbers[needed.long()] = torch.arange(len(needed), dtype=ids.dtype, device=ids.device)
    return numbers[ids.long()]


def _expand_ids(numbers: Tensor, needed: Tensor) -> None:
    """Replace each position among the needed rows by the row, in place."""
    for begin in range(0, len(numbers), _EXPANDED_AT_ONCE):
        part = numbers[begin : begin + _EXPANDED_AT_ONCE]
        part.copy_(needed[part.long()])
