from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from sagann.errors import CheckpointError, DatasetError, InputError
from sagann.storage import load_graph, open_graph, read_npz
from sagann.storage.regular_file import require_file
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


@pytest.mark.timeout(20)
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


@pytest.mark.timeout(20)
def test_no_reader_waits_for_a_pipe_in_a_folder(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "manifest.json")
    with pytest.raises(DatasetError, match="not a file: a pipe"):
        open_graph(tmp_path)
