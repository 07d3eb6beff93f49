"""Checkpoints: a folder each, with tensors in safetensors and the rest in JSON; never pickle.

``checkpoints/epoch-000010/`` holds ``state.safetensors`` and ``state.json``. The folder is written aside, synced and
renamed, so a folder of that name is whole. ``state.json`` has checksums of its content and of the tensors, so later
damage is recognised.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from sagann.errors import CheckpointError
from sagann.storage.durable import TEMPORARY_PREFIX, sync_folder, write_synced
from sagann.storage.regular_file import read_file
from sagann.train.atomic import (
    REMOVED,
    digest,
    disk_errors,
    file_digest,
    parse_json,
    parse_tensors,
    remove_folder,
    remove_leftovers,
    write_tensors,
)

FORMAT = 1
_NAME = re.compile(r"epoch-(\d{6,})")


@dataclass(frozen=True, kw_only=True, slots=True)
class Checkpoint:
    """The state of a run at the end of an epoch."""

    epoch: int
    "Number of the last trained epoch, from 1."
    state: Any
    "JSON values that name tensors of ``tensors`` (see sagann.train.codec)."
    tensors: Mapping[str, Tensor]
    "Named tensors on the CPU."


class CheckpointFolder:
    """The checkpoints of one run, of which the ``keep`` newest stay. The folder is made with the first one."""

    def __init__(self, path: Path, *, keep: int) -> None:
        self.path = path
        self.keep = keep

    def epochs(self) -> list[int]:
        """Epochs that have a checkpoint, newest first. The checkpoints are not opened."""
        if not self.path.is_dir():
            return []
        matches = [_NAME.fullmatch(entry.name) for entry in self.path.iterdir() if entry.is_dir()]
        return sorted((int(match[1]) for match in matches if match), reverse=True)

    def write(self, checkpoint: Checkpoint) -> Path:
        """Write ``checkpoint`` atomically, then remove all but the ``keep`` newest ones."""
        final = self._folder(checkpoint.epoch)
        with disk_errors(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            unfinished = (
                entry.name.removeprefix(TEMPORARY_PREFIX).removeprefix(REMOVED) for entry in self.path.iterdir()
            )
            remove_leftovers(self.path, filter(_NAME.fullmatch, unfinished))
            aside = final.with_name(f"{TEMPORARY_PREFIX}{final.name}")
            aside.mkdir()
            tensors = aside / "state.safetensors"
            write_tensors(tensors, checkpoint.tensors)
            content = {
                "epoch": checkpoint.epoch,
                "state": checkpoint.state,
                "tensors_checksum": file_digest(tensors),
            }
            checksum = digest(json.dumps(content, allow_nan=False).encode())
            document = json.dumps({"format": FORMAT, "checksum": checksum, "content": content})
            write_synced(aside / "state.json", document.encode())
            sync_folder(aside)
            # Only a damaged checkpoint of this epoch can exist: the run would have resumed from a valid one.
            remove_folder(final)
            aside.rename(final)
            sync_folder(self.path)
            # Checkpoints of later epochs are damaged, and do not count.
            known = [epoch for epoch in self.epochs() if epoch <= checkpoint.epoch]
            for epoch in known[self.keep :]:
                remove_folder(self._folder(epoch))
        return final

    def read(self, epoch: int) -> Checkpoint:
        """Read one checkpoint. A file that is missing, truncated, altered or of another format is a CheckpointError."""
        folder = self._folder(epoch)
        try:
            document = parse_json(read_file(folder / "state.json", error=CheckpointError))
            stored = read_file(folder / "state.safetensors", error=CheckpointError)
        except (OSError, ValueError) as error:
            raise _damaged(folder, f"{type(error).__name__}: {error}") from error
        version = document.get("format") if isinstance(document, dict) else None
        if version != FORMAT:
            raise _damaged(folder, f"format {version!r} in state.json, expected {FORMAT}")
        content = document.get("content")
        # Parsing and dumping keep the order and every bit of a float, so the text is the one that the checksum is of.
        if digest(json.dumps(content).encode()) != document.get("checksum") or not isinstance(content, dict):
            raise _damaged(folder, "state.json does not match its checksum")
        if content["epoch"] != epoch:
            raise _damaged(folder, f"state.json is of epoch {content['epoch']}, the folder's name says {epoch}")
        if digest(stored) != content["tensors_checksum"]:
            raise _damaged(folder, "state.safetensors does not match its checksum")
        try:
            tensors, _ = parse_tensors(stored)
        except ValueError as error:
            raise _damaged(folder, f"state.safetensors: {error}") from error
        return Checkpoint(epoch=epoch, state=content["state"], tensors=tensors)

    def newest(self, *, on_damaged: Callable[[str], None]) -> Checkpoint | None:
        """The newest whole checkpoint; None where there is none, a CheckpointError where every one is damaged.

        ``on_damaged`` is told of each damaged checkpoint that is passed over.
        """
        last: CheckpointError | None = None
        tried: list[int] = []
        # Listed anew each time: a process that trains writes new checkpoints and removes old ones.
        while untried := [epoch for epoch in self.epochs() if epoch not in tried]:
            tried.append(untried[0])
            try:
                return self.read(untried[0])
            except CheckpointError as error:
                if self._folder(untried[0]).exists():
                    on_damaged(f"{error} Trying the one before.")
                    last = error
        if last is not None:
            raise CheckpointError(
                "every checkpoint is damaged",
                value=f"{len(tried)} tried; the last: {last.value}",
                where=str(self.path),
                fix="Start the run anew: fit(overwrite=True), or another folder.",
            )
        return None

    def _folder(self, epoch: int) -> Path:
        return self.path / f"epoch-{epoch:06d}"


def _damaged(folder: Path, value: str) -> CheckpointError:
    return CheckpointError(
        "checkpoint is damaged", value=value, where=str(folder), fix="Remove this folder to silence the message."
    )
