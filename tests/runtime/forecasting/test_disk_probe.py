"""The disk's probe: what it does to the folder, and which folders it refuses."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections import namedtuple
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sagann.byte_size import with_exact
from sagann.errors import InputError
from sagann.runtime.forecasting import disk_probe
from sagann.runtime.forecasting.disk_probe import FILE_BYTES, LEAST_BYTES, disk_rates

Usage = namedtuple("Usage", ["total", "used", "free"])


@contextmanager
def as_nobody() -> Iterator[None]:
    """Without root's right to write anywhere."""
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(user)


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Where pieces are written, in order; the pieces themselves are not."""
    offsets: list[int] = []

    def pwrite(file: int, data: memoryview, offset: int) -> int:
        offsets.append(offset)
        os.ftruncate(file, max(os.fstat(file).st_size, offset + len(data)))
        return len(data)

    monkeypatch.setattr(disk_probe.os, "pwrite", pwrite)
    return offsets


def refused(folder: Path) -> InputError:
    with pytest.raises(InputError) as caught:
        disk_rates(folder)
    assert caught.value.message.endswith(f" (in '{folder}')")
    assert "folder" in caught.value.hint
    return caught.value


def test_a_folder_that_cannot_be_written_to(tmp_path: Path) -> None:
    assert f"the disk cannot be measured: {os.strerror(errno.ENOENT)}" in refused(tmp_path / "none").message
    (tmp_path / "file").touch()
    assert os.strerror(errno.ENOTDIR) in refused(tmp_path / "file").message
    assert (tmp_path / "file").stat().st_size == 0
    # Not in tmp_path, which nobody else may even enter.
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o555)
        with as_nobody():
            assert os.strerror(errno.EACCES) in refused(Path(folder)).message


def test_too_little_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    free = LEAST_BYTES - 1
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(1 << 40, 0, free))
    found = f"{with_exact(free)} are free, {with_exact(LEAST_BYTES)} are needed"
    assert f"too little room to measure the disk: {found}" in refused(tmp_path).message
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("free", "expected"),
    [(2 * LEAST_BYTES - 1, LEAST_BYTES), (300 << 20, 144 << 20), (1 << 40, FILE_BYTES)],
)
def test_less_is_written_where_there_is_less_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: list[int], free: int, expected: int
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(1 << 40, 0, free))
    disk_rates(tmp_path)
    pieces = sorted(set(written))
    assert pieces[-1] + (pieces[1] - pieces[0]) == expected
    # Every piece in every round, the first included.
    assert len(written) in {count * len(pieces) for count in (1, 2, 3, 4)}


def test_what_the_disk_refuses_midway_is_said_and_nothing_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: list[int]
) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(disk_probe.os, "fsync", full)
    assert refused(tmp_path).value == os.strerror(errno.ENOSPC)
    assert written
    assert list(tmp_path.iterdir()) == []


def test_pieces_that_are_written_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system may write less than it is given; every byte arrives."""
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(1 << 40, 0, LEAST_BYTES))
    monkeypatch.setattr(disk_probe, "_NUM_ROUNDS", 0)
    pwrite, sizes = os.pwrite, []

    def in_parts(file: int, data: memoryview, offset: int) -> int:
        count = pwrite(file, data[: 5 << 20], offset)
        sizes.append(os.fstat(file).st_size)
        return count

    monkeypatch.setattr(disk_probe.os, "pwrite", in_parts)
    rates = disk_rates(tmp_path)
    assert sizes[-1] == LEAST_BYTES
    # Of 8 MiB each.
    assert len(sizes) == 2 * LEAST_BYTES // (8 << 20)
    assert min(rates) > 0
