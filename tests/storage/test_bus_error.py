"""Pages that are gone: replaced where they are watched, and the end of the process elsewhere."""

from __future__ import annotations

import mmap
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sagann.storage import bus_error
from sagann.storage.bus_error import Watch

WORDS = 1 << 16


def mapped(path: Path) -> np.ndarray[Any, Any]:
    np.arange(1, WORDS + 1, dtype=np.int64).tofile(path)
    return np.memmap(path, dtype=np.int64, mode="c")


@contextmanager
def watched(array: np.ndarray[Any, Any], fill: int = 0) -> Iterator[Watch]:
    watch = Watch(array.ctypes.data, array.ctypes.data + array.nbytes, fill)
    try:
        yield watch
    finally:
        watch.end()


@pytest.mark.parametrize("fill", [0, 7])
@pytest.mark.parametrize("left", [0, 1, 3])
def test_lost_pages_are_replaced_and_the_others_stay(tmp_path: Path, left: int, fill: int) -> None:
    array = mapped(tmp_path / "x")
    with watched(array, fill) as watch:
        os.truncate(tmp_path / "x", left * mmap.PAGESIZE)
        kept = left * mmap.PAGESIZE // 8
        assert array[:kept].tolist() == list(range(1, kept + 1))
        assert not watch.is_lost()
        assert (array[kept:] == fill).all()
        assert watch.is_lost()
        # The memory may be written to, as the map could.
        array[-1] = 5
        assert array[-1] == 5


def test_every_thread_survives(tmp_path: Path) -> None:
    arrays = [mapped(tmp_path / str(number)) for number in range(8)]
    watches = [Watch(array.ctypes.data, array.ctypes.data + array.nbytes, 3) for array in arrays]
    for number in range(8):
        os.truncate(tmp_path / str(number), 0)
    sums: list[int] = []

    def add_up() -> None:
        sums.extend(int(torch.from_numpy(array).sum()) for array in arrays)

    threads = [threading.Thread(target=add_up) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sums == [3 * WORDS] * 64
    assert [watch.end() for watch in watches] == [True] * 8


def test_slots_are_used_again(tmp_path: Path) -> None:
    array = mapped(tmp_path / "x")
    before = len(bus_error._free)
    for _ in range(2 * bus_error._MOST_MAPS):
        with watched(array):
            assert len(bus_error._free) == before - 1
    assert len(bus_error._free) == before


def test_more_maps_than_slots_are_not_watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bus_error, "_free", [])
    with watched(mapped(tmp_path / "x")) as watch:
        assert not watch.is_lost()
    assert bus_error._free == []


DRIVER = """
import os, sys
import numpy as np
from sagann.storage.bus_error import Watch
np.zeros(4096).tofile(sys.argv[1])
first, second = (np.memmap(sys.argv[1], mode="r") for _ in range(2))
watch = Watch(first.ctypes.data, first.ctypes.data + first.nbytes, 0)
os.truncate(sys.argv[1], 0)
print(int(first.sum()), flush=True)
print(int(second.sum()), flush=True)
"""


@pytest.mark.parametrize("options", [[], ["-X", "faulthandler"]])
def test_what_is_not_watched_ends_the_process(tmp_path: Path, options: list[str]) -> None:
    ended = subprocess.run(
        [sys.executable, *options, "-c", DRIVER, str(tmp_path / "x")],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert ended.returncode == -signal.SIGBUS
    assert ended.stdout == "0\n"
    # The handler that was there before has its say.
    assert ("Fatal Python error: Bus error" in ended.stderr) == bool(options)
