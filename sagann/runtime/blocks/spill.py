"""Spill: blocks in files of a folder that does not outlive the process, read and written from threads.

A host keeps its blocks in one file. A block that is stored again replaces itself. The first reading of a block after it was
written, and every eighth one, is compared with the checksum of the bytes that were written; an error names the file.

A process that was killed leaves its folder behind. The next process that spills to the same place removes the folder:

- A process makes a folder, makes a lock file in it, and locks the file. If the file still exists then, the process owns the
  folder.
- A process that removes a folder holds its lock, and first renames the folder. Any process may remove a renamed folder, so a
  removal that was cut short is completed.
- A folder without a lock file may be in the making. It is removed if it is empty, and left alone otherwise.
- A lock that is a link, a pipe or another user's file is refused: its folder is left alone.

Several processes may spill to one place. What they make above their folders, the last one removes
(:mod:`sagann.runtime.blocks.made_folders`).
"""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from threading import Lock
from weakref import finalize

from torch import Tensor

from sagann.byte_size import with_exact
from sagann.errors import SagannError
from sagann.graph.rows import flat_bytes
from sagann.kernels.checksum import checksum
from sagann.kernels.packed import Layout
from sagann.plan.steps import Block
from sagann.runtime.blocks.made_folders import enter, leave
from sagann.storage.file_cache import is_cached
from sagann.storage.positioned import read_bytes, read_rows, write_bytes

_PREFIX = "sagann-spill-"
# Prefix of folders that are being removed.
_REMOVED_PREFIX = "sagann-removed-"
_LOCK = "lock"
# Edges are written once and read in every epoch. To check every reading would double the passes over their bytes.
_CHECKED_READS = 8


class SpillError(SagannError, OSError):
    """A spill folder that is full, gone or not writable, or a damaged file in it; the message names the folder or file."""


class SpillFolder:
    """A folder of this process below ``parent``, removed when it is closed, collected, or the process ends.

    Args:
        parent: made where it does not exist, with the folders above it. What was made is removed by the last process that spills
            there, if nothing else is in it.

    Raises:
        SpillError: the folder cannot be made.
    """

    def __init__(self, parent: Path) -> None:
        try:
            _remove_folders(parent)
            # The process may change its working folder.
            self.path, lock = enter(parent.absolute(), _make)
        except (OSError, ValueError) as error:
            raise _failed("cannot be made", parent, error) from error
        self.numbers = count()
        "Numbers of the files."
        self._remove = finalize(self, _remove, self.path, lock, os.getpid())

    def require(self, needed_bytes: int) -> None:
        """Check that the disk has room for more bytes, or raise SpillError."""
        try:
            free = shutil.disk_usage(self.path).free
        except OSError as error:
            raise _failed("is gone", self.path, error) from error
        if free < needed_bytes:
            raise SpillError(
                "too little room to spill",
                value=f"{with_exact(free)} are free, {with_exact(needed_bytes)} are needed",
                where=f"'{self.path}'",
                fix="Free some room, spill to another disk, or raise the memory budget.",
            )

    def close(self) -> None:
        """Remove the folder and its files."""
        self._remove()


def _make(parent: Path) -> tuple[Path, int]:
    """A new folder, and the descriptor that holds its lock while the process lives."""
    while True:
        path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
        # Before the file is locked, another process may remove the folder as stale.
        with suppress(FileNotFoundError):
            # NFS locks only files that are open for writing.
            lock = os.open(path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX)
            except OSError:
                _remove_locked(path, lock)
                raise
            if (path / _LOCK).exists():
                return path, lock
            os.close(lock)


def _remove(path: Path, lock: int, owner: int) -> None:
    # A forked child does not own the folder.
    if os.getpid() == owner:
        _remove_locked(path, lock)
        leave(path.parent, _is_folder_of_process)


def remove_stale(parent: Path) -> None:
    """Remove the folders of processes that have ended, and ``parent`` if it was made for them and no process is left there."""
    _remove_folders(parent)
    leave(parent.absolute(), _is_folder_of_process)


def _is_folder_of_process(name: str) -> bool:
    return name.startswith((_PREFIX, _REMOVED_PREFIX))


def _remove_folders(parent: Path) -> None:
    """Remove the folders of processes that have ended: nobody holds their locks."""
    # The last process to leave may remove the folder meanwhile.
    with suppress(FileNotFoundError):
        for path in parent.glob(f"{_REMOVED_PREFIX}*"):
            shutil.rmtree(path, ignore_errors=True)
    with suppress(FileNotFoundError):
        for path in parent.glob(f"{_PREFIX}*"):
            with suppress(OSError):
                _remove_if_stale(path)


def _remove_if_stale(path: Path) -> None:
    try:
        # A link is not followed, and a pipe is not waited for.
        lock = os.open(path / _LOCK, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        # The folder may be in the making; only an empty folder is removed.
        path.rmdir()
        return
    found = os.fstat(lock)
    if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
        os.close(lock)
        return
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
    else:
        _remove_locked(path, lock)


def _remove_locked(path: Path, lock: int) -> None:
    """Remove a folder whose lock is held."""
    renamed = path.with_name(_REMOVED_PREFIX + path.name.removeprefix(_PREFIX))
    with suppress(OSError):
        path.rename(renamed)
    _remove_trees(path, renamed)
    with suppress(OSError):
        os.close(lock)
    # NFS keeps an open file under another name until it is closed.
    _remove_trees(path, renamed)


def _remove_trees(*folders: Path) -> None:
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


class _Region:
    """Where a block lies in the file of a host."""

    __slots__ = ("checksum", "layout", "num_reads", "offset", "parts")

    def __init__(self, offset: int, layout: Layout) -> None:
        self.offset, self.layout = offset, layout
        self.checksum = 0
        "Checksum of the tensors that were written, one after the other."
        self.parts: dict[int, tuple[int, int]] | None = None
        "Of a block written piece by piece: bytes and checksum of each piece, by its first byte in the region; None of a block written at once."
        self.num_reads = 0
        "Readings since the block was written."


class DiskHost:
    """Blocks in one file of a spill folder, one after the other; a block that is put again replaces itself.

    A file that is full, gone, cut short or damaged is a SpillError.
    """

    is_memory = False
    gives_copies = True

    def __init__(self, folder: SpillFolder) -> None:
        # Kept alive: the folder is removed when it is collected.
        self._folder = folder
        self._path = folder.path / f"{next(folder.numbers)}.bin"
        self._regions: dict[Block, _Region] = {}
        self._end = 0
        "Bytes of all regions."
        self._size = 0
        "Bytes of the file when a block was written last."
        self._lock = Lock()
        # The file of an epoch whose backward never ran is removed too.
        self._remove = finalize(self, _unlink, self._path, os.getpid())

    def put(self, block: Block, tensors: Mapping[str, Tensor]) -> None:
        with self._writing(block, Layout(tensors), is_part=False) as (file, region):
            for name, tensor in tensors.items():
                content = flat_bytes(tensor)
                region.checksum = checksum(content, region.checksum)
                write_bytes(file, content.data, region.offset + region.layout.offset(name))

    def put_rows(self, block: Block, at: slice, rows: Tensor, *, num_rows: int) -> None:
        with self._writing(block, Layout({"": rows}).of_rows(num_rows), is_part=True) as (file, region):
            content, offset = flat_bytes(rows), at.start * (rows.nbytes // max(1, len(rows)))
            region.parts = region.parts or {}
            region.parts[offset] = len(content), checksum(content)
            write_bytes(file, content.data, region.offset + offset)

    @contextmanager
    def _writing(self, block: Block, layout: Layout, *, is_part: bool) -> Iterator[tuple[int, _Region]]:
        """Inside the ``with`` block, the file is open, and a block is written to its region."""
        with self._open(os.O_WRONLY | os.O_CREAT, "written") as file:
            region = self._region(block, layout, file, is_part=is_part)
            yield file, region
            with self._lock:
                # The last tensor may end before its room does.
                os.ftruncate(file, self._end)
                self._size = self._end
        region.num_reads = 0

    def _region(self, block: Block, layout: Layout, file: int, *, is_part: bool) -> _Region:
        """Room for a block: its own, where it had as much before, or else at the end of the file. A part leaves the other parts.

        A file that is shorter than its regions lost some of them, and would read as zeros if it grew again.
        """
        with self._lock:
            size = os.fstat(file).st_size
            if size < self._size:
                raise self._cut_short(f"it ends at byte {size}, {self._size - size} more are needed")
            known = self._regions.get(block)
            if known is not None and is_part and layout.num_bytes == known.layout.num_bytes:
                return known
            if known is not None and layout.num_bytes <= known.layout.num_bytes:
                region = _Region(known.offset, layout)
            else:
                region, self._end = _Region(self._end, layout), self._end + layout.num_bytes
            self._regions[block] = region
            return region

    def get(self, block: Block) -> dict[str, Tensor]:
        region = self._regions[block]
        memory = region.layout.allocate()
        with self._open(os.O_RDONLY, "read") as file:
            read_bytes(file, memory.numpy().data, region.offset, self._cut_short)
        tensors = region.layout.views(memory)
        if region.num_reads % _CHECKED_READS == 0:
            self._check(memory, region)
        region.num_reads += 1
        return tensors

    def is_at_hand(self, block: Block) -> bool:
        """Whether a block can be read without waiting for a disk, as far as the system tells. Errors are left to the reader."""
        region = self._regions[block]
        with suppress(SpillError), self._open(os.O_RDONLY, "read") as file:
            return is_cached(file, region.offset, region.layout.num_bytes)
        return False

    def pick(self, block: Block, rows: Tensor) -> dict[str, Tensor]:
        """Read some rows of each of a block's tensors; the rows between them are not read, so no checksum is compared."""
        region = self._regions[block]
        picked = region.layout.of_rows(len(rows))
        tensors = picked.views(picked.allocate())
        with self._open(os.O_RDONLY, "read") as file:
            for name, tensor in tensors.items():
                read_rows(file, region.offset + region.layout.offset(name), rows, tensor, self._cut_short)
        return tensors

    def get_rows(self, block: Block, at: slice, into: Tensor) -> None:
        """Read consecutive rows of a block of one tensor; no checksum is compared, as in :meth:`pick`."""
        row_bytes = into.nbytes // max(1, len(into))
        with self._open(os.O_RDONLY, "read") as file:
            offset = self._regions[block].offset + at.start * row_bytes
            read_bytes(file, flat_bytes(into).data, offset, self._cut_short)

    def close(self) -> None:
        self._remove()

    @contextmanager
    def _open(self, flags: int, action: str) -> Iterator[int]:
        """Inside the ``with`` block, the file is open; errors of the system name the file."""
        try:
            # A pipe that took the file's place is not waited for; it cannot be read by position.
            file = os.open(self._path, flags | os.O_NONBLOCK, 0o600)
            try:
                yield file
            finally:
                os.close(file)
        except SpillError:
            raise
        except OSError as error:
            raise _failed(f"cannot be {action}", self._path, error) from error

    def _cut_short(self, value: str) -> SpillError:
        return SpillError(
            "a spill file is cut short",
            value=value,
            where=f"'{self._path}'",
            fix="Leave the folder alone while a run spills to it, and start again, from the last checkpoint if there is one.",
        )

    def _check(self, memory: Tensor, region: _Region) -> None:
        if region.parts is None:
            found = 0
            for tensor in region.layout.views(memory).values():
                found = checksum(flat_bytes(tensor), found)
            checked = [(found, region.checksum)]
        else:
            content = memory.numpy()
            checked = [(checksum(content[at : at + size]), of_part) for at, (size, of_part) in region.parts.items()]
        for found, expected in checked:
            if found != expected:
                raise SpillError(
                    "a spill file is damaged",
                    value=f"its checksum is {found:016x}, that of what was written is {expected:016x}",
                    where=f"'{self._path}'",
                    fix="Leave the folder alone while a run spills to it; if nobody touched it, do not trust this disk and spill to "
                    "another one. Start again, from the last checkpoint if there is one.",
                )


def _unlink(path: Path, owner: int) -> None:
    # A forked child does not own the file.
    if os.getpid() == owner:
        # The folder may be gone.
        with suppress(OSError):
            path.unlink()


def _failed(what: str, path: Path, error: OSError | ValueError) -> SpillError:
    number = error.errno if isinstance(error, OSError) else None
    return SpillError(
        f"a spill folder {what}" if what in ("cannot be made", "is gone") else f"a spill file {what}",
        value=os.strerror(number) if number else str(error),
        where=f"'{path}'",
        fix="Spill to a writable folder on a disk with room, and leave the folder alone while a run uses it.",
    )
