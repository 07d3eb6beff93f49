from __future__ import annotations

import json

import pytest

from sagann.train.atomic import remove_folder, remove_leftovers, write_json


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


def test_leftovers_are_removed_and_nothing_else(tmp_path):
    (tmp_path / ".tmp-folder").mkdir()
    (tmp_path / ".tmp-file").write_text("")
    (tmp_path / "kept").write_text("")
    remove_leftovers(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]
