"""Checksums find a flipped bit that leaves a value which could be one, and tell arrays apart."""

from __future__ import annotations

import re
import zlib
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import pytest
import torch

from sagann.errors import DatasetError
from sagann.graph import validate_graph
from sagann.graph.feature_store import TensorRows
from sagann.storage import npy, open_graph, save_graph
from sagann.storage.verify import array_checksums, check_graph
from tests.storage.conftest import make_graph

HEADER = 128


def flip(path: Path, at: int = 0) -> None:
    content = bytearray(path.read_bytes())
    content[HEADER + at] ^= 1
    path.write_bytes(content)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_graph(make_graph(), tmp_path / "g")
    return tmp_path / "g"


@pytest.mark.parametrize(
    ("name", "at"),
    [
        ("features", 3),
        # Source 2 becomes 3, label 0 becomes 1, and vertex 1 is no training vertex.
        ("indices", 0),
        ("labels", 0),
        ("split_train", 1),
    ],
)
def test_a_flipped_bit_is_found(folder: Path, name: str, at: int) -> None:
    flip(folder / f"{name}.npy", at)
    of_graphs = {"graph_ptr": None, "graph_names": (), "graph_labels": None, "graph_targets": None}
    graph = replace(open_graph(folder), **of_graphs, num_graph_classes=0, graph_splits={})
    validate_graph(graph)
    where = re.escape(str(folder / f"{name}.npy"))
    with pytest.raises(DatasetError, match=f"array file is damaged: CRC-32 .* from byte 0 .in {where}"):
        check_graph(graph)


def test_the_damaged_part_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(npy, "CHECKSUM_BYTES", 64)
    monkeypatch.setattr(npy, "_READ_BYTES", 24)
    save_graph(make_graph(), tmp_path / "g")
    check_graph(open_graph(tmp_path / "g"))
    flip(tmp_path / "g" / "features.npy", 100)
    with pytest.raises(DatasetError, match="from byte 64"):
        check_graph(open_graph(tmp_path / "g"))


def test_an_array_that_was_written_to_is_compared_in_its_file(folder: Path) -> None:
    graph = open_graph(folder)
    graph.features.mul_(2)
    check_graph(graph)
    graph = open_graph(folder)
    graph.features.mul_(2)
    flip(folder / "features.npy", 3)
    with pytest.raises(DatasetError, match=r"features\.npy"):
        check_graph(graph)


def test_a_dataset_that_was_replaced_is_no_damage(folder: Path) -> None:
    graph = open_graph(folder)
    save_graph(make_graph(labels="multi", features="none"), folder, overwrite=True)
    check_graph(graph)


def test_damage_is_not_saved_with_a_new_checksum(folder: Path, tmp_path: Path) -> None:
    flip(folder / "features.npy")
    with pytest.raises(DatasetError, match=r"array file is damaged: CRC-32 .*features\.npy"):
        save_graph(open_graph(folder), tmp_path / "copy")
    assert not (tmp_path / "copy").exists()
    # Whoever asks for no checks gets a copy of what is there.
    save_graph(open_graph(folder, verify=False), tmp_path / "copy")
    assert torch.equal(open_graph(tmp_path / "copy").features, open_graph(folder).features)


@pytest.fixture
def features(tmp_path: Path) -> torch.Tensor:
    """Features of a dataset that was verified, which are not read again."""
    save_graph(make_graph(), tmp_path / "g")
    graph = open_graph(tmp_path / "g")
    check_graph(graph)
    return graph.features


def of_numbers(array: torch.Tensor) -> tuple[int, ...]:
    return (zlib.crc32(array.clone().numpy().tobytes()),)


def test_a_verified_array_has_the_checksums_of_its_manifest(
    features: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    def add(*_: object) -> None:
        raise AssertionError("the array is read")

    monkeypatch.setattr(npy.PartChecksums, "add", add)
    assert array_checksums(features) == of_numbers(features)


def test_an_array_that_was_written_to_is_read(features: torch.Tensor) -> None:
    before = array_checksums(features)
    features[2, 1] = 7
    assert array_checksums(features) == of_numbers(features) != before


def test_a_part_of_a_verified_array_has_its_own(features: torch.Tensor) -> None:
    assert array_checksums(features[2:]) == of_numbers(features[2:])
    assert array_checksums(features.t()) == of_numbers(features.t().contiguous())


def test_a_store_is_read_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(npy, "CHECKSUM_BYTES", 40)
    monkeypatch.setattr(import_module("sagann.graph.feature_store"), "_AT_ONCE_BYTES", 24)
    rows = torch.arange(21.0).reshape(7, 3)
    content = rows.numpy().tobytes()
    expected = tuple(zlib.crc32(content[first : first + 40]) for first in range(0, len(content), 40))
    assert array_checksums(TensorRows(rows)) == array_checksums(rows) == expected
