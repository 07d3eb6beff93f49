from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from sagann.errors import DatasetError
from sagann.storage import read_npz
from sagann.storage.tables import open_table
from sagann.storage.vertex_files import open_features


@pytest.mark.parametrize(
    ("name", "read"),
    [("g.npz", read_npz), ("e.csv", open_table), ("e.parquet", open_table), ("f.npy", open_features)],
)
def test_a_missing_file_a_folder_and_a_pipe_are_named(
    tmp_path: Path, name: str, read: Callable[[Path], object]
) -> None:
    with pytest.raises(DatasetError, match=f"file not found: .*{name}"):
        read(tmp_path / name)
    (tmp_path / name).mkdir()
    with pytest.raises(DatasetError, match=f"not a file: a folder.*{name}"):
        read(tmp_path / name)
    (tmp_path / name).rmdir()
    # Whoever reads it twice, as tables are, would miss what was read before.
    os.mkfifo(tmp_path / name)
    with pytest.raises(DatasetError, match=f"not a file: a pipe.*{name}"):
        read(tmp_path / name)
