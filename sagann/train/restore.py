"""A session goes on from the newest whole checkpoint of its run folder, and nothing else may be mistaken for it.

What is refused before anything is restored: another model, graph or configuration, a checkpoint of another run, and
a folder that has lost its description or its checkpoints.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sagann.errors import CheckpointError
from sagann.train.checkpoint import Checkpoint
from sagann.train.config import TrainConfig
from sagann.train.identity import FREE_OPTIONS, check_same, digest_of
from sagann.train.resources import versions
from sagann.train.run_folder import RunFolder
from sagann.train.session import TrainSession


def restore(
    session: TrainSession,
    folder: RunFolder,
    identity: dict[str, Any],
    *,
    config: TrainConfig,
    on_message: Callable[[str], None],
    noted: Mapping[str, Any] | None = None,
) -> str:
    """Continue the run of a folder in a new session; the folder's history is cut to where the session is.

    Args:
        session: of the same model, graph and configuration, at its first epoch.
        folder: of the run.
        identity: of the model, the graph and the configuration that there are now
            (:func:`~sagann.train.identity.identity_of`).
        config: how to train from here on; what may change in a run stands in ``FREE_OPTIONS``.
        on_message: is told what the user should know: other versions, damaged checkpoints.
        noted: what else run.json says of the run from here on.
    Returns:
        The digest of the run's identity.
    Raises:
        CheckpointError: the run cannot be continued as it is asked to be.
    """
    if folder.has_work and not folder.exists:
        raise CheckpointError(
            "the run has lost its run.json",
            value="nothing tells which model and graph its checkpoints and metrics belong to",
            where=str(folder.path),
            fix="Restore the file, or start anew: --overwrite, or fit(overwrite=True).",
        )
    saved = folder.read_run()
    # Runs from before engines were noted may have had any.
    known = {**saved["identity"], "engine": saved["identity"].get("engine", identity["engine"])}
    check_same(known, identity, where=str(folder.path))
    for name, now in versions().items():
        before = saved["versions"].get(name)
        if before != now:
            on_message(f"The run was started with {name} {before}, this is {now}: its last bits may differ.")
    # As it was written: an option may be 1 now that was 1.0 then.
    run = digest_of(saved["identity"])
    checkpoint = folder.checkpoints.newest(on_damaged=on_message)
    if checkpoint is None:
        _refuse_lost_checkpoints(folder, saved)
        on_message("There is no checkpoint yet; the run starts from its first epoch.")
        folder.cut_history(0)
    else:
        _restore_checkpoint(session, folder, checkpoint, run=run, epochs=config.epochs)
    # All else in run.json stays what the run was started with.
    options = config.to_json()
    free = {name: options[name] for name in FREE_OPTIONS}
    folder.write_run({**saved, "train": {**saved["train"], **free}, **(noted or {})})
    if not session.finished:
        folder.clear_result()
    return run


def _refuse_lost_checkpoints(folder: RunFolder, saved: dict[str, Any]) -> None:
    num_epochs, every = folder.count_history(), saved["train"].get("checkpoint_every")
    # A run that was killed before its first checkpoint starts anew; one that got further has had one.
    if folder.has_result or not isinstance(every, int) or num_epochs > every:
        raise CheckpointError(
            "the run has lost its checkpoints",
            value=f"{num_epochs} epochs were trained, and there is no checkpoint of any",
            where=str(folder.checkpoints.path),
            fix="Restore them, or start anew: --overwrite, or fit(overwrite=True).",
        )


def _restore_checkpoint(
    session: TrainSession, folder: RunFolder, checkpoint: Checkpoint, *, run: str, epochs: int
) -> None:
    where = f"checkpoint of epoch {checkpoint.epoch} in {folder.path}"
    if checkpoint.state["run"] != run:
        raise CheckpointError(
            "the checkpoint belongs to another run",
            value="its identity differs from run.json's",
            where=where,
            fix="Remove it from the folder.",
        )
    if checkpoint.epoch > epochs:
        raise CheckpointError(
            "the run is past its last epoch",
            value=f"epoch {checkpoint.epoch}, epochs is {epochs}",
            where=where,
            fix=f"Set epochs to at least {checkpoint.epoch}.",
        )
    history_bytes = checkpoint.state["history_bytes"]
    history = folder.read_history(checkpoint.state["history_epochs"], history_bytes)
    session.restore(checkpoint, history)
    folder.cut_history(history_bytes)
