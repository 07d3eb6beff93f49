"""Saver: keeps the work of a run in its folder, so that no more than a few epochs or seconds of work can be lost."""

from __future__ import annotations

import time

from sagann.train.epoch_progress import EpochProgress
from sagann.train.reporter import EpochRecord, Reporter
from sagann.train.run_folder import RunFolder
from sagann.train.session import TrainSession

_MOST_UNSAVED_S = 4.0
"Seconds of work after which a run is saved, whatever ``checkpoint_every`` is."
_LEAST_SPACING = 20
"Least seconds of work between such checkpoints, as a multiple of the seconds that writing one took."


class Saver(Reporter):
    """Writes a line of history for each epoch of a session, and a checkpoint where one is due.

    A checkpoint is due every ``checkpoint_every`` epochs, and after some seconds of work without one, also between two batches of
    an epoch: where epochs are long, a kill would lose hours.

    Args:
        session: the run.
        folder: its folder, locked.
        run: digest of the run's identity.
    """

    def __init__(self, session: TrainSession, folder: RunFolder, run: str) -> None:
        self._session, self._folder, self._run = session, folder, run
        self._saved, self._saved_s = session.position, time.perf_counter()
        self._cost_s = 0.0
        "Seconds that the last checkpoint took."

    @property
    def is_late(self) -> bool:
        """Whether so many seconds of work have no checkpoint that one is due."""
        unsaved_s = time.perf_counter() - self._saved_s
        return unsaved_s >= max(_MOST_UNSAVED_S, _LEAST_SPACING * self._cost_s)

    def on_batch(self, progress: EpochProgress) -> None:
        """Save the batch that was trained last, where a checkpoint is due."""
        if self.is_late:
            self.save()

    def on_epoch(self, record: EpochRecord) -> None:
        """Add the epoch that was trained last to the history, and save it where a checkpoint is due."""
        self._folder.append(record)
        if self.is_late or record.epoch % self._session.config.checkpoint_every == 0:
            self.save()

    def save(self) -> None:
        """Write a checkpoint of all that was trained, if there is none."""
        position = self._session.position
        if position == self._saved:
            return
        started_s = time.perf_counter()
        history_bytes = self._folder.sync_history()
        self._folder.checkpoints.write(self._session.state_dict(run=self._run, history_bytes=history_bytes))
        self._saved, self._saved_s = position, time.perf_counter()
        self._cost_s = self._saved_s - started_s
