"""Checkpoints: a file of ``torch.save`` each, of plain containers, numbers, texts and tensors.

``checkpoints/epoch-000010.pt`` is written aside, synced and renamed, so a file of that name is whole. It is a zip archive with a
checksum for each of its members, so later damage is recognised. ``epoch-000010-batch-000123.pt`` is 123 batches after the end of
epoch 10.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor

from sagann.errors import CheckpointError
from sagann.interop.torch_file import load_plain
from sagann.storage.folder import TEMPORARY_PREFIX, write_whole

FORMAT = 4
State: TypeAlias = Mapping[str, Any]
"""The state of a run at the end of an epoch, or between two batches of one: its ``epoch`` and ``batch``, and further values by the name of their
part: numbers, texts, tensors, and plain containers of these (:func:`pack`)."""
_NAME = re.compile(r"epoch-(\d{6,})(?:-batch-(\d{6,}))?\.pt")


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

    @classmethod
    def of(cls, state: State) -> Position:
        """How far the run of a state has come."""
        return cls(state["epoch"], state["batch"])


class CheckpointFolder:
    """The checkpoints of one run, of which the ``keep`` newest stay. The folder is made with the first one."""

    def __init__(self, path: Path, *, keep: int) -> None:
        self.path, self.keep = path, keep

    def positions(self) -> list[Position]:
        """Positions that have a checkpoint, newest first. The checkpoints are not opened."""
        matches = [_NAME.fullmatch(path.name) for path in self.path.glob("epoch-*")]
        return sorted((Position(int(match[1]), int(match[2] or 0)) for match in matches if match), reverse=True)

    def write(self, state: State) -> Path:
        """Write a checkpoint atomically, then remove all but the ``keep`` newest ones."""
        position, content = Position.of(state), pack({"format": FORMAT, **state})
        final = self._file(position)
        with disk_errors(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            # What a killed process has left.
            for unfinished in self.path.glob(f"{TEMPORARY_PREFIX}epoch-*"):
                unfinished.unlink()
            write_whole(final, content)
            # Checkpoints of later positions are damaged, and do not count: the run would have resumed from a valid one.
            for older in [each for each in self.positions() if each <= position][self.keep :]:
                self._file(older).unlink()
        return final

    def read(self, position: Position) -> State:
        """Read one checkpoint. A file that is missing, truncated, altered or of another format is a CheckpointError."""
        path = self._file(position)
        try:
            with path.open("rb") as file:
                state = load_plain(file)
            version = state.pop("format", None) if isinstance(state, dict) else None
            if version != FORMAT:
                raise ValueError(f"format {version!r:.80}, expected {FORMAT}")
            if Position.of(state) != position:
                raise ValueError(f"it is of {Position.of(state)}, its name says {position}")
        except (OSError, ValueError, KeyError) as error:
            what = "" if type(error) is ValueError else f"{type(error).__name__}: "
            raise CheckpointError(
                f"checkpoint is damaged: {what}{error} (in {path})", hint="Remove this file to silence the message."
            ) from error
        return state

    def newest(self, *, on_damaged: Callable[[str], None]) -> State | None:
        """The newest whole checkpoint; None where there is none, a CheckpointError where every one is damaged. ``on_damaged`` gets a message on each damaged one."""
        last: CheckpointError | None = None
        tried: list[Position] = []
        # Listed anew each time: a process that trains writes new checkpoints and removes old ones.
        while untried := [position for position in self.positions() if position not in tried]:
            tried.append(untried[0])
            try:
                return self.read(untried[0])
            except CheckpointError as error:
                if self._file(untried[0]).exists():
                    on_damaged(f"{error} Trying the one before.")
                    last = error
        if last is not None:
            raise CheckpointError(
                f"every checkpoint is damaged: {len(tried)} tried (in {self.path}); the last: {last.message}",
                hint="Start the run anew: fit(overwrite=True), or another folder.",
            )
        return None

    def _file(self, position: Position) -> Path:
        batch = f"-batch-{position.batch:06d}" if position.batch else ""
        return self.path / f"epoch-{position.epoch:06d}{batch}.pt"


def digest(content: bytes) -> str:
    """BLAKE2b-128, in hexadecimal."""
    return hashlib.blake2b(content, digest_size=16).hexdigest()


@contextmanager
def disk_errors(folder: Path) -> Iterator[None]:
    """Turn an OSError inside the block into a CheckpointError."""
    try:
        yield
    except OSError as error:
        raise CheckpointError(
            f"the run folder cannot be written: {error.strerror or str(error)} (in {error.filename or folder})",
            hint="Free some space or mend the permissions, then resume; files written before are whole.",
        ) from error


def pack(state: Mapping[str, Any]) -> bytes:
    """The state as a file. A value that is neither a number, a text, a plain container nor a tensor is a CheckpointError, which names it."""
    file = BytesIO()
    try:
        torch.save({name: plain(part, name) for name, part in state.items()}, file)
    except RecursionError as error:
        raise _unsaved("containers that lie in each other too deeply", ", ".join(state)) from error
    return file.getvalue()


def unpack(content: bytes) -> dict[str, Any]:
    """The inverse of :func:`pack`; a ValueError says what is wrong with ``content``."""
    state: dict[str, Any] = load_plain(BytesIO(content))
    return state


def plain(value: Any, name: str) -> Any:
    """A copy without views and classes of other libraries, on the host; ``name`` is for the error, as :func:`pack` says."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, Tensor):
        # Of a view, torch.save would write all that lies behind it.
        return value.detach().as_subclass(Tensor).to("cpu", copy=True, memory_format=torch.contiguous_format)
    if isinstance(value, str):
        return str.__str__(value)
    for number in (int, float):
        if isinstance(value, number):
            return number(value)
    # A default factory is a function.
    kind = dict if isinstance(value, defaultdict) else type(value)
    if kind in (dict, OrderedDict, Counter):
        return kind({plain(key, f"{name}.key"): plain(item, f"{name}.{key}") for key, item in value.items()})
    if kind in (list, tuple, set):
        return kind(plain(item, f"{name}.{at}") for at, item in enumerate(value))
    raise _unsaved(f"a {kind.__module__}.{kind.__qualname__}", name)


def _unsaved(value: str, name: str) -> CheckpointError:
    return CheckpointError(
        f"training state cannot be saved: {value} (in {name})",
        hint="Use an optimizer, scheduler and model whose state_dict holds tensors, numbers, strings and plain containers of these.",
    )
