"""Halo blocks: the exchange of a worker's halo where its part is streamed.

What is sent and received lies on the host, interval by interval, in memory or in files. It travels in pieces of bounded size: in
round r a worker sends to the worker r ranks above it, and receives from the one r ranks below. The rows for one worker are one
sequence, by ascending id, which either side cuts into intervals of its own. So all workers exchange alike, whatever their numbers
of intervals are. A worker holds a piece that it sends, one that it receives, and the block that pieces are gathered into.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise, zip_longest

import torch
from torch import Tensor

from sagann.kernels.memory import empty
from sagann.plan.intervals import sizes
from sagann.plan.part_intervals import PIECE_BYTES, CutOwn, PartIntervals
from sagann.plan.steps import Block
from sagann.runtime.blocks.host import Host
from sagann.runtime.workers.part_topology import Halo


class HaloBlocks:
    """The exchange of blocks for the halo of a worker's part (:class:`sagann.runtime.streaming.part.BlockExchange`).

    Args:
        halo: rows that travel between this worker and the others.
        first_vertex: id in the graph of the first own vertex.
        first_value: id of the first non-zero in sparse features of own vertices; else 0.
        piece_bytes: bytes that are sent to a worker at a time; the same number at all workers.
    """

    def __init__(self, halo: Halo, *, first_vertex: int, first_value: int, piece_bytes: int = PIECE_BYTES) -> None:
        self.halo = halo
        self.first_vertex, self.first_value = first_vertex, first_value
        self._workers, self._piece_bytes = halo.workers, piece_bytes

    def cut(self, count: int, cut_own: CutOwn) -> PartIntervals:
        """Cut the sources into about ``count`` intervals of about equally many rows; see :data:`sagann.plan.part_intervals.CutPart`."""
        halo = self.halo
        most = max(1, -(-halo.num_src // count))
        bounds = cut_own(max(1, -(-halo.num_own // most)))
        ends, owners = list(bounds), []
        for rank, rows in halo.received.items():
            num_rows = rows.stop - rows.start
            pieces = -(-num_rows // most)
            ends += [rows.start + num_rows * (each + 1) // pieces for each in range(pieces)]
            owners += [rank] * pieces
        sent = {
            (interval, rank): last - first
            for rank in self._workers.others
            for interval, (first, last) in enumerate(pairwise(self._places(rank, bounds)))
            if last > first
        }
        return PartIntervals(
            bounds=tuple(ends),
            num_own=len(bounds) - 1,
            owners=tuple(owners),
            rank=self._workers.rank,
            sent=sent,
            num_workers=self._workers.size,
            most_rows=max(
                [len(halo.sent[rank]) for rank in self._workers.others]
                + [rows.stop - rows.start for rows in halo.received.values()],
                default=0,
            ),
            piece_bytes=self._piece_bytes,
        )

    def add_up(self, tensor: Tensor, doing: str) -> Tensor:
        """See :meth:`sagann.runtime.workers.Workers.add_up`."""
        return self._workers.add_up(tensor, doing)

    def sent_rows(self, part: PartIntervals, block: Block) -> Tensor:
        """The rows of an interval that another worker needs: int64, ascending, counted from the interval's first row."""
        begin, end = part.bounds[block.interval : block.interval + 2]
        first, last = self._places(block.peer, (begin, end))
        return self.halo.sent[block.peer][first:last] - begin

    def _places(self, rank: int, bounds: Sequence[int]) -> list[int]:
        """Positions of bounds among the rows that a worker needs."""
        places: list[int] = torch.searchsorted(self.halo.sent[rank], torch.tensor(list(bounds))).tolist()
        return places

    def exchange(
        self,
        part: PartIntervals,
        host: Host,
        *,
        sends: Sequence[Block],
        receives: Sequence[Block],
        row_shape: Sequence[int],
        dtype: torch.dtype,
        doing: str,
    ) -> None:
        """Send and receive blocks; see :class:`sagann.runtime.streaming.part.BlockExchange`."""
        rank, size = self._workers.rank, self._workers.size
        row_bytes = torch.Size(row_shape).numel() * dtype.itemsize
        for turn in range(1, size):
            to, source = (rank + turn) % size, (rank - turn) % size
            going = _Sequence(part, sends, to, row_bytes)
            coming = _Sequence(part, receives, source, row_bytes)
            into = _Gathered(host, coming, row_shape, dtype)
            for sent, received in zip_longest(going.pieces(), coming.pieces()):
                mine = None if sent is None else _read(host, going, sent)
                theirs = None if received is None else empty((_length(received), *row_shape), dtype)
                self._workers.transfer(
                    {} if mine is None else {to: mine}, {} if theirs is None else {source: theirs}, doing
                )
                if received is not None and theirs is not None:
                    into.add(received, theirs)


_Piece = Sequence[tuple[int, slice]]
"Numbers of consecutive blocks, with the rows of each."


class _Sequence:
    """The rows of some blocks that travel to or from one worker, one block after the other."""

    def __init__(self, part: PartIntervals, blocks: Sequence[Block], peer: int, row_bytes: int) -> None:
        self._most = part.piece_rows(row_bytes)
        rows = sizes(part.bounds)
        self.blocks: list[Block] = []
        self.rows: list[int] = []
        for block in blocks:
            is_own = block.interval < part.num_own
            if (block.peer if is_own else part.owners[block.interval - part.num_own]) == peer:
                self.blocks.append(block)
                self.rows.append(part.sent[block.interval, peer] if is_own else rows[block.interval])

    def pieces(self) -> Iterator[_Piece]:
        """The pieces in which the rows travel."""
        piece: list[tuple[int, slice]] = []
        room = self._most
        for number, rows in enumerate(self.rows):
            begin = 0
            while begin < rows:
                end = min(rows, begin + room)
                piece.append((number, slice(begin, end)))
                room -= end - begin
                begin = end
                if not room:
                    yield piece
                    piece, room = [], self._most
        if piece:
            yield piece


class _Gathered:
    """Gathers pieces into blocks, and puts each block on the host when it is complete."""

    def __init__(self, host: Host, sequence: _Sequence, row_shape: Sequence[int], dtype: torch.dtype) -> None:
        self._host, self._sequence = host, sequence
        self._row_shape, self._dtype = row_shape, dtype
        self._block: Tensor | None = None

    def add(self, piece: _Piece, rows: Tensor) -> None:
        """Add a piece, which follows the one before."""
        begin = 0
        for number, at in piece:
            length = self._sequence.rows[number]
            if self._block is None:
                self._block = empty((length, *self._row_shape), self._dtype)
            count = at.stop - at.start
            self._block[at] = rows[begin : begin + count]
            begin += count
            if at.stop == length:
                self._host.put(self._sequence.blocks[number], {"": self._block})
                self._block = None


def _read(host: Host, sequence: _Sequence, piece: _Piece) -> Tensor:
    """A piece of blocks on the host, in memory of its own."""
    parts = [host.pick(sequence.blocks[number], torch.arange(at.start, at.stop))[""] for number, at in piece]
    if len(parts) == 1:
        return parts[0]
    return torch.cat(parts, out=empty((_length(piece), *parts[0].shape[1:]), parts[0].dtype))


def _length(piece: _Piece) -> int:
    return sum(at.stop - at.start for _, at in piece)
