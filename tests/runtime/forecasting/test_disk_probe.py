"""The probe of disk and processor: what it does to the folder, which folders it refuses, and which rates it finds."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
import time
from collections import namedtuple
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, fields
from pathlib import Path

import pytest
import torch

from sagann.byte_size import with_exact
from sagann.errors import InputError
from sagann.kernels import dense, memory
from sagann.plan.machine import Machine
from sagann.runtime.forecasting.probe import FILE_BYTES, LEAST_BYTES, disk_rates, probe
from sagann.runtime.processor import cache_bytes, num_cores, processor_name

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

    monkeypatch.setattr(os, "pwrite", pwrite)
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

    monkeypatch.setattr(os, "fsync", full)
    assert f"the disk cannot be measured: {os.strerror(errno.ENOSPC)}" in refused(tmp_path).message
    assert written
    assert list(tmp_path.iterdir()) == []


# As users meet them: this package's tests make them small.
SIZES = [(memory, "SMALLEST_BYTES"), (dense, "SMALLEST_BYTES"), (dense, "BLOCK_BYTES")]
USUAL = [(module, name, getattr(module, name)) for module, name in SIZES]


@pytest.mark.slow
@pytest.mark.usefixtures("kernels")
@pytest.mark.alone
def test_rates_are_those_of_a_processor_and_a_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name, size in USUAL:
        monkeypatch.setattr(module, name, size)
    start_s = time.perf_counter()
    machine = probe(tmp_path)
    # Far below on an idle machine; tests may run beside others.
    assert time.perf_counter() - start_s < 40
    assert (machine.name, machine.num_cores, machine.cache_bytes) == (processor_name(), num_cores(), cache_bytes())
    # At most two units of 16 lanes at 6 GHz, a multiply-add being two.
    threads = torch.get_num_threads()
    assert 1e9 < machine.matmul_flops < threads * 2 * 16 * 2 * 6e9
    for rate in (machine.stream_bytes, machine.copy_bytes, machine.pick_bytes, machine.gather_bytes):
        assert 2e8 < rate < 1e13
    # A copy moves each byte twice; one thread moves no more than all of them, streamed stores aside.
    assert 2 * machine.copy_bytes < 3 * machine.stream_bytes
    # Two loads of 64 bytes a cycle.
    assert 0.7 * machine.gather_bytes < machine.gather_cached_bytes < threads * 2 * 64 * 6e9
    # One is a dozen operations or more, of which loads of rows hide only a part.
    assert 1e7 < machine.exp_per_s < machine.matmul_flops / 2
    for rate in asdict(machine.disks["disk0"]).values():
        assert 1e6 < rate < 1e11
    assert 1e-6 < machine.step_s < 0.02
    # Digits that mean nothing are not told.
    for each in fields(Machine):
        value = getattr(machine, each.name)
        if isinstance(value, float):
            assert value == float(f"{value:.4g}")
    assert list(tmp_path.iterdir()) == []
    assert Machine.from_toml(machine.to_toml(), where="machine.toml") == machine
