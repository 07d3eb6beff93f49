"""The manifest of a dataset folder: its array files, and what a graph states beside its arrays.

Everything that the arrays tell is left to them: which answers and splits there are by their names, all counts of rows and columns by
their shapes. A manifest is JSON with a checksum over itself, so no field can change unnoticed. The reader refuses unknown versions.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from sagann.errors import DatasetError
from sagann.graph.graph import NAMES
from sagann.storage.folder import FORMAT, MANIFEST_FILE, write_whole
from sagann.storage.npy import ArraySpec, crc32

VERSION = 2
SAFE_NAME = re.compile(r"[A-Za-z0-9_]{1,64}")
"Pattern of the names that may become part of a file name."
STATED = ("name", "num_features", "num_classes", "num_graph_classes", "num_edge_types", *NAMES)
"Fields and properties of a graph that the manifest has under the same name."
EDGE_CHANGES = ("symmetrised", "coalesced", "self_loops_dropped")
"""What an import may do to the edges of its source: add the reverse of each and merge multi-edges; merge multi-edges; leave out edges v -> v."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Manifest:
    """Description of a dataset, without the data of its arrays."""

    stated: Mapping[str, Any]
    "What the graph states, by the names STATED."
    edges: Mapping[str, bool] = field(default_factory=lambda: dict.fromkeys(EDGE_CHANGES, False))
    "Which of EDGE_CHANGES the import made."
    source: str = ""
    "Origin of the data, in words."
    arrays: Mapping[str, ArraySpec]
    "Descriptions of all arrays by name; the file of an array is its name with '.npy'."


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write the manifest, after all arrays are written and synced."""
    fields = asdict(manifest)
    body = {"format": FORMAT, "version": VERSION, **fields.pop("stated"), **fields}
    body["manifest_crc32"] = self_checksum(body)
    write_whole(folder / MANIFEST_FILE, json.dumps(body, indent=1).encode())


def read_manifest(folder: Path) -> Manifest:
    """Read and check a manifest; no array file is opened."""
    path = folder / MANIFEST_FILE
    try:
        body = json.loads(path.read_bytes())
    except OSError as error:
        raise DatasetError(
            f"not a dataset of sagann: {MANIFEST_FILE}: {error.strerror or error} (in {folder})",
            hint="Give a folder made by 'sagann data import' or save_graph.",
        ) from error
    except ValueError as error:
        raise _refused(path, f"it is not JSON: {error}") from error
    if not isinstance(body, dict) or body.pop("format", None) != FORMAT:
        raise _refused(path, f"it does not say format '{FORMAT}'")
    if (version := body.pop("version", None)) != VERSION:
        raise DatasetError(
            f"dataset has another version of the format: version {version!r:.40}, this sagann reads version {VERSION} (in {path})",
            hint="Install the sagann that wrote it, or import the dataset again.",
        )
    if body.pop("manifest_crc32", None) != self_checksum({"format": FORMAT, "version": VERSION, **body}):
        raise _refused(path, "its checksum does not agree with its content")
    # Lists were tuples when they were written.
    stated = {name: tuple(body[name]) if name in NAMES else body[name] for name in STATED}
    arrays = {name: ArraySpec.from_json(item) for name, item in body["arrays"].items()}
    return Manifest(stated=stated, edges=body["edges"], source=body["source"], arrays=arrays)


def self_checksum(body: Mapping[str, Any]) -> int:
    """The checksum of a manifest without its last field, ``manifest_crc32``."""
    return crc32(json.dumps(body, sort_keys=True, separators=(",", ":")).encode())


def _refused(path: Path, problem: str) -> DatasetError:
    return DatasetError(
        f"manifest cannot be used: {problem} (in {path})",
        hint="Import the dataset again; a manifest is not meant to be edited by hand.",
    )
