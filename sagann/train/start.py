"""Starts a run in its folder, or continues the run that is there.

A run is continued from its newest whole checkpoint. Another model, graph or configuration is refused before anything is
restored, and so are a checkpoint of another run and a folder that has lost its description or its checkpoints.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from sagann.errors import CheckpointError, InputError
from sagann.train.checkpoint import Position, State
from sagann.train.identity import check_same, digest_of
from sagann.train.run import Run
from sagann.train.run_folder import RunFolder
from sagann.train.session import TrainSession


def start_run(folder: RunFolder, run: Run, *, overwrite: bool) -> str:
    """Write run.json into a locked folder, and return the digest of the run's identity.

    An earlier run is removed. With ``overwrite`` false, a run that has trained an epoch is refused, and so are foreign
    files.
    """
    if not overwrite:
        require_no_work(folder)
    if folder.foreign:
        raise InputError(
            f"the run folder holds something else than a run: {', '.join(folder.foreign)}, which no run has "
            f"made (in {folder.path})",
            hint="Choose another folder, or move them away.",
        )
    folder.clear()
    folder.write_run(run)
    return digest_of(run.identity)


def require_no_work(folder: RunFolder) -> None:
    """Refuse a folder with a run that has trained an epoch."""
    if folder.has_work:
        raise InputError(
            f"the run folder holds a run: neither resume nor overwrite was asked for (in {folder.path})",
            hint="Continue it with --resume, or fit(resume=True), replace it with --overwrite, or fit(overwrite=True), or "
            "choose another folder.",
        )


def continue_run(session: TrainSession, folder: RunFolder, run: Run, on_message: Callable[[str], None]) -> str:
    """Continue the run of a locked folder in a new session, and return the digest of the run's identity.

    The session has the same model, graph and configuration, and has not trained yet. ``run`` describes a run that would start
    now; its options and automatic budget replace those in the folder. The folder's history is cut back to the checkpoint.
    ``on_message`` is told of other versions and of damaged checkpoints.
    """
    if folder.has_work and not folder.exists:
        value = "nothing tells which model and graph its checkpoints and metrics belong to"
        raise _lost("run.json", value, str(folder.path))
    saved = folder.read_run()
    checkpoint = folder.checkpoints.newest(on_damaged=on_message)
    check_same(saved.identity, run.identity, where=str(folder.path))
    for name, now in run.versions.items():
        before = saved.versions.get(name)
        if before != now:
            on_message(f"The run was started with {name} {before}, this is {now}: its last bits may differ.")
    # The saved identity: an option may be 1 now that was 1.0 then.
    digest = digest_of(saved.identity)
    if checkpoint is None:
        num_epochs = folder.count_history()
        # A run that was killed before its first checkpoint starts anew. A run that got further has had a checkpoint.
        if folder.has_result or num_epochs > saved.train_config.checkpoint_every:
            value = f"{num_epochs} epochs were trained, and there is no checkpoint of any"
            raise _lost("checkpoints", value, str(folder.checkpoints.path))
        on_message("There is no checkpoint yet; the run starts from its first epoch.")
        folder.cut_history(0)
    else:
        _require_of_run(checkpoint, digest, epochs=session.config.epochs, where=str(folder.checkpoints.path))
        num_bytes = checkpoint["history_bytes"]
        session.restore(checkpoint, folder.read_history(checkpoint["epoch"], num_bytes))
        folder.cut_history(num_bytes)
    folder.write_run(replace(saved, train_config=run.train_config, automatic_bytes=run.automatic_bytes))
    if session.finished:
        on_message(_nothing_left(session))
    else:
        folder.clear_result()
    return digest


def _require_of_run(checkpoint: State, run: str, *, epochs: int, where: str) -> None:
    """Refuse the checkpoint of another run, and one past the last epoch."""
    position = Position.of(checkpoint)
    where = f"checkpoint of {position} in {where}"
    if checkpoint["run"] != run:
        raise CheckpointError(
            f"the checkpoint belongs to another run: its identity differs from run.json's (in {where})",
            hint="Remove it from the folder.",
        )
    if position > Position(epochs):
        raise CheckpointError(
            f"the run is past its last epoch: {position}, epochs is {epochs} (in {where})",
            hint=f"Set epochs to at least {position.epoch + (position.batch > 0)}.",
        )


def _nothing_left(session: TrainSession) -> str:
    tracker = session.tracker
    if tracker.exhausted:
        why = f"the run stopped early after epoch {session.epoch}: {tracker.monitor} has not improved since epoch {tracker.improved}"
        return f"Nothing is left to train: {why}, and patience is {tracker.patience}. Raise patience to go on."
    return f"Nothing is left to train: the run has had its {session.epoch} epochs. Raise epochs to go on."


def _lost(what: str, value: str, where: str) -> CheckpointError:
    hint = "Restore the lost files, or start anew: --overwrite, or fit(overwrite=True)."
    return CheckpointError(f"the run has lost its {what}: {value} (in {where})", hint=hint)
