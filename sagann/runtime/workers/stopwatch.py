"""Stopwatch: the seconds of a worker's own computing in a step of training, by kind of operation. Waiting does not count.

What is left is time on the wall, not time of the processor: a worker that the system holds back takes as much time of the processor as
others, but is slower. Workers exchange rows of the halo in the same order. So these exchanges cut a step into the same pieces at every
worker, and each piece is a kind of operation: ``forward n``, from the n-th exchange to the next one or to the loss; ``backward n``, the
gradients of the same; ``forward 0`` and ``backward 0``, where no edge reads rows of others.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Lap:
    """A kind of operation in a step."""

    row_bytes: int
    "Bytes of a source's row that the edges read; 0 where no edge reads rows."
    seconds: float


class Stopwatch:
    """Measures a worker's steps. Outside of a step nothing is measured.

    ``finish`` waits until the device has computed what it was given. It is called wherever a piece, or computing before a wait, ends.

    Example:
        >>> watch = Stopwatch()
        >>> watch.start()
        >>> number = watch.exchange(row_bytes=64)
        >>> watch.turn()
        >>> watch.give_back(number)
        >>> watch.stop()
        >>> {kind: lap.row_bytes for kind, lap in watch.take().items()}
        {'forward 0': 0, 'forward 1': 64, 'backward 1': 64, 'backward 0': 0}
    """

    def __init__(self, finish: Callable[[], None] = lambda: None) -> None:
        self._finish = finish
        self._laps: dict[str, Lap] = {}
        self._since_s: float | None = None
        "When the piece that runs now began, less the waits in it; None outside of a step."
        self._kind, self._row_bytes = "", 0
        self._widths: list[int] = []
        "Bytes of a source's row in each exchange of the step so far."

    def start(self) -> None:
        """A step begins. A second step before :meth:`take` adds to the first one."""
        self._widths = []
        self._kind, self._row_bytes = "forward 0", 0
        self._since_s = time.perf_counter()

    def exchange(self, *, row_bytes: int) -> int:
        """Rows of the halo, of ``row_bytes`` each, are exchanged now. The result is the number of the exchange in the step, from 1."""
        if self._since_s is None:
            return 0
        self._end_piece()
        self._widths.append(row_bytes)
        self._kind, self._row_bytes = f"forward {len(self._widths)}", row_bytes
        return len(self._widths)

    def turn(self) -> None:
        self._end_piece()
        self._kind, self._row_bytes = "backward 0", 0

    def give_back(self, number: int) -> None:
        """Gradients of the rows of an exchange go back now: the piece before was the backward of that exchange's gather."""
        if self._since_s is not None and number:
            self._kind, self._row_bytes = f"backward {number}", self._widths[number - 1]
            self._end_piece()
            self._kind, self._row_bytes = "backward 0", 0

    def stop(self) -> None:
        self._end_piece()
        self._since_s = None

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Inside the ``with`` block the watch stands still."""
        if self._since_s is not None:
            self._finish()
        began_s = time.perf_counter()
        try:
            yield
        finally:
            if self._since_s is not None:
                self._since_s += time.perf_counter() - began_s

    def take(self) -> dict[str, Lap]:
        """The kinds of operations of all steps since the last call."""
        laps, self._laps = self._laps, {}
        return laps

    def _end_piece(self) -> None:
        if self._since_s is None:
            return
        self._finish()
        now_s = time.perf_counter()
        known = self._laps.get(self._kind)
        seconds = now_s - self._since_s + (0.0 if known is None else known.seconds)
        self._laps[self._kind] = Lap(row_bytes=self._row_bytes, seconds=seconds)
        self._since_s = now_s
