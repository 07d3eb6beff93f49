"""Pinned memory, used again: to make it takes the system far longer than to copy it."""

from __future__ import annotations

from collections import OrderedDict, deque
from threading import Condition

from torch import Tensor

from sagann.kernels.memory import allocated_bytes
from sagann.plan.steps import UNLIMITED
from sagann.runtime.device.streams import Mark, Streams

_PAGE_BYTES = 4096


class PinnedPool:
    """Pieces of pinned memory by size, from any thread.

    Pieces come back with a mark: they are not given again before it is passed. Within a limit they are a ring: who wants
    more waits for the piece that came back first.

    Args:
        streams: of the device.
        most_bytes: that pieces may have together; one piece alone may be larger.
    """

    def __init__(self, streams: Streams, most_bytes: int = UNLIMITED) -> None:
        self._streams = streams
        self._most_bytes = most_bytes
        self._changed = Condition()
        # Addresses tell pieces apart.
        self._free: OrderedDict[int, Tensor] = OrderedDict()
        self._returned: deque[tuple[Tensor, Mark]] = deque()
        self._held_bytes = 0
        "Of all pieces: those given, those that came back and those that are free."
        self._num_given = 0

    def take(self, num_bytes: int) -> Tensor:
        """A piece of at least so many bytes, uint8; waits for room.

        Raises:
            InputError: the system does not give the memory.
        """
        size = -(-allocated_bytes(max(num_bytes, 1)) // _PAGE_BYTES) * _PAGE_BYTES
        with self._changed:
            while True:
                if (piece := self._reused(size)) is not None:
                    break
                if self._has_room(size):
                    self._held_bytes += size
                    try:
                        piece = self._streams.pinned(size)
                    except BaseException:
                        self._held_bytes -= size
                        raise
                    break
                self._wait()
            self._num_given += 1
            return piece

    def give(self, piece: Tensor, mark: Mark | None = None) -> None:
        """Return a piece.

        Args:
            piece: as it was taken.
            mark: of the copy that is the last to touch it, where one is under way.
        """
        with self._changed:
            self._num_given -= 1
            if mark is None:
                self._free[piece.data_ptr()] = piece
            else:
                self._returned.append((piece, mark))
            self._changed.notify_all()

    def _reused(self, size: int) -> Tensor | None:
        # The one that was used last.
        for address in reversed(self._free):
            if len(self._free[address]) == size:
                return self._free.pop(address)
        return None

    def _has_room(self, size: int) -> bool:
        while self._held_bytes + size > self._most_bytes and self._free:
            _, oldest = self._free.popitem(last=False)
            self._held_bytes -= len(oldest)
        return self._held_bytes + size <= self._most_bytes or not self._held_bytes

    def _wait(self) -> None:
        """Have a piece come free: the one whose copy was queued first, or else whichever comes back."""
        if self._returned:
            piece, mark = self._returned[0]
            # Where that fails, the piece is not lost: whoever asks next is told as well.
            self._streams.finish(mark)
            self._returned.popleft()
            self._free[piece.data_ptr()] = piece
        else:
            assert self._num_given, "pieces that are held are given, returned or free"
            self._changed.wait()
