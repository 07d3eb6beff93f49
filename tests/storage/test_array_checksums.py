"""Checksums of arrays: those of the manifest as long as the array holds what was verified, else those of its numbers."""

from __future__ import annotations

import os
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch

from sagann.graph.feature_store import TensorRows
from sagann.storage import array_checksums as module, npy, open_graph, save_graph
from sagann.storage.array_checksums import array_checksums
from sagann.storage.verify import check_graph
from tests.storage.conftest import make_graph


@pytest.fixture
def features(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> torch.Tensor:
    """Features of a dataset that was verified, which are not read again."""
    monkeypatch.setattr(module, "_SMALL_BYTES", 0)
    save_graph(make_graph(), tmp_path / "g")
    graph = open_graph(tmp_path / "g")
    check_graph(graph)
    assert isinstance(graph.features, torch.Tensor)
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
    # As a user may do past PyTorch, which counts its own changes only.
    features.numpy()[2, 1] = 7
    assert array_checksums(features) == of_numbers(features) != before


def test_a_file_that_was_written_to_is_read(features: torch.Tensor, tmp_path: Path) -> None:
    before = array_checksums(features)
    with (tmp_path / "g" / "features.npy").open("r+b") as file:
        file.seek(-4, os.SEEK_END)
        file.write(np.float32(9).tobytes())
    assert array_checksums(features) == of_numbers(features) != before


def test_a_part_of_a_verified_array_has_its_own(features: torch.Tensor) -> None:
    assert array_checksums(features[2:]) == of_numbers(features[2:])
    assert array_checksums(features.t()) == of_numbers(features.t().contiguous())


def test_a_store_is_read_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(npy, "CHECKSUM_BYTES", 40)
    monkeypatch.setattr(module, "_AT_ONCE_BYTES", 24)
    rows = torch.arange(21.0).reshape(7, 3)
    content = rows.numpy().tobytes()
    expected = tuple(zlib.crc32(content[first : first + 40]) for first in range(0, len(content), 40))
    assert array_checksums(TensorRows(rows)) == array_checksums(rows) == expected
