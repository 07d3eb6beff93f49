"""RunFolder: what a run leaves on disk.

Every file is whole or absent, but for ``metrics.jsonl`` and ``events/``, which grow: a kill may cut their end, and a
resume cuts ``metrics.jsonl`` back to its checkpoint.

===================  ============================================================================
``run.json``         model, training options, data, versions: enough to reopen the run
``metrics.jsonl``    a line per epoch
``checkpoints/``     the newest checkpoints (see sagann.train.checkpoint)
``model.safetensors``  the weights that the run ended with
``metrics.json``     the summary, written last
``profile.json``     what ran when in the last streamed epoch, and was to be expected, where asked for
``profile.png``      the same as a picture
``events/``          TensorBoard events, where asked for
===================  ============================================================================

A lock on the folder keeps two processes from training into it at once; the system drops it with the process.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from torch import Tensor

from sagann.errors import CheckpointError, InputError
from sagann.storage.durable import TEMPORARY_PREFIX, sync_folder
from sagann.storage.regular_file import require_file
from sagann.train.atomic import disk_errors, parse_json, remove_folder, remove_leftovers, write_json, write_tensors
from sagann.train.checkpoint import CheckpointFolder, file_digest
from sagann.train.codec import encode
from sagann.train.reporter import EpochRecord

FORMAT = 1
RUNS = Path("runs")
"Folder in which runs get folders of their own, where none is named."
RUN_FILE = "run.json"
"What makes a folder a run: it is written before the first epoch."
RESULT_FILES = ("metrics.json", "model.safetensors")
"What a run leaves at its end, in the order in which they are removed."
AUTOMATIC = "automatic_memory_bytes"
"In run.json: the memory budget that the run chose by itself; null for none."
EXTRA_STATE = "$extra_state"
"In model.safetensors: the key of what is no tensor; tensors inside it have names that begin so, as no parameter's does."
PROFILE_FILE, PICTURE_FILE = "profile.json", "profile.png"
"When steps and copies ran."
_DESCRIPTION = ("model", "train", "contract", "versions", "identity")
HISTORY_FILE, LOCK_FILE = "metrics.jsonl", ".lock"
CONFIG_FILE = "config.toml"
"The settings of the command line: ``sagann train --config RUN/config.toml`` does the same run again."
_CHECKPOINTS, EVENTS = "checkpoints", "events"
WRITTEN_ASIDE = (RUN_FILE, *RESULT_FILES, PROFILE_FILE, PICTURE_FILE, CONFIG_FILE, _CHECKPOINTS, EVENTS)
"What is written, or removed, under another name first."


class RunFolder:
    """The folder of one run.

    Args:
        path: the folder; made by :meth:`locked`.
        keep_checkpoints: number of newest checkpoints to keep.
    """

    def __init__(self, path: Path, *, keep_checkpoints: int = 2) -> None:
        self.path = path
        self.checkpoints = CheckpointFolder(path / _CHECKPOINTS, keep=keep_checkpoints)
        self._lines: BinaryIO | None = None

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the folder for this process.

        Raises:
            InputError: another process holds it, or there is a file in its place.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise _unusable(self.path, error) from error
        with (self.path / LOCK_FILE).open("ab") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise InputError(
                    "the run folder is in use",
                    value="another process is training into it",
                    where=str(self.path),
                    fix="Wait for it, stop it, or choose another folder.",
                ) from error
            if not self.foreign:
                remove_leftovers(self.path, WRITTEN_ASIDE)
            try:
                yield
            finally:
                self.close()

    @property
    def exists(self) -> bool:
        """Whether a run was started here."""
        return (self.path / RUN_FILE).exists()

    @property
    def has_work(self) -> bool:
        """Whether an epoch was trained here, so that something would be lost; also where run.json is missing."""
        history = self.path / HISTORY_FILE
        return (
            self.has_result or bool(self.checkpoints.epochs()) or (history.exists() and history.stat().st_size > 0)
        )

    @property
    def is_described(self) -> bool:
        """Whether there is a run.json of ours; it goes last."""
        try:
            found = parse_json((self.path / RUN_FILE).read_bytes())
        except (OSError, ValueError):
            found = None
        return isinstance(found, dict) and {"format", "identity"} <= found.keys()

    @property
    def foreign(self) -> list[str]:
        """What a new run would replace, and no run has made."""
        names = (RUN_FILE, _CHECKPOINTS, EVENTS, PROFILE_FILE, PICTURE_FILE)
        is_run = self.is_described or self.has_work
        return [] if is_run else [name for name in names if (self.path / name).exists()]

    @property
    def has_result(self) -> bool:
        """Whether a run ended here."""
        return any((self.path / name).exists() for name in RESULT_FILES)

    def clear(self) -> None:
        """Remove what a run left. Checkpoints go first, so that a kill leaves nothing to resume wrongly."""
        remove_folder(self.checkpoints.path)
        remove_folder(self.path / EVENTS)
        for name in (*RESULT_FILES, PROFILE_FILE, PICTURE_FILE, HISTORY_FILE, RUN_FILE):
            (self.path / name).unlink(missing_ok=True)
        sync_folder(self.path)

    def clear_result(self) -> None:
        """Remove metrics.json, then the final weights: the run goes on, and they would be of an earlier epoch."""
        for name in RESULT_FILES:
            (self.path / name).unlink(missing_ok=True)
        sync_folder(self.path)

    def write_run(self, description: Mapping[str, Any]) -> None:
        """Write run.json."""
        with disk_errors(self.path):
            write_json(self.path / RUN_FILE, {"format": FORMAT, **description})

    def read_run(self) -> dict[str, Any]:
        """Read run.json.

        Raises:
            CheckpointError: there is none, or it is not one of ours.
        """
        path = self.path / RUN_FILE
        require_file(path, error=CheckpointError)
        try:
            found = parse_json(path.read_bytes())
        except (OSError, ValueError) as error:
            raise CheckpointError(
                "not a run folder",
                value=f"run.json cannot be read ({type(error).__name__})",
                where=str(self.path),
                fix="Pass the folder that a training run wrote (--out).",
            ) from error
        if not isinstance(found, dict) or found.get("format") != FORMAT:
            version = found.get("format") if isinstance(found, dict) else None
            raise CheckpointError(
                "run folder of another version",
                value=f"format {version!r}, expected {FORMAT}",
                where=str(path),
                fix="Open it with the version of sagann that wrote it.",
            )
        missing = [name for name in _DESCRIPTION if not isinstance(found.get(name), dict)]
        if missing:
            raise CheckpointError(
                "run.json is damaged",
                value=f"{', '.join(missing)}: missing, or not a mapping",
                where=str(path),
                fix="Restore the file, or train again: --overwrite, or fit(overwrite=True).",
            )
        return found

    def append(self, record: EpochRecord) -> None:
        """Add a line to metrics.jsonl."""
        with disk_errors(self.path):
            if self._lines is None:
                self._lines = (self.path / HISTORY_FILE).open("ab")
            self._lines.write((json.dumps(record.to_json(), allow_nan=False) + "\n").encode())
            self._lines.flush()

    def sync_history(self) -> int:
        """Put metrics.jsonl on the disk; its length in bytes."""
        if self._lines is None:
            return 0
        with disk_errors(self.path):
            os.fsync(self._lines.fileno())
            return self._lines.tell()

    def read_history(self, num_epochs: int, num_bytes: int) -> list[EpochRecord]:
        """The first ``num_epochs`` lines of metrics.jsonl, which are ``num_bytes`` long.

        Raises:
            CheckpointError: they are not there.
        """
        path = self.path / HISTORY_FILE
        try:
            content = path.read_bytes()[:num_bytes] if num_bytes else b""
            records = [EpochRecord.from_json(parse_json(line)) for line in content.splitlines()]
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise _lost_history(path, f"{type(error).__name__}: {error}") from error
        epochs = [record.epoch for record in records]
        if len(content) != num_bytes or epochs != list(range(1, num_epochs + 1)):
            raise _lost_history(
                path, f"{len(records)} epochs in {len(content)} bytes, expected {num_epochs} epochs"
            )
        return records

    def count_history(self) -> int:
        """Number of lines of metrics.jsonl; 0 where there is none."""
        path = self.path / HISTORY_FILE
        return path.read_bytes().count(b"\n") if path.exists() else 0

    def cut_history(self, num_bytes: int) -> None:
        """Cut metrics.jsonl back to its first ``num_bytes``."""
        self.close()
        with (self.path / HISTORY_FILE).open("ab") as file:
            file.truncate(num_bytes)
            os.fsync(file.fileno())

    def write_result(self, state: Mapping[str, Any], summary: Mapping[str, Any]) -> None:
        """Write model.safetensors, then metrics.json, which holds the checksum of the weights.

        Args:
            state: the model's state_dict; what is no tensor in it (the extra state of a module) goes into the metadata of
                model.safetensors.
            summary: what metrics.json says.
        """
        tensors = {name: value for name, value in state.items() if isinstance(value, Tensor)}
        extra = {name: value for name, value in state.items() if name not in tensors}
        metadata = {EXTRA_STATE: json.dumps(encode(extra, tensors, name=EXTRA_STATE))} if extra else {}
        with disk_errors(self.path):
            aside = self.path / f"{TEMPORARY_PREFIX}model.safetensors"
            write_tensors(aside, tensors, metadata)
            checksum = file_digest(aside)
            aside.replace(self.path / "model.safetensors")
            write_json(self.path / "metrics.json", {**summary, "weights_checksum": checksum})

    def close(self) -> None:
        """Close metrics.jsonl."""
        if self._lines is not None:
            self._lines.close()
            self._lines = None


def is_of_run(file: Path | None) -> bool:
    """Whether a file lies in the folder of a run."""
    return file is not None and RunFolder(file.parent).exists


def _lost_history(path: Path, value: str) -> CheckpointError:
    return CheckpointError(
        "metrics.jsonl does not reach the checkpoint",
        value=value,
        where=str(path),
        fix="Restore the file, or start the run anew: fit(overwrite=True).",
    )


def _unusable(path: Path, error: OSError) -> InputError:
    return InputError(
        "the run folder cannot be made",
        value=f"{type(error).__name__}: {error.strerror}",
        where=str(path),
        fix="Choose a folder that you may write to.",
    )
