"""Pinned memory that is reused: the system takes far longer to pin memory than to copy it."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Sequence
from threading import Condition

from torch import Tensor

from sagann.kernels.memory import allocated_bytes
from sagann.plan.steps import UNLIMITED
from sagann.plan.timeline import LANES
from sagann.runtime.device.streams import Mark, Streams

_PAGE_BYTES = 4096


class PinnedPool:
    """Pieces of pinned memory by size, from any thread.

    A piece is returned with a mark, and is given out again only after the mark is passed. A pool with a limit is a ring: a
    thread that needs more memory waits for the piece that was returned first. A single piece may be larger than the limit.

    Args:
        streams: queues of the device.
        most_bytes: limit for all pieces together.
        most_times: a free piece is given out for as little as its size over this; where pieces differ in size, few are pinned so.
    """

    def __init__(self, streams: Streams, most_bytes: int = UNLIMITED, *, most_times: float = 1.0) -> None:
        self._streams = streams
        self._most_bytes, self._most_times = most_bytes, most_times
        self._changed = Condition()
        self._free: OrderedDict[int, Tensor] = OrderedDict()
        "Free pieces by address, the oldest first."
        self._returned: deque[tuple[Tensor, Mark]] = deque()
        self._held_bytes = 0
        "Bytes of all pieces: given out, returned and free."
        self._num_given = 0

    def take(self, num_bytes: int) -> Tensor:
        """A piece of at least ``num_bytes``, uint8. Waits until the limit allows one."""
        size = -(-allocated_bytes(max(num_bytes, 1)) // _PAGE_BYTES) * _PAGE_BYTES
        with self._changed:
            while self._returned and self._streams.is_passed(self._returned[0][1]):
                self._free_returned()
            while (piece := self._reused(size)) is None and not self._has_room(size):
                self._wait()
            if piece is None:
                piece = self._streams.pinned(size)
                self._held_bytes += size
            self._num_given += 1
            return piece

    def give(self, piece: Tensor, mark: Mark | None = None) -> None:
        """Return a piece, with the mark after the last copy that touches it; None where no copy is under way."""
        with self._changed:
            self._num_given -= 1
            if mark is None:
                self._free[piece.data_ptr()] = piece
            else:
                self._returned.append((piece, mark))
            self._changed.notify_all()

    def reclaim(self, pieces: Sequence[Tensor]) -> None:
        """Take pieces back, once all lanes have done what they were given."""
        for lane in LANES if pieces else ():
            self._streams.finish(self._streams.mark(lane))
        for piece in pieces:
            self.give(piece)

    def _reused(self, size: int) -> Tensor | None:
        # The piece that was used last comes first: it may still be in the processor's cache.
        fitting = [
            address for address in reversed(self._free) if 1 <= len(self._free[address]) / size <= self._most_times
        ]
        return self._free.pop(min(fitting, key=lambda each: len(self._free[each]))) if fitting else None

    def _has_room(self, size: int) -> bool:
        while self._held_bytes + size > self._most_bytes and self._free:
            _, oldest = self._free.popitem(last=False)
            self._held_bytes -= len(oldest)
        return self._held_bytes + size <= self._most_bytes or not self._held_bytes

    def _wait(self) -> None:
        """Wait for the piece that was returned first, or else until a piece is returned."""
        if self._returned:
            # If this fails, the piece stays in the queue, and the next caller gets the same error.
            self._streams.finish(self._returned[0][1])
            self._free_returned()
        else:
            assert self._num_given, "a held piece is given out, returned or free"
            self._changed.wait()

    def _free_returned(self) -> None:
        piece, _ = self._returned.popleft()
        self._free[piece.data_ptr()] = piece
