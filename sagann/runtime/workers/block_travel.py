"""Block travel: a thread exchanges blocks of a worker's halo while steps of the plan run.

What is sent and received lies on the host, interval by interval, in memory or in files. It travels in pieces of bounded size. The rows for
one worker are one sequence, by ascending id, which either side cuts into intervals of its own. So all workers exchange alike, whatever
their numbers of intervals are. The thread holds a piece that it sends and one that it receives.

A piece goes when the blocks that it lies in are complete. Sweeps over the intervals go up or down, so a sender says first whether its pieces come
from the end. In turn r a worker sends to the worker r ranks above it, and receives from the one r ranks below. All pieces of all workers have one
order: by the share of their sequence up to their ends, then by turns. So what one worker sends does not wait for all that another one does.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from math import prod
from threading import Condition, Thread

import torch
from torch import Tensor

from sagann.compiler.model_program import Form
from sagann.kernels.memory import empty
from sagann.plan.intervals import sizes
from sagann.plan.part_intervals import PartIntervals
from sagann.plan.steps import Block, Exchanged
from sagann.runtime.blocks.host import Host
from sagann.runtime.workers.group import Workers

_END_S = 5.0
"Seconds within which an exchange that is aborted should have ended."
_LOOK_S = 0.1
"Seconds between looks at the thread, while it works or should end."


class BlockTravel:
    """An exchange that is under way (:class:`sagann.runtime.streaming.part.Travel`).

    Args:
        workers: all workers, as the thread that computes sees them.
        part: intervals of the blocks.
        host: keeps the blocks.
        exchanged: blocks that travel, in the order in which those that are sent are complete.
        form: shape and type of a row.
        doing: what the workers do, for errors.
        after: the exchange that began before this one, and ends before it; None where there is none.
    """

    def __init__(
        self,
        workers: Workers,
        part: PartIntervals,
        host: Host,
        exchanged: Exchanged,
        *,
        form: Form,
        doing: str,
        after: BlockTravel | None,
    ) -> None:
        self._workers, self._beside = workers, workers.beside()
        self._host, self._doing, self._after = host, doing, after
        self._form = form
        row_bytes = prod(form.shape) * form.dtype.itemsize
        self._going, self._coming = (
            {rank: _Sequence(part, blocks, rank, row_bytes) for rank in workers.others}
            for blocks in (exchanged.sends, exchanged.receives)
        )
        intervals = [block.interval for block in exchanged.sends]
        self._goes_down = intervals[:1] > intervals[-1:]
        # What both threads read and write, under its lock.
        self._changed = Condition()
        self._complete: dict[Block, Callable[[], None]] = {}
        self._num_transfers = 0
        self._is_aborted = self._is_done = False
        self._error: BaseException | None = None
        self._thread = Thread(target=self._run, name="sagann-exchange", daemon=True)
        self._thread.start()

    def send(self, block: Block, await_stored: Callable[[], None]) -> None:
        """Let a complete block go, which lies on the host when ``await_stored`` has returned. Raises what has ended the exchange."""
        self._raise_error()
        with self._changed:
            self._complete[block] = await_stored
            self._changed.notify_all()

    def wait(self) -> None:
        """Wait until everything has come and gone.

        Raises:
            WorkerError: a worker is gone, or sends nothing for as long as workers wait for one another.
            SpillError: blocks cannot be read or written.
        """
        if (before := self._after) is not None:
            before.wait()
        patience_s = self._workers.timeout_s
        with self._workers.stopwatch.waiting(), self._changed:
            num_transfers, since_s = self._num_transfers, time.monotonic()
            while not self._is_done:
                peers = self._beside.waits_for
                if self._num_transfers > num_transfers or not peers:
                    num_transfers, since_s = self._num_transfers, time.monotonic()
                left_s = since_s + patience_s - time.monotonic()
                if left_s <= 0:
                    raise self._workers.silent(peers, self._doing, patience_s)
                self._changed.wait(left_s if peers else min(left_s, _LOOK_S))
        self._workers.sent_bytes += self._beside.sent_bytes
        self._beside.sent_bytes = 0
        self._raise_error()

    def abort(self) -> None:
        """End the exchange at once, and the connections on which something travels."""
        with self._changed:
            self._is_aborted = True
            self._changed.notify_all()
        ends_s = time.monotonic() + _END_S
        # The thread may just be between two transfers.
        while self._thread.is_alive() and time.monotonic() < ends_s:
            self._beside.abort()
            self._thread.join(_LOOK_S)

    def _raise_error(self) -> None:
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            if (before := self._after) is not None:
                before._thread.join()
                # What the other workers send then belongs to that exchange.
                before._raise_error()
                self._after = before = None
            self._exchange()
        except BaseException as error:  # noqa: BLE001 - the thread that computes must hear of it.
            self._error = error
        finally:
            with self._changed:
                self._is_done = True
                self._changed.notify_all()

    def _exchange(self) -> None:
        for going, coming in self._rounds():
            # The pieces of a round are freed at its end.
            self._exchange_pieces(going, coming)

    def _exchange_pieces(self, going: _Addressed | None, coming: _Addressed | None) -> None:
        sends = {} if going is None else {going[0]: self._read(*going)}
        receives = {} if coming is None else {coming[0]: self._empty(coming[1])}
        self._transfer(sends, receives)
        if coming is not None:
            self._put(*coming, receives[coming[0]])

    def _transfer(self, sends: dict[int, Tensor], receives: dict[int, Tensor]) -> None:
        if self._is_aborted:
            raise _AbortedError
        self._beside.transfer(sends, receives, self._doing)
        with self._changed:
            self._num_transfers += 1
            self._changed.notify_all()

    def _rounds(self) -> Iterator[tuple[_Addressed | None, _Addressed | None]]:
        """What is sent and what is received at a time, in the order of all workers."""
        rank, size = self._workers.rank, self._workers.size
        said = torch.tensor([self._goes_down])
        from_end = {peer: torch.empty_like(said) for peer, rows in self._coming.items() if rows.pieces}
        self._transfer({peer: said for peer, rows in self._going.items() if rows.pieces}, from_end)
        rounds: dict[tuple[float, int], list[_Addressed | None]] = {}
        for turn in range(1, size):
            to, source = (rank + turn) % size, (rank - turn) % size
            going = self._going[to].in_order(from_end=self._goes_down)
            coming = self._coming[source].in_order(from_end=source in from_end and bool(from_end[source]))
            for way, (peer, pieces) in enumerate(((to, going), (source, coming))):
                for number, piece in enumerate(pieces, 1):
                    rounds.setdefault((number / len(pieces), turn), [None, None])[way] = peer, piece
        for at in sorted(rounds):
            going_piece, coming_piece = rounds[at]
            yield going_piece, coming_piece

    def _read(self, peer: int, piece: _Piece) -> Tensor:
        """A piece to be sent, once it is complete."""
        sequence, rows = self._going[peer], self._empty(piece)
        begin = 0
        for number, at in piece:
            block = sequence.blocks[number]
            self._await_complete(block)
            end = begin + at.stop - at.start
            self._host.get_rows(block, at, rows[begin:end])
            begin = end
        return rows

    def _await_complete(self, block: Block) -> None:
        with self._changed:
            while block not in self._complete and not self._is_aborted:
                self._changed.wait()
            if self._is_aborted:
                raise _AbortedError
            await_stored = self._complete[block]
        await_stored()

    def _put(self, peer: int, piece: _Piece, rows: Tensor) -> None:
        """Put a piece that was received into its blocks."""
        sequence, begin = self._coming[peer], 0
        for number, at in piece:
            end = begin + at.stop - at.start
            self._host.put_rows(sequence.blocks[number], at, rows[begin:end], num_rows=sequence.rows[number])
            begin = end

    def _empty(self, piece: _Piece) -> Tensor:
        return empty((sum(at.stop - at.start for _, at in piece), *self._form.shape), self._form.dtype)


class _AbortedError(Exception):
    """The exchange is aborted. Nobody waits for it any more."""


_Piece = Sequence[tuple[int, slice]]
"Numbers of consecutive blocks, with the rows of each."
_Addressed = tuple[int, _Piece]
"Rank of the worker that gets a piece, or sends it, and the piece."


class _Sequence:
    """The rows of some blocks that travel to or from one worker, by ascending id.

    Args:
        part: intervals of the blocks.
        blocks: blocks of one exchange, in any order.
        peer: rank of the worker.
        row_bytes: bytes of a row.
    """

    def __init__(self, part: PartIntervals, blocks: Sequence[Block], peer: int, row_bytes: int) -> None:
        rows = sizes(part.bounds)
        self.blocks: list[Block] = []
        self.rows: list[int] = []
        for block in sorted(blocks, key=lambda each: each.interval):
            is_own = block.interval < part.num_own
            if (block.peer if is_own else part.owners[block.interval - part.num_own]) == peer:
                self.blocks.append(block)
                self.rows.append(part.sent[block.interval, peer] if is_own else rows[block.interval])
        self.pieces = list(self._cut(part.piece_rows(row_bytes)))

    def in_order(self, *, from_end: bool) -> Sequence[_Piece]:
        """The pieces in the order in which they travel."""
        return self.pieces[::-1] if from_end else self.pieces

    def _cut(self, most_rows: int) -> Iterator[_Piece]:
        piece: list[tuple[int, slice]] = []
        room = most_rows
        for number, rows in enumerate(self.rows):
            begin = 0
            while begin < rows:
                end = min(rows, begin + room)
                piece.append((number, slice(begin, end)))
                room -= end - begin
                begin = end
                if not room:
                    yield piece
                    piece, room = [], most_rows
        if piece:
            yield piece
