"""Scratch: arrays on disk that no name leads to."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from sagann.runtime.blocks.scratch import Scratch
from sagann.runtime.blocks.spill import SpillError


def test_an_array_lies_in_a_file_without_a_name(tmp_path: Path) -> None:
    folder = tmp_path / "not" / "there yet"
    rows = Scratch(folder)((1 << 19, 3), torch.int32)
    rows.copy_(torch.arange(3 << 19).reshape(-1, 3))
    assert rows[-1].tolist() == [(3 << 19) - 3, (3 << 19) - 2, (3 << 19) - 1]
    assert list(tmp_path.iterdir()) == []
    address = rows.data_ptr()
    maps = [line.split(maxsplit=5) for line in Path("/proc/self/maps").read_text().splitlines()]
    (path,) = (
        each[5]
        for each in maps
        if len(each) == 6 and int(each[0].split("-")[0], 16) <= address < int(each[0].split("-")[1], 16)
    )
    # As Linux writes a file that was unlinked.
    assert path.startswith(str(tmp_path))
    assert path.endswith("(deleted)")


def test_a_folder_that_may_not_be_looked_into_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(path: Path) -> bool:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "exists", refused)
    with pytest.raises(SpillError, match=rf"Permission denied .in '{tmp_path}'"):
        Scratch(tmp_path)((1 << 20,), torch.float32)


def test_small_arrays_lie_in_memory(tmp_path: Path) -> None:
    assert Scratch(tmp_path)((0, 5), torch.float32).shape == (0, 5)
    assert Scratch(tmp_path)((3,), torch.bool).shape == (3,)


def test_a_disk_without_room_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        SpillError, match=rf"cannot be kept on disk: {1 << 52} bytes: .*{tmp_path.name}.*Free some room"
    ):
        Scratch(tmp_path)((1 << 50,), torch.float32)
