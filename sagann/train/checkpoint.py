"""Checkpoints: a folder each, with tensors in safetensors and the rest in JSON; never pickle.

``checkpoints/epoch-000010/`` holds ``state.safetensors`` and ``state.json``. The folder is written aside, synced and
renamed, so a folder of that name is whole. ``state.json`` has checksums of its content and of the tensors, so later
damage is recognised. ``epoch-000010-batch-000123`` is 123 batches after the end of epoch 10.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from sagann.errors import CheckpointError, SagannError
from sagann.storage.durable import TEMPORARY_PREFIX, sync_folder, write_synced
from sagann.train.atomic import (
    REMOVED,
    digest,
    disk_errors,
    file_digest,
    parse_tensors,
    remove_folder,
    remove_leftovers,
    write_tensors,
)
from sagann.train.codec import Decoder, encode

FORMAT = 1
_NAME = re.compile(r"epoch-(\d{6,})(?:-batch-(\d{6,}))?")


@dataclass(frozen=True, order=True, slots=True)
class Position:
    """How far a run has come. Positions are ordered as training reaches them.

    Example:
        >>> print(Position(3), "and", Position(3, batch=7))
        epoch 3 and batch 7 of epoch 4
        >>> Position(3) < Position(3, batch=7) < Position(4)
        True
    """

    epoch: int
    "Number of the last epoch that has ended; 0 before the first one has."
    batch: int = 0
    "Number of batches that were trained of the epoch after that; 0 between epochs."

    def __str__(self) -> str:
        return f"batch {self.batch} of epoch {self.epoch + 1}" if self.batch else f"epoch {self.epoch}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Checkpoint:
    """The state of a run at the end of an epoch, or between two batches of one."""

    position: Position
    "How far the run has come."
    state: Mapping[str, Any]
    "Values by the name of their part: numbers, texts, tensors, and plain containers of these (see sagann.train.codec)."


class CheckpointFolder:
    """The checkpoints of one run, of which the ``keep`` newest stay. The folder is made with the first one."""

    def __init__(self, path: Path, *, keep: int) -> None:
        self.path = path
        self.keep = keep

    def positions(self) -> list[Position]:
        """Positions that have a checkpoint, newest first. The checkpoints are not opened."""
        if not self.path.is_dir():
            return []
        matches = [_NAME.fullmatch(entry.name) for entry in self.path.iterdir() if entry.is_dir()]
        return sorted((Position(int(match[1]), int(match[2] or 0)) for match in matches if match), reverse=True)

    def write(self, checkpoint: Checkpoint) -> Path:
        """Write ``checkpoint`` atomically, then remove all but the ``keep`` newest ones."""
        final = self._folder(checkpoint.position)
        with disk_errors(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            unfinished = (
                entry.name.removeprefix(TEMPORARY_PREFIX).removeprefix(REMOVED) for entry in self.path.iterdir()
            )
            remove_leftovers(self.path, filter(_NAME.fullmatch, unfinished))
            aside = final.with_name(f"{TEMPORARY_PREFIX}{final.name}")
            try:
                write_state(aside, checkpoint)
                sync_folder(aside)
            except OSError:
                # A full disk gets its room back.
                shutil.rmtree(aside, ignore_errors=True)
                raise
            # Only a damaged checkpoint of this position can exist: the run would have resumed from a valid one.
            remove_folder(final)
            aside.rename(final)
            sync_folder(self.path)
            # Checkpoints of later positions are damaged, and do not count.
            known = [position for position in self.positions() if position <= checkpoint.position]
            for position in known[self.keep :]:
                remove_folder(self._folder(position))
        return final

    def read(self, position: Position) -> Checkpoint:
        """Read one checkpoint. A file that is missing, truncated, altered or of another format is a CheckpointError."""
        folder = self._folder(position)
        try:
            return _read_state(folder, position)
        except (OSError, ValueError) as error:
            what = "" if type(error) is ValueError else f"{type(error).__name__}: "
            raise _damaged(folder, f"{what}{error}") from error

    def newest(
        self,
        *,
        on_damaged: Callable[[str], None],
        require: Callable[[Checkpoint], object] = lambda checkpoint: None,
    ) -> Checkpoint | None:
        """The newest whole checkpoint; None where there is none, a CheckpointError where every one is damaged.

        ``on_damaged`` is told of each damaged checkpoint that is passed over. A checkpoint for which ``require`` raises a
        ValueError, other than an error of sagann, counts as damaged.
        """
        last: CheckpointError | None = None
        tried: list[Position] = []
        # Listed anew each time: a process that trains writes new checkpoints and removes old ones.
        while untried := [position for position in self.positions() if position not in tried]:
            tried.append(untried[0])
            folder = self._folder(untried[0])
            try:
                checkpoint = self.read(untried[0])
            except CheckpointError as error:
                problem = error
            else:
                try:
                    require(checkpoint)
                    return checkpoint
                except SagannError:
                    raise
                except ValueError as error:
                    problem = _damaged(folder, str(error))
            if folder.exists():
                on_damaged(f"{problem} Trying the one before.")
                last = problem
        if last is not None:
            raise CheckpointError(
                "every checkpoint is damaged",
                value=f"{len(tried)} tried; the last: {last.value}",
                where=str(self.path),
                fix="Start the run anew: fit(overwrite=True), or another folder.",
            )
        return None

    def _folder(self, position: Position) -> Path:
        batch = f"-batch-{position.batch:06d}" if position.batch else ""
        return self.path / f"epoch-{position.epoch:06d}{batch}"


def write_state(folder: Path, checkpoint: Checkpoint) -> None:
    """Write the two files of a checkpoint into a folder, which is made, and wait until they are on the disk."""
    path = folder / "state.safetensors"
    tensors: dict[str, Tensor] = {}
    state = {name: encode(part, tensors, name=name) for name, part in checkpoint.state.items()}
    folder.mkdir()
    write_tensors(path, tensors)
    position = checkpoint.position
    batch = {"batch": position.batch} if position.batch else {}
    content = {"epoch": position.epoch, **batch, "state": state, "tensors_checksum": file_digest(path)}
    checksum = digest(json.dumps(content, allow_nan=False).encode())
    document = json.dumps({"format": FORMAT, "checksum": checksum, "content": content})
    write_synced(folder / "state.json", document.encode())


def _read_state(folder: Path, position: Position) -> Checkpoint:
    """Read the two files of a checkpoint; a ValueError or an OSError says what is wrong with them."""
    # The decoder names a number that is not finite.
    document = json.loads((folder / "state.json").read_bytes())
    stored = (folder / "state.safetensors").read_bytes()
    version = document.get("format") if isinstance(document, dict) else None
    if version != FORMAT:
        raise ValueError(f"format {version!r:.80} in state.json, expected {FORMAT}")
    content = document.get("content")
    # Parsing and dumping keep the order and every bit of a float, so the text is the one that the checksum is of.
    if digest(json.dumps(content).encode()) != document.get("checksum"):
        raise ValueError("state.json does not match its checksum")
    if not isinstance(content, dict) or content.keys() - {"batch"} != {"epoch", "state", "tensors_checksum"}:
        raise ValueError("the content of state.json is not epoch, batch, state and tensors_checksum")
    for name, named in (("epoch", position.epoch), ("batch", position.batch)):
        found = content.get(name, 0)
        if type(found) is not int or found != named:
            raise ValueError(f"state.json is of {name} {found!r:.80}, the folder's name says {named}")
    if digest(stored) != content["tensors_checksum"]:
        raise ValueError("state.safetensors does not match its checksum, tensors_checksum in state.json")
    if not isinstance(content["state"], dict):
        raise ValueError("the state in state.json is not an object")
    try:
        tensors, _ = parse_tensors(stored)
    except ValueError as error:
        raise ValueError(f"state.safetensors: {error}") from error
    decoder = Decoder(tensors)
    state = {name: decoder.decode(part, name=name) for name, part in content["state"].items()}
    decoder.require_all_taken()
    return Checkpoint(position=position, state=state)


def _damaged(folder: Path, value: str) -> CheckpointError:
    return CheckpointError(
        "checkpoint is damaged", value=value, where=str(folder), fix="Remove this folder to silence the message."
    )
