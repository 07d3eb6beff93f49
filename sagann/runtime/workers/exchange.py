"""Exchange: blocks of a worker's halo travel between the hosts of workers while steps of the plan run.

The rows for one worker are one sequence, by ascending id, which either side cuts into intervals of its own. A message has the rows between two
bounds of either side, so it is a range of one block at both ends: it is sent from where this block lies and received where that one will
lie, in memory or in a file: a disk that fails meanwhile shows as a connection that was lost. When an epoch is set up, the workers tell each
other their bounds. Messages have numbers, so blocks go in any order, and several exchanges may be under way.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import pairwise

import torch
from torch import Tensor

from sagann.compiler.model_program import Form
from sagann.errors import WorkerError
from sagann.kernels.packed import Layout
from sagann.plan.epoch import Planned
from sagann.plan.intervals import CutOwn, PartIntervals
from sagann.plan.steps import Block, Exchanged, Step
from sagann.runtime.blocks.host import Host, picked
from sagann.runtime.blocks.residents import Exchange, ExchangeSteps, Residents
from sagann.runtime.workers.halo import Halo

_MESSAGES = 1 << 20
"More messages than a worker sends to another one in an exchange."
_MOMENT_S = 0.001
"Seconds to wait for a message that nobody needs any more. gloo ends a connection on which a wait was in vain."


class HaloBlocks(Exchange):
    """The exchange of blocks for the halo of a worker's part; ``first_value`` is the id of the first non-zero in its sparse features."""

    def __init__(self, halo: Halo, *, first_value: int) -> None:
        self.halo, self.workers = halo, halo.workers
        self.first_vertex, self.first_value = halo.part.vertices.start, first_value

    def cut(self, count: int, cut_own: CutOwn) -> PartIntervals:
        """Cut the sources into about ``count`` intervals of about equally many rows."""
        halo = self.halo
        most = max(1, -(-halo.num_src // count))
        bounds = cut_own(max(1, -(-halo.num_own // most)))
        ends, owners = list(bounds), []
        for rank, rows in halo.received.items():
            num_rows = rows.stop - rows.start
            pieces = -(-num_rows // most)
            ends += [halo.num_own + rows.start + num_rows * (each + 1) // pieces for each in range(pieces)]
            owners += [rank] * pieces
        return PartIntervals(
            bounds=tuple(ends),
            num_own=len(bounds) - 1,
            owners=tuple(owners),
            rank=self.workers.rank,
            sent={
                (interval, rank): last - first
                for rank in self.workers.others
                for interval, (first, last) in enumerate(pairwise(self.places(rank, bounds)))
                if last > first
            },
            num_workers=self.workers.size,
        )

    def add_up(self, tensor: Tensor, doing: str) -> Tensor:
        return self.workers.add_up(tensor, doing)

    def steps(self, planned: Planned, host: Host, resident: Residents) -> HaloSteps:
        return HaloSteps(self, planned.schedule.part, planned.program.forms, host, resident)

    def sent_rows(self, part: PartIntervals, block: Block) -> Tensor:
        """The rows of an interval that another worker needs: int64, ascending, counted from the interval's first row."""
        begin, end = part.bounds[block.interval : block.interval + 2]
        first, last = self.places(block.peer, (begin, end))
        return self.halo.sent[block.peer][first:last] - begin

    def places(self, rank: int, bounds: Sequence[int]) -> list[int]:
        """Positions of bounds among the rows that a worker needs."""
        places: list[int] = torch.searchsorted(self.halo.sent[rank], torch.tensor(list(bounds))).tolist()
        return places


_Message = tuple[int, slice]
"Number of a message among those to, or from, one worker, and its rows in the block that it is a range of."


class HaloSteps(ExchangeSteps):
    """The steps of one epoch in which a worker exchanges rows of its halo, and their gradients, with the others: methods by their kinds."""

    def __init__(
        self,
        blocks: HaloBlocks,
        part: PartIntervals,
        forms: Mapping[str, Form],
        host: Host,
        resident: Residents,
    ) -> None:
        self._blocks, self._part, self._forms = blocks, part, forms
        self._host, self._resident = host, resident
        self._messages: dict[tuple[int, int], list[_Message]] = {}
        "By the other worker, and by an interval's number, the messages with its rows."
        self._num_begun = 0
        self._under_way: dict[tuple[str, bool], tuple[int, list[Callable[..., None]]]] = {}
        "By exchange, the number of its first message, and functions that wait for its messages."
        # Here all workers stand at the same place. The first exchange begins beside steps that wait for other workers as well.
        self._agree()

    def close(self) -> None:
        """End exchanges that nobody has waited for, because this worker has failed, and the connections on which something travels."""
        for _, finishes in self._under_way.values():
            for finish in finishes:
                with suppress(WorkerError):
                    finish(timeout_s=_MOMENT_S)
        self._under_way.clear()

    def collect(self, step: Step) -> None:
        (read,) = step.reads
        for block in step.writes:
            rows = self._blocks.sent_rows(self._part, block)
            self._resident[block] = picked({"": self._resident[read]}, rows)[""]

    def begin_exchange(self, step: Step) -> None:
        exchanged = _exchanged(step)
        self._num_begun += 1
        finishes: list[Callable[..., None]] = []
        self._under_way[exchanged.key] = self._num_begun * _MESSAGES, finishes
        form = self._forms[exchanged.value]
        for block in exchanged.receives:
            num_rows = self._messages[self._peer(block), block.interval][-1][1].stop
            like = torch.empty((num_rows, *form.shape), dtype=form.dtype, device="meta")
            self._transfer(exchanged, block, self._host.room(block, Layout({"": like}))[""], sends=False)

    def send_rows(self, step: Step) -> None:
        exchanged = _exchanged(step)
        for block in exchanged.sends:
            self._resident.await_store(block)
            self._transfer(exchanged, block, self._host.view(block)[""], sends=True)

    def exchange(self, step: Step) -> None:
        key = _exchanged(step).key
        _, finishes = self._under_way[key]
        # In the order in which they come: a worker has its time for each message.
        while finishes:
            finishes.pop(0)()
        del self._under_way[key]

    exchange_grad = exchange

    def collect_grad(self, step: Step) -> None:
        """Add the gradients that other workers have sent back, in the order of their ranks."""
        (at,) = step.writes
        total = self._resident[at].clone()
        for block in step.reads:
            if block.kind == "returned":
                # A worker asks for a row once, so each addition has one summand per row.
                rows = self._blocks.sent_rows(self._part, block)
                total.index_add_(0, rows.to(total.device), self._resident[block])
        self._resident[at] = total

    def _transfer(self, exchanged: Exchanged, block: Block, rows: Tensor, *, sends: bool) -> None:
        first, finishes = self._under_way[exchanged.key]
        peer = self._peer(block)
        doing = f"exchanging {'gradients' if exchanged.is_grad else 'rows'} of the halo"
        for number, at in self._messages[peer, block.interval]:
            going, coming = ({peer: rows[at]}, {}) if sends else ({}, {peer: rows[at]})
            finishes.append(self._blocks.workers.begin(going, coming, doing, tag=first + number))

    def _peer(self, block: Block) -> int:
        """Rank of the worker that a block goes to, or comes from."""
        return block.peer if block.interval in self._part.own else self._owner(block.interval)

    def _owner(self, interval: int) -> int:
        return self._part.owners[interval - self._part.num_own]

    def _agree(self) -> None:
        """Cut messages at the bounds of both sides, which the workers tell each other."""
        part, workers = self._part, self._blocks.workers
        # By the other worker: bounds of own intervals among the rows that it needs, and those of its rows in the halo.
        own = {rank: self._blocks.places(rank, part.bounds[: part.num_own + 1]) for rank in workers.others}
        halo = {
            rank: [interval for interval in part.halo if self._owner(interval) == rank] for rank in workers.others
        }
        ends = {
            rank: [0, *(part.bounds[each + 1] - part.bounds[intervals[0]] for each in intervals)]
            for rank, intervals in halo.items()
        }
        mine = {rank: torch.tensor([len(own[rank]), *own[rank], *ends[rank]]) for rank in workers.others}
        for rank, theirs in workers.exchange(mine, "agreeing on messages of the halo").items():
            count, *bounds = theirs.tolist()
            for intervals, here, there in (
                (part.own, own[rank], bounds[count:]),
                (halo[rank], ends[rank], bounds[:count]),
            ):
                for number, (piece, at) in enumerate(_ranges(here, there)):
                    self._messages.setdefault((rank, intervals[piece]), []).append((number, at))


def _exchanged(step: Step) -> Exchanged:
    assert step.exchanged is not None
    return step.exchanged


def _ranges(here: Sequence[int], there: Sequence[int]) -> Iterator[tuple[int, slice]]:
    """The ranges between bounds of two sides: the number of the piece of this side, and the range in the piece."""
    for begin, end in pairwise(sorted({*here, *there})):
        piece = bisect_right(here, begin) - 1
        yield piece, slice(begin - here[piece], end - here[piece])
