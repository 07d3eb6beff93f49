"""Manifests that lie, though their own checksum agrees."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sagann.errors import DatasetError
from sagann.storage import open_graph, save_graph
from sagann.storage.manifest import _self_checksum
from tests.storage.conftest import make_graph


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        ({"num_vertices": 8}, r"array 'indptr' is int64 \(8,\), expected int64 \(9,\)"),
        ({"num_vertices": "7"}, r"num_vertices is '7', expected an integer from 0 to 2\^48 - 1"),
        ({"features": "csr"}, r"arrays are .* expected"),
        ({"graph_labels": "multi"}, r"array 'graph_labels' is int64 \(2,\), expected uint8 \(2, 2\)"),
        ({"edge_data": ["../../x"]}, r"not made of letters, digits and underscores"),
        ({"class_names": ["a", "b"]}, r"there are 3 classes, but 2 names"),
        ({"num_edge_types": 0, "edge_type_names": []}, r"num_edge_types is 0, but edge data 'type' is present"),
        ({"name": "\ud800"}, r"'\\ud800' cannot be written in UTF-8"),
    ],
)
def test_contradictions_are_refused(tmp_path: Path, edit: dict[str, Any], message: str) -> None:
    save_graph(make_graph(), tmp_path / "g")
    file = tmp_path / "g" / "manifest.json"
    body = json.loads(file.read_text()) | edit
    del body["manifest_crc32"]
    body["manifest_crc32"] = _self_checksum(body)
    file.write_text(json.dumps(body))
    with pytest.raises(DatasetError, match=message):
        open_graph(tmp_path / "g")


def test_unknown_dtype_and_missing_field_are_refused(tmp_path: Path) -> None:
    save_graph(make_graph(), tmp_path / "g")
    file = tmp_path / "g" / "manifest.json"
    whole = json.loads(file.read_text())
    for spoil in (
        lambda b: b["arrays"]["labels"].update(dtype="object"),
        lambda b: b.pop("num_classes"),
        lambda b: b["arrays"]["labels"].update(crc32=[1, 2]),
    ):
        body = json.loads(json.dumps(whole))
        spoil(body)
        del body["manifest_crc32"]
        body["manifest_crc32"] = _self_checksum(body)
        file.write_text(json.dumps(body))
        with pytest.raises(
            DatasetError,
            match=r"unknown dtype 'object'|missing or has the wrong type: 'num_classes'|there are [02] checksums of \d+ bytes, expected 1",
        ):
            open_graph(tmp_path / "g")
