"""RunFolder: the files that a run leaves on disk.

Every file is whole or absent, except ``metrics.jsonl`` and ``events/``, which grow. A kill may cut their end; a resume cuts
``metrics.jsonl`` back to its checkpoint. A lock on the folder keeps two processes from training into it at once.

- ``run.json``: model, training options, data, versions: enough to reopen the run
- ``metrics.jsonl``: a line per epoch
- ``checkpoints/``: the newest checkpoints (:mod:`sagann.train.checkpoint`)
- ``model.safetensors``, ``metrics.json``: the weights that the run ended with, and the summary, written last
- ``profile.json``, ``profile.png``, ``events/``: the profile of the last epoch, and TensorBoard events, where asked for
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import torch
from filelock import FileLock, Timeout
from torch import Tensor

from sagann.errors import CheckpointError, InputError, in_one_line, shown
from sagann.storage.folder import sync_folder, write_whole
from sagann.train.checkpoint import CheckpointFolder, digest, disk_errors, pack, plain, unpack
from sagann.train.reporter import EpochRecord
from sagann.train.run import Run

FORMAT = 2
RUNS = Path("runs")
"Folder of the folders of runs, where no run folder is named."
RUN_FILE = "run.json"
"Description of the run, written before the first epoch. A folder with such a file is a run."
CONFIG_FILE = "config.toml"
"Settings of the command line: ``sagann train --config RUN/config.toml`` does the same run again."
HISTORY_FILE, LOCK_FILE = "metrics.jsonl", ".lock"
PROFILE_FILE, PICTURE_FILE = "profile.json", "profile.png"
EVENTS, _CHECKPOINTS = "events", "checkpoints"
_SUMMARY_FILE, _WEIGHTS_FILE = "metrics.json", "model.safetensors"
_EXTRA_STATE = "$extra_state"
"Name of a tensor in model.safetensors that no parameter has: the bytes of the values of a state_dict that are no tensors."


class RunFolder:
    """The folder of one run, which keeps the newest checkpoints. The folder is made by :meth:`locked`."""

    def __init__(self, path: Path, *, keep_checkpoints: int = 2) -> None:
        self.path = path
        self.checkpoints = CheckpointFolder(path / _CHECKPOINTS, keep=keep_checkpoints)
        self._history = path / HISTORY_FILE
        self._lines: BinaryIO | None = None

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the folder, which is made if it is missing. A folder that another process holds is an InputError, and so is one with links that a run would write to."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(
                f"the run folder cannot be made: {type(error).__name__}: {error.strerror} (in {self.path})",
                hint="Choose a folder that you may write to.",
            ) from error
        for path in (self.path / name for name in (LOCK_FILE, HISTORY_FILE, _CHECKPOINTS, EVENTS)):
            if path.is_symlink():
                raise InputError(
                    f"the run folder has a link in it, which a run would write to: '{path.name}' leads to "
                    f"{shown(os.readlink(path))} (in {self.path})",
                    hint="Put the file or folder itself in its place; the run folder as a whole may be a link.",
                )
        try:
            with FileLock(self.path / LOCK_FILE, timeout=0):
                yield
        except Timeout as error:
            raise InputError(
                f"the run folder is in use: another process is training into it (in {self.path})",
                hint="Wait for it, stop it, or choose another folder.",
            ) from error
        finally:
            self.close()

    @property
    def exists(self) -> bool:
        """Whether a run was started here: there is a run.json of ours, the last file that :meth:`clear` removes."""
        try:
            found = json.loads((self.path / RUN_FILE).read_bytes())
        except (OSError, ValueError):
            return False
        return isinstance(found, dict) and {"format", "identity"} <= found.keys()

    @property
    def has_work(self) -> bool:
        """Whether an epoch or a part of one was kept here, which an overwrite would lose; also where run.json is missing."""
        return self.has_result or bool(self.checkpoints.positions()) or self.count_history() > 0

    @property
    def has_result(self) -> bool:
        """Whether a run ended here."""
        return (self.path / _SUMMARY_FILE).exists()

    def require_free(self, *, overwrite: bool) -> None:
        """Refuse a folder with a run that has trained an epoch, unless it is to be replaced, and files of others under names of a run's files."""
        has_work = self.has_work
        if has_work and not overwrite:
            raise InputError(
                f"the run folder holds a run: neither resume nor overwrite was asked for (in {self.path})",
                hint="Continue it with --resume, or fit(resume=True), replace it with --overwrite, or fit(overwrite=True), or "
                "choose another folder.",
            )
        names = (RUN_FILE, _CHECKPOINTS, EVENTS, PROFILE_FILE, PICTURE_FILE, _WEIGHTS_FILE)
        foreign = [name for name in names if (self.path / name).exists()]
        if foreign and not (has_work or self.exists):
            raise InputError(
                f"the run folder holds something else than a run: {', '.join(foreign)}, which no run has made (in {self.path})",
                hint="Choose another folder, or move them away.",
            )

    def clear(self) -> None:
        """Remove the files of a run. Checkpoints go first, so that after a kill no wrong run is resumed."""
        for folder in (self.checkpoints.path, self.path / EVENTS):
            if folder.exists():
                shutil.rmtree(folder)
        self._remove(_SUMMARY_FILE, _WEIGHTS_FILE, PROFILE_FILE, PICTURE_FILE, HISTORY_FILE, RUN_FILE)

    def clear_result(self) -> None:
        """Remove metrics.json, then the final weights: where the run goes on, both would be of an earlier epoch."""
        self._remove(_SUMMARY_FILE, _WEIGHTS_FILE)

    def _remove(self, *names: str) -> None:
        for name in names:
            (self.path / name).unlink(missing_ok=True)
        sync_folder(self.path)

    def _write_json(self, name: str, value: Mapping[str, Any]) -> None:
        write_whole(self.path / name, (json.dumps(value, indent=2, allow_nan=False) + "\n").encode())

    def write_run(self, run: Run) -> None:
        """Write run.json."""
        with disk_errors(self.path):
            self._write_json(RUN_FILE, {"format": FORMAT, **run.to_json()})

    def read_run(self) -> Run:
        """Read run.json. A missing or foreign file is a CheckpointError."""
        path = self.path / RUN_FILE
        try:
            found = json.loads(path.read_bytes())
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else in_one_line(error)
            raise CheckpointError(
                f"not a run folder: run.json cannot be read: {why} (in {self.path})",
                hint="Pass the folder that a training run wrote (--out).",
            ) from error
        version = found.get("format") if isinstance(found, dict) else None
        if version != FORMAT:
            raise CheckpointError(
                f"run folder of another version: format {version!r}, expected {FORMAT} (in {path})",
                hint="Open it with the version of sagann that wrote it.",
            )
        try:
            return Run.from_json(self.path, found)
        except (KeyError, TypeError, ValueError) as error:
            # Of a refused field the hint would be of the options.
            what = error.message if isinstance(error, InputError) else str(error)
            raise CheckpointError(
                f"run.json is damaged: {type(error).__name__}: {what} (in {path})",
                hint="Restore the file, or train again: --overwrite, or fit(overwrite=True).",
            ) from error

    def append(self, record: EpochRecord) -> None:
        """Add a line to metrics.jsonl."""
        with disk_errors(self.path):
            lines = self._opened_history()
            lines.write((json.dumps(record.to_json(), allow_nan=False) + "\n").encode())
            lines.flush()

    def sync_history(self) -> int:
        """Put metrics.jsonl on the disk; its length in bytes."""
        with disk_errors(self.path):
            lines = self._opened_history()
            os.fsync(lines.fileno())
            return lines.tell()

    def _opened_history(self) -> BinaryIO:
        if self._lines is None:
            self._lines = self._history.open("ab")
        return self._lines

    def read_history(self, num_epochs: int, num_bytes: int) -> list[EpochRecord]:
        """The first ``num_epochs`` lines of metrics.jsonl, ``num_bytes`` long; a CheckpointError where they are not."""
        try:
            content = self._history.read_bytes()[:num_bytes] if num_bytes else b""
            records = [EpochRecord.from_json(json.loads(line)) for line in content.splitlines()]
            numbers = [record.epoch for record in records]
            # The number of epochs comes from a file: nothing is made that is as long.
            if len(content) != num_bytes or len(records) != num_epochs or numbers != [*range(1, 1 + len(records))]:
                found = f"{len(records)} epochs in {len(content)} bytes"
                raise ValueError(f"{found}, expected {num_epochs} epochs in {num_bytes} bytes")
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise CheckpointError(
                f"metrics.jsonl does not reach the checkpoint: {in_one_line(error)} (in {self._history})",
                hint="Restore the file, or start the run anew: fit(overwrite=True).",
            ) from error
        return records

    def count_history(self) -> int:
        """Number of lines of metrics.jsonl; 0 where the file is missing."""
        return self._history.read_bytes().count(b"\n") if self._history.exists() else 0

    def cut_history(self, num_bytes: int) -> None:
        """Cut metrics.jsonl back to its first ``num_bytes``."""
        self.close()
        with self._history.open("ab") as file:
            file.truncate(num_bytes)
            os.fsync(file.fileno())

    def close(self) -> None:
        """Close metrics.jsonl."""
        if self._lines is not None:
            self._lines.close()
            self._lines = None

    def write_result(self, state: Mapping[str, Any], summary: Mapping[str, Any]) -> None:
        """Write model.safetensors, then metrics.json, which holds ``summary`` and the checksum of the weights."""
        from safetensors.torch import save

        # Copies: safetensors refuses tensors that share their memory.
        tensors = {name: plain(value, name) for name, value in state.items() if isinstance(value, Tensor)}
        if extra := {name: value for name, value in state.items() if name not in tensors}:
            tensors[_EXTRA_STATE] = torch.frombuffer(bytearray(pack(extra)), dtype=torch.uint8)
        content = save(tensors)
        with disk_errors(self.path):
            write_whole(self.path / _WEIGHTS_FILE, content)
            self._write_json(_SUMMARY_FILE, {**summary, "weights_checksum": digest(content)})

    def read_summary(self) -> dict[str, Any] | None:
        """Read metrics.json; None where the run has not ended."""
        path = self.path / _SUMMARY_FILE
        if not path.exists():
            return None
        with _result_errors(path):
            summary = json.loads(path.read_bytes())
            if not isinstance(summary, dict):
                raise TypeError("it is not an object")
        return summary

    def read_weights(self) -> dict[str, Any]:
        """The state_dict that the run ended with; of a run that has not ended, that of its best or last epoch so far."""
        path, summary = self.path / _WEIGHTS_FILE, self.read_summary()
        if summary is not None and path.exists():
            from safetensors.torch import load

            with _result_errors(path):
                content = path.read_bytes()
                if (found := digest(content)) != (checksum := summary.get("weights_checksum")):
                    raise ValueError(f"checksum {found}, metrics.json says {checksum!r:.80}")
                # Copied from the content: a mapped file could be cut while its tensors are in use.
                tensors = load(content)
                extra = tensors.pop(_EXTRA_STATE, None)
                return tensors if extra is None else tensors | unpack(extra.numpy().tobytes())
        checkpoint = self.checkpoints.newest(on_damaged=lambda text: None)
        if checkpoint is None:
            raise CheckpointError(
                f"the run has no weights yet: neither model.safetensors nor a checkpoint (in {self.path})",
                hint="Wait for its first checkpoint, or resume it.",
            )
        best: dict[str, Any] | None = checkpoint["best"]["weights"]
        return checkpoint["model"] if best is None else best


@contextmanager
def _result_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError, TypeError) as error:
        what = str(error) if type(error) is ValueError else f"{type(error).__name__}: {error}"
        raise CheckpointError(
            f"{path.name} is damaged: {what} (in {path})", hint="Resume the run to write it anew."
        ) from error


def is_of_run(file: Path | None) -> bool:
    """Whether a file lies in the folder of a run."""
    return file is not None and RunFolder(file.parent).exists
