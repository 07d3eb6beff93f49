import errno
import os
from pathlib import Path

import pytest

from sagann.storage.durable import sync_file, sync_folder, write_synced, write_whole


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x"
    write_whole(path, b"old")
    write_whole(path, b"new")
    assert path.read_bytes() == b"new"

    def fails(*names: object) -> None:
        raise OSError("killed here")

    monkeypatch.setattr(os, "replace", fails)
    with pytest.raises(OSError, match="killed here"):
        write_whole(path, b"newer")
    assert path.read_bytes() == b"new"


def test_a_full_disk_leaves_nothing_and_the_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=r"No space left on device: '.*/\.tmp-x'"):
        write_whole(tmp_path / "x", b"content")
    assert list(tmp_path.iterdir()) == []


def test_every_write_is_synced_before_its_name_appears(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    monkeypatch.setattr(os, "fsync", lambda handle: seen.append((tmp_path / "x").exists()))
    write_whole(tmp_path / "x", b"content")
    assert seen == [False, True]
    write_synced(tmp_path / "x", b"content")
    sync_file(tmp_path / "x")
    sync_folder(tmp_path)
    assert len(seen) == 5
