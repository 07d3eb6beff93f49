"""Chunks: the edges of a hop, cut once and kept for the passes over them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sagann.compiler.model_program import ModelProgram
from sagann.graph.feature_store import version_of
from sagann.graph.rows import id_dtype, local_id_dtype
from sagann.graph.topology import Topology
from sagann.kernels.edge.pass_edges import Edges, PassEdges
from sagann.kernels.edge.work import Grain
from sagann.plan.grid import CUT_BYTES, MOST_EDGES, MOST_EDGES_BY_SOURCE, ChunkGrid
from sagann.plan.hops import (
    CSC,
    CSR,
    NUMBERED,
    PICKED,
    PICKED_NUMBERED,
    SQUARE,
    EdgesOfType,
    Hop,
    HopSize,
    KeptForms,
    ReadData,
    end_of,
    gathered_hops,
    hop_size,
    kept_forms,
    read_data,
    topology_of,
)
from sagann.plan.intervals import PartIntervals
from sagann.plan.selection import NEVER, OTHER_END, Selection
from sagann.plan.steps import Block
from sagann.runtime.blocks.host import Host, Parts, copied
from sagann.runtime.blocks.spill import require_room
from sagann.runtime.streaming.capturing import edge_data_of, require_types

_IDS, _DEGREES = "ids", "in-degrees"
_DATA, _CUT = "data:", "cut:"
# Ids are expanded in parts, so that there is no second array of all of them.
_EXPANDED_AT_ONCE = 1 << 16


class Chunks:
    """The chunks of one hop. A chunk is kept by destination, by source or both (``forms``), and its edges' ids are kept apart.

    Where rows may be picked for a chunk, its edges hold positions in a list of the needed rows, which is kept as well. Without a
    host, chunks stay in memory as topologies. The number is that of the hop in the names of blocks. Where ``cutting`` is a
    device's dialect, a chunk is kept together with the cut of the passes over it, so that no pass waits for its offsets.
    """

    def __init__(
        self,
        hop: Hop,
        part: PartIntervals,
        host: Host | None,
        number: int,
        selection: Selection = NEVER,
        cutting: Any = None,
        *,
        forms: KeptForms = SQUARE,
        read: ReadData | None = None,
        most_edges: int = MOST_EDGES,
    ) -> None:
        self._topology, self._read = topology_of(hop), read or {}
        self.num_edges = self._topology.num_edges
        self.first_edge: dict[tuple[int, int], int] = {}
        "Number of each chunk's first edge among all chunks', by source and destination interval."
        edges: dict[tuple[int, int], int] = {}
        self._host, self._number, self._selection, self._cutting = host, number, selection, cutting
        self._rows = part.rows
        self._in_memory: dict[tuple[int, int], Topology] = {}
        # Chunks that are read where they lie, once they were.
        self._in_place: dict[Block, Edges] = {}
        self._needed: dict[tuple[str, int, int], int] = {}
        self._has_degrees = False
        # Cuts by the block of the edges; their arrays are empty.
        self._cuts: dict[Block, Any] = {}
        for uncut, kept in forms.items():
            at_once = min(most_edges, MOST_EDGES_BY_SOURCE if uncut[1] else MOST_EDGES)
            data = {name for form in kept for name in self._read.get(end_of(form), ())}
            for chunk in ChunkGrid(hop, part.bounds, most_edges=at_once, data=data, uncut=uncut).chunks():
                at = (chunk.src, chunk.dst)
                self.first_edge[at] = chunk.first_edge
                edges[at] = chunk.topology.num_edges
                if host is None:
                    self._in_memory[at] = chunk.topology
                else:
                    self._keep(host, chunk.topology, *at, kept)
        size = HopSize.of(self._topology, edges).with_data(self._topology, self._read)
        self.size = replace(size, needed=self._needed, are_topologies=host is None)

    def _keep(self, host: Host, topology: Topology, src: int, dst: int, forms: Sequence[str]) -> None:
        for form in map(_form_of, forms):
            edges = PassEdges.of(topology, end_of(form))
            arrays = _arrays(edges, *self._sides(form, src, dst), self._read.get(edges.at, ()))
            self._number_needed(host, arrays, form, src, dst)
            block = self._block(form, src, dst)
            if self._cutting is not None:
                cut = self._cutting.cut_of(replace(edges, indptr=arrays["indptr"]), edges.at)
                of_cut: list[Tensor] = []
                cut.mapped(lambda array, found=of_cut: found.append(array) or array)
                arrays |= {f"{_CUT}{number}": array for number, array in enumerate(of_cut)}
                self._cuts[block] = cut.mapped(lambda array: array.new_empty(0))
            host.put(block, arrays)
            if NUMBERED in forms and form == CSR:
                assert edges.edge_ids is not None
                host.put(self._block(_IDS, src, dst), {_IDS: edges.edge_ids})

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
        return ends[::-1] if end_of(form) == "dst" else ends

    def _block(self, name: str, src: int, dst: int) -> Block:
        return Block("edges", name, src, dst, self._number)

    def _needed_block(self, form: str, src: int, dst: int) -> Block:
        return Block("row_ids", form, src, dst, self._number)

    def in_degrees(self, rows: slice) -> Tensor:
        """In-degrees of a range of vertices in the whole hop. A host in memory keeps them, where a device copies them from."""
        offsets, block = self._topology.indptr, self._block(_DEGREES, -1, -1)
        if self._host is None or not self._host.lies_in_memory:
            return offsets[rows.start : rows.stop + 1].diff()
        if not self._has_degrees:
            self._host.put(block, {"": offsets.diff().to(id_dtype(self.num_edges))})
            self._has_degrees = True
        return self._host.view(block)[""][rows]

    def needed_by(self, chunk: Block) -> Tensor:
        """The rows that are picked for a chunk: ids within their interval, ascending, [n]."""
        assert self._host is not None
        return self._host.get(self._needed_block(_form_of(chunk.name), chunk.interval, chunk.dst_interval)).views()[
            ""
        ]

    def is_at_hand(self, chunk: Block) -> bool:
        """Whether a chunk can be read without waiting for a disk, as far as the system tells."""
        read = self._read_for(chunk)
        if self._is_expanded(chunk):
            read.append(self._needed_block(_form_of(chunk.name), chunk.interval, chunk.dst_interval))
        return self._host is not None and all(map(self._host.is_at_hand, read))

    def lies_in_memory(self, chunk: Block) -> bool:
        """Whether a chunk is read where it lies on a host, with no array made anew."""
        return self._host is not None and self._host.lies_in_memory and not self._is_expanded(chunk)

    def _is_expanded(self, chunk: Block) -> bool:
        """Whether a chunk's edges hold positions among picked rows, and are read as ids of all rows."""
        at = PICKED[_form_of(chunk.name)], chunk.interval, chunk.dst_interval
        return chunk.name not in OTHER_END and at in self._needed

    def _read_for(self, chunk: Block) -> list[Block]:
        """The blocks of the host with the edges that are read, and with their ids where these are."""
        names = [_form_of(chunk.name), *([_IDS] if chunk.name in (NUMBERED, PICKED_NUMBERED) else [])]
        return [self._block(name, chunk.interval, chunk.dst_interval) for name in names]

    def load(self, chunk: Block) -> Parts:
        """A chunk in the form in which it is read, whatever is kept; where it lies in memory and has that form, there."""
        if (host := self._host) is None:
            return Parts.of(self._in_memory[chunk.interval, chunk.dst_interval])
        regions = [host.get(block) for block in self._read_for(chunk)]
        if self._is_expanded(chunk):
            if host.lies_in_memory:
                regions[0] = copied(regions[0].views())
            _expand_ids(regions[0].views()["indices"], self.needed_by(chunk))
        return Parts(regions, partial(self._edges, chunk))

    def in_place(self, chunk: Block) -> Edges:
        """A chunk that the processor reads where it lies, with what passes have derived of it."""
        known = self._in_place.get(chunk)
        if known is None:
            assert self._host is not None
            parts = Parts(list(map(self._host.get, self._read_for(chunk))), partial(self._edges, chunk))
            known = self._in_place[chunk] = parts.content()
        return known

    def _edges(self, chunk: Block, arrays: dict[str, Tensor]) -> Edges:
        """A chunk of arrays, which may be copies of those that are kept."""
        src, dst, form = chunk.interval, chunk.dst_interval, _form_of(chunk.name)
        _, num_others = self._sides(form, src, dst)
        edges = PassEdges(
            at=end_of(form),
            indptr=arrays["indptr"],
            indices=arrays["indices"],
            num_others=self._needed[PICKED[form], src, dst] if chunk.name in OTHER_END else num_others,
            edge_ids=arrays.get(_IDS),
            edge_data=_named(arrays, _DATA),
        )
        if self._cutting is not None:
            of_cut = iter(_named(arrays, _CUT).values())
            cut = self._cuts[self._block(form, src, dst)].mapped(lambda _: next(of_cut))
            self._cutting.set_cut(edges, edges.at, cut)
        return edges


def _form_of(name: str) -> str:
    """The form in which the edges of a chunk are kept, from that in which they are read."""
    return CSC if end_of(name) == "dst" else CSR


def _named(arrays: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}


def _arrays(edges: PassEdges, num_rows: int, num_others: int, data: Sequence[str]) -> dict[str, Tensor]:
    """The arrays of edges that are kept, with the named data; the topology may count more rows and other ends than there are."""
    arrays = {
        "indptr": edges.indptr[: num_rows + 1].to(id_dtype(edges.num_edges)),
        "indices": edges.indices.to(local_id_dtype(num_others)),
    }
    return arrays | {_DATA + name: edges.edge_data[name] for name in data}


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


class CutHops:
    """The chunks of the hops that programs of one model walk, in files of the folder or in memory.

    The budget limits how many edges are cut at a time. The numbers of chunks differ from those of chunks that were cut before:
    calls under way still read them.
    """

    def __init__(
        self,
        hops: Sequence[Topology],
        *,
        budget_bytes: int,
        host: Host | None,
        cutting: Any,
        grain: Grain | None,
        folder: Path | None,
        selection: Selection,
        numbers: Iterator[int],
    ) -> None:
        self._hops, self._budget_bytes = hops, budget_bytes
        self._folder = folder
        self._selection, self._numbers = selection, numbers
        self._host, self._grain, self._cutting = host, grain, cutting
        # By topology, type, and what is kept and read.
        self._chunks: dict[object, Chunks] = {}
        # Versions of the edge data as it was cut, by identity.
        self._versions: dict[int, int] = {}

    def of(self, program: ModelProgram, part: PartIntervals, *, of_constants: bool = False) -> dict[int, Chunks]:
        """The chunks that the program's gathers go over, or those that are the same in every epoch; cut now, if there is room, where they
        are not yet.
        """
        # Chunks that are cut already would go with the numbers of other edges.
        for topology in self._hops:
            topology.require_unwritten()
        require_types(program, self._hops)
        forms, read = kept_forms(part, of_constants=of_constants), read_data(program)
        hops = gathered_hops(program, self._hops)
        keys = {number: _key(hop, forms, read[number]) for number, hop in hops.items()}
        missing = {key: number for number, key in keys.items() if key not in self._chunks}
        if self._folder is not None and missing:
            kept = sum(self._kept_bytes(hops[each], part, forms, read[each]) for each in missing.values())
            require_room(self._folder, kept)
        for key, number in missing.items():
            hop = hops[number]
            self._chunks[key] = Chunks(
                hop,
                part,
                self._host,
                next(self._numbers),
                NEVER if part.undivided else self._selection,
                self._cutting,
                forms=forms,
                read=read[number],
                most_edges=self._budget_bytes // CUT_BYTES,
            )
            self._note(topology_of(hop).edge_data.values())
        return {number: self._chunks[key] for number, key in keys.items()}

    def _kept_bytes(self, hop: Hop, part: PartIntervals, forms: KeptForms, read: ReadData) -> int:
        size = hop_size(hop, part.bounds).with_sides(part).with_data(topology_of(hop), read)
        return replace(size, grain=self._grain).kept_bytes(part, forms)

    def close(self) -> None:
        """Forget all chunks."""
        if self._host is not None:
            self._host.close()

    def sizes(
        self, program: ModelProgram, part: PartIntervals, *, of_constants: bool = False
    ) -> dict[int, HopSize]:
        """The sizes of these chunks."""
        found = self.of(program, part, of_constants=of_constants)
        return {number: replace(chunks.size, grain=self._grain) for number, chunks in found.items()}

    def are_stale(self, program: ModelProgram) -> bool:
        """Whether edge data that the program reads was changed in place since it was first seen."""
        read = edge_data_of(program, self._hops)
        self._note(read)
        return any(self._versions[id(data)] != version_of(data) for data in read)

    def _note(self, read: Iterable[Tensor]) -> None:
        for data in read:
            self._versions.setdefault(id(data), version_of(data))


def _key(hop: Hop, forms: KeptForms, read: ReadData) -> object:
    of_type = (hop.data, hop.type) if isinstance(hop, EdgesOfType) else None
    return id(topology_of(hop)), of_type, tuple(forms.items()), tuple(read.items())
