from __future__ import annotations

import csv
from pathlib import Path

import pytest
import torch

from sagann.cli.result_file import write_embeddings, write_predictions
from sagann.errors import InputError


def test_awkward_names_survive_csv(tmp_path: Path) -> None:
    names = ['says "hi"', "a,b", "line\nbreak"]
    write_predictions(tmp_path / "p.csv", torch.eye(3), names, multi_label=False)
    with (tmp_path / "p.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["class_name"] for row in rows] == names


def test_classes_of_one_name_get_numbers(tmp_path: Path) -> None:
    write_predictions(tmp_path / "p.csv", torch.eye(2), ["vertex", "b"], multi_label=True)
    assert (tmp_path / "p.csv").read_text().splitlines()[0] == '"vertex","0:vertex","1:b"'


def test_an_empty_graph(tmp_path: Path) -> None:
    for ending in ("csv", "parquet", "npy"):
        write_predictions(tmp_path / f"p.{ending}", torch.zeros(0, 2), ["a", "b"], multi_label=False)
        assert (tmp_path / f"p.{ending}").stat().st_size > 0


def test_a_failure_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "e.npy"
    write_embeddings(path, torch.zeros(2, 2))
    before = path.read_bytes()

    def fail(*_: object, **__: object) -> None:
        raise OSError("4 requested and 1 written")

    monkeypatch.setattr("numpy.save", fail)
    with pytest.raises(
        InputError, match=r"cannot be written: 4 requested and 1 written \(in .*e\.npy\)\. Free some"
    ):
        write_embeddings(path, torch.ones(2, 2))
    assert path.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["e.npy"]
