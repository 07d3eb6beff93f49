"""Saver: keeps the work of a run in its folder, so that no more than a few epochs or seconds of work can be lost."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from sagann.errors import CheckpointError
from sagann.train.checkpoint import Position, pack, unpack
from sagann.train.identity import check_same, digest_of
from sagann.train.reporter import EpochProgress, EpochRecord, Reporter
from sagann.train.run import Run
from sagann.train.run_folder import RunFolder
from sagann.train.session import TrainSession

_MOST_UNSAVED_S = 4.0
"Seconds of work after which a run is saved, whatever ``checkpoint_every`` is."
_LEAST_SPACING = 20
"Least seconds of work between such checkpoints, as a multiple of the seconds that writing one took."


class Saver(Reporter):
    """Writes a line of history for each epoch of a session into its locked folder, and a checkpoint where one is due.

    A checkpoint is due every ``checkpoint_every`` epochs, and after some seconds of work without one, also between two batches of
    an epoch: where epochs are long, a kill would lose hours. ``run`` is the digest of the run's identity.
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

    def needs_weights(self, epoch: int) -> bool:
        """Whether a checkpoint is due after an epoch."""
        return self.is_late or epoch % self._session.config.checkpoint_every == 0

    def on_batch(self, progress: EpochProgress) -> None:
        """Save the batch that was trained last, where a checkpoint is due, unless the next one has begun."""
        if self.is_late and not self._session.is_ahead:
            self.save()

    def on_epoch(self, record: EpochRecord) -> None:
        """Add the epoch that was trained last to the history, and save it where a checkpoint is due."""
        self._folder.append(record)
        # Where the next epoch has begun, it is saved after that.
        if not self._session.is_ahead and self.needs_weights(record.epoch):
            self.save()

    def save(self) -> None:
        """Write a checkpoint of all that was trained, if there is none."""
        position, started_s = self._session.position, time.perf_counter()
        if position == self._saved:
            return
        history_bytes = self._folder.sync_history()
        self._folder.checkpoints.write(self._session.state_dict(run=self._run, history_bytes=history_bytes))
        self._saved, self._saved_s = position, time.perf_counter()
        self._cost_s = self._saved_s - started_s


def start_run(folder: RunFolder, run: Run, *, overwrite: bool) -> str:
    """Remove an earlier run from a locked folder, write run.json, and return the digest of the run's identity."""
    folder.require_free(overwrite=overwrite)
    folder.clear()
    folder.write_run(run)
    return digest_of(run.identity)


def continue_run(session: TrainSession, folder: RunFolder, run: Run, on_message: Callable[[str], None]) -> str:
    """Continue the run of a locked folder in a new session, from its newest whole checkpoint; return the digest of the run's identity.

    ``run`` describes a run that would start now; its options and automatic budget replace those in the folder. The folder's history is cut
    back to the checkpoint. Another model, graph or configuration is refused before anything is restored.
    """
    if folder.has_work and not folder.exists:
        raise _lost(
            "run.json", "nothing tells which model and graph its checkpoints and metrics belong to", folder.path
        )
    saved = folder.read_run()
    checkpoint = folder.checkpoints.newest(on_damaged=on_message)
    now = dict(run.identity)
    if saved.train_config.devices is not None or run.train_config.devices is not None:
        # The weights may lie on another device where others train.
        now["train"] = {**now["train"], "device": saved.device}
    check_same(saved.identity, now, where=str(folder.path))
    for name, version in run.versions.items():
        if (before := saved.versions.get(name)) != version:
            on_message(f"The run was started with {name} {before}, this is {version}: its last bits may differ.")
    # The saved identity: an option may be 1 now that was 1.0 then.
    digest, epochs, num_bytes = digest_of(saved.identity), session.config.epochs, 0
    if checkpoint is None:
        num_epochs = folder.count_history()
        # A run that was killed before its first checkpoint starts anew. A run that got further has had a checkpoint.
        if folder.has_result or num_epochs > saved.train_config.checkpoint_every:
            value = f"{num_epochs} epochs were trained, and there is no checkpoint of any"
            raise _lost("checkpoints", value, folder.checkpoints.path)
        on_message("There is no checkpoint yet; the run starts from its first epoch.")
    else:
        position, num_bytes = Position.of(checkpoint), checkpoint["history_bytes"]
        where = f"checkpoint of {position} in {folder.checkpoints.path}"
        if checkpoint["run"] != digest:
            raise CheckpointError(
                f"the checkpoint belongs to another run: its identity differs from run.json's (in {where})",
                hint="Remove it from the folder.",
            )
        if position > Position(epochs):
            raise CheckpointError(
                f"the run is past its last epoch: {position}, epochs is {epochs} (in {where})",
                hint=f"Set epochs to at least {position.epoch + (position.batch > 0)}.",
            )
        session.restore(checkpoint, folder.read_history(position.epoch, num_bytes))
    folder.cut_history(num_bytes)
    folder.write_run(replace(saved, train_config=run.train_config, automatic_bytes=run.automatic_bytes))
    if not session.finished:
        folder.clear_result()
        return digest
    why, tracker = f"the run has had its {session.epoch} epochs. Raise epochs", session.tracker
    if tracker.exhausted:
        why = (
            f"the run stopped early after epoch {session.epoch}: {tracker.monitor} has not improved since epoch {tracker.improved}, and "
            f"patience is {tracker.patience}. Raise patience"
        )
    on_message(f"Nothing is left to train: {why} to go on.")
    return digest


def continue_together(session: TrainSession) -> None:
    """Bring every worker's session to the state of the first worker's. No other worker reads the run folder."""
    content, team = None, session.team
    if team.is_first:
        history = [record.to_json() for record in session.history]
        content = pack({"state": session.state_dict(run="", history_bytes=0), "history": history})
    content = team.from_first(content, "sharing the checkpoint")
    if not team.is_first:
        found = unpack(content)
        session.restore(found["state"], [EpochRecord.from_json(line) for line in found["history"]])


def _lost(what: str, value: str, where: Path) -> CheckpointError:
    hint = "Restore the lost files, or start anew: --overwrite, or fit(overwrite=True)."
    return CheckpointError(f"the run has lost its {what}: {value} (in {where})", hint=hint)
