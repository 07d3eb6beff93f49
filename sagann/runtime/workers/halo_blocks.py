"""Halo blocks: the intervals of a worker's part that is streamed, and the exchange of its halo by blocks."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

from sagann.compiler.model_program import Form
from sagann.plan.part_intervals import PIECE_BYTES, CutOwn, PartIntervals
from sagann.plan.steps import Block, Exchanged
from sagann.runtime.blocks.host import Host
from sagann.runtime.streaming.part import Travel
from sagann.runtime.workers.block_travel import BlockTravel
from sagann.runtime.workers.halo import Halo


class HaloBlocks:
    """The exchange of blocks for the halo of a worker's part (:class:`sagann.runtime.streaming.part.BlockExchange`).

    Args:
        halo: rows that travel between this worker and the others.
        first_value: id of the first non-zero in sparse features of own vertices; else 0.
        piece_bytes: bytes that are sent to a worker at a time; the same number at all workers.
    """

    def __init__(self, halo: Halo, *, first_value: int, piece_bytes: int = PIECE_BYTES) -> None:
        self.halo = halo
        self.first_vertex, self.first_value = halo.part.vertices.start, first_value
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
            ends += [halo.num_own + rows.start + num_rows * (each + 1) // pieces for each in range(pieces)]
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

    def begin(
        self,
        part: PartIntervals,
        host: Host,
        exchanged: Exchanged,
        *,
        form: Form,
        doing: str,
        after: Travel | None,
    ) -> BlockTravel:
        """Begin an exchange; see :class:`sagann.runtime.streaming.part.BlockExchange`."""
        assert after is None or isinstance(after, BlockTravel)
        return BlockTravel(self._workers, part, host, exchanged, form=form, doing=doing, after=after)
