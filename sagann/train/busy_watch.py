"""BusyWatch: says once that threads spin on a busy machine, while a run is trained."""

from __future__ import annotations

import time
from collections.abc import Callable

from sagann.runtime.spinning import CoreTime, core_time, waiting_advice
from sagann.train.reporter import EpochRecord, Reporter, RunInfo

_WINDOW_S = 5.0
"Seconds that are looked at together."


class BusyWatch(Reporter):
    """Looks at the thread that trains, every few seconds, until there is something to say.

    Args:
        say: gets the text.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._before: CoreTime | None = None
        self._since_s = 0.0

    def on_start(self, info: RunInfo) -> None:
        """Begin the first window."""
        self._begin()

    def on_epoch(self, record: EpochRecord) -> None:
        """Look, with the seconds of the epoch."""
        self._look(record.epoch_s)

    def _begin(self) -> None:
        self._before, self._since_s = core_time(), time.monotonic()

    def _look(self, step_s: float) -> None:
        if self._before is None or time.monotonic() - self._since_s < _WINDOW_S:
            return
        before = self._before
        self._begin()
        if self._before is not None and (text := waiting_advice(before, self._before, step_s=step_s)):
            self._say(text)
            self._before = None
