from __future__ import annotations

import errno
import json

import pytest
import torch

from sagann.errors import CheckpointError
from sagann.train.atomic import disk_errors, remove_folder, remove_leftovers, write_json, write_tensors


def test_json_is_written_whole_or_not_at_all(tmp_path):
    path = tmp_path / "x.json"
    write_json(path, {"a": 1})
    with pytest.raises(ValueError, match="Out of range float"):
        write_json(path, {"a": float("nan")})
    assert json.loads(path.read_text()) == {"a": 1}
    assert [file.name for file in tmp_path.iterdir()] == ["x.json"]


def test_a_folder_is_removed_even_after_a_killed_removal(tmp_path):
    for name in ("x", ".tmp-removed-x"):
        (tmp_path / name / "inner").mkdir(parents=True)
    remove_folder(tmp_path / "x")
    remove_folder(tmp_path / "x")
    assert list(tmp_path.iterdir()) == []


def test_what_the_disk_refuses_is_said_in_four_parts(tmp_path, monkeypatch):
    def full(handle):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with (
        pytest.raises(CheckpointError, match="the run folder cannot be written: No space left on device"),
        disk_errors(tmp_path),
    ):
        write_json(tmp_path / "x.json", {})
    assert not (tmp_path / "x.json").exists()


def test_tensors_may_be_read_by_whom_the_umask_lets(tmp_path):
    write_json(tmp_path / "x.json", {})
    write_tensors(tmp_path / "x.safetensors", {"w": torch.ones(2)})
    assert (tmp_path / "x.safetensors").stat().st_mode == (tmp_path / "x.json").stat().st_mode
    with pytest.raises(OSError, match=r"(?i)no such file"):
        write_tensors(tmp_path / "absent" / "x.safetensors", {"w": torch.ones(2)})


def test_leftovers_are_removed_and_nothing_else(tmp_path):
    for name in (".tmp-folder", ".tmp-removed-folder", ".tmp-mine"):
        (tmp_path / name / "inner").mkdir(parents=True)
    for name in (".tmp-file", "file", ".tmp-file-of-mine"):
        (tmp_path / name).write_text("")
    remove_leftovers(tmp_path, ("folder", "file", "absent"))
    assert sorted(path.name for path in tmp_path.iterdir()) == [".tmp-file-of-mine", ".tmp-mine", "file"]


def test_of_a_link_only_the_link_is_removed(tmp_path):
    (tmp_path / "mine").mkdir()
    for name in ("run", ".tmp-removed-run"):
        (tmp_path / name).symlink_to(tmp_path / "mine")
    remove_folder(tmp_path / "run")
    (tmp_path / "absent").symlink_to(tmp_path / "nowhere")
    remove_folder(tmp_path / "absent")
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_nothing_is_written_through_a_link(tmp_path):
    (tmp_path / "mine").write_text("precious")
    (tmp_path / ".tmp-x.json").symlink_to(tmp_path / "mine")
    write_json(tmp_path / "x.json", {})
    assert (tmp_path / "mine").read_text() == "precious"
    assert (tmp_path / "x.json").read_text() == "{}\n"
