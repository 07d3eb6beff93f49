from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import pytest

from sagann.errors import CheckpointError, DatasetError, InputError
from sagann.storage import load_graph, open_graph, read_npz, regular_file
from sagann.storage.regular_file import open_file, read_file, require_file
from sagann.storage.tables import open_table
from sagann.storage.vertex_files import open_features, open_labels


def test_files_and_what_is_missing_pass(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    for name in ("file", "link", "missing"):
        require_file(tmp_path / name)


def test_what_stands_there_is_named(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(tmp_path / "pipe")
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(tmp_path / "s"))
        found = {tmp_path: "a folder", tmp_path / "pipe": "a pipe", tmp_path / "link": "a pipe"}
        for path, kind in (found | {tmp_path / "s": "a socket", Path("/dev/zero"): "a device"}).items():
            with pytest.raises(DatasetError, match=f"not a file: {kind}, a regular file is needed"):
                require_file(path)
    with pytest.raises(CheckpointError):
        require_file(tmp_path, error=CheckpointError)


@pytest.mark.parametrize("mode", ["rb", "wb", "ab"])
def test_nothing_but_a_file_is_opened(tmp_path: Path, mode: Literal["rb", "wb", "ab"]) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(CheckpointError, match="not a file: a "):
            open_file(path, mode, error=CheckpointError)


def test_a_pipe_that_takes_the_place_of_a_file_is_refused_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(tmp_path / "pipe")
    # Whoever looked before has seen a file.
    monkeypatch.setattr(regular_file, "require_file", lambda path, error: None)
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(DatasetError, match="not a file: a pipe"):
        open_file(tmp_path / "pipe")
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("name", ["e.csv", "e.csv.gz", "e.parquet"])
def test_a_pipe_that_takes_the_place_of_a_table_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    os.mkfifo(tmp_path / name)
    monkeypatch.setattr(regular_file, "require_file", lambda path, error=DatasetError: None)
    with pytest.raises(DatasetError, match=f"not a file: a pipe.*{name}"):
        open_table(tmp_path / name)


def test_files_are_opened_as_open_does(tmp_path: Path) -> None:
    path = tmp_path / "file"
    for mode in ("wb", "ab"):
        with open_file(path, mode) as file:
            file.write(b"ab")
    assert read_file(path) == b"abab"
    with pytest.raises(FileNotFoundError):
        open_file(tmp_path / "missing")


@pytest.mark.parametrize(
    ("name", "read"),
    [
        ("g.npz", read_npz),
        ("g.npz", load_graph),
        ("demo", load_graph),
        ("e.csv", open_table),
        ("e.csv.gz", open_table),
        ("e.parquet", open_table),
        ("f.npy", open_features),
        ("l.npy", open_labels),
    ],
)
def test_no_reader_waits_for_a_pipe(tmp_path: Path, name: str, read: Callable[[Path], object]) -> None:
    os.mkfifo(tmp_path / name)
    with pytest.raises(InputError, match="not a file: a pipe"):
        read(tmp_path / name)


def test_no_reader_waits_for_a_pipe_in_a_folder(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "manifest.json")
    with pytest.raises(DatasetError, match="not a file: a pipe"):
        open_graph(tmp_path)
