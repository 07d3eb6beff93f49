"""The manifest of a dataset folder: a description of the graph and of every array file.

A manifest is JSON with a checksum over itself, so no field can change unnoticed. The reader refuses unknown versions,
missing fields, wrong types, and arrays that do not fit the counts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from torch import Tensor

from sagann.errors import DatasetError, InputError
from sagann.graph import SPLIT_NAMES, id_dtype
from sagann.graph.feature_store import Features
from sagann.graph.rows import is_sparse
from sagann.ranges import RANGES, require_shape
from sagann.storage.crc32 import crc32
from sagann.storage.durable import write_whole
from sagann.storage.folder import FORMAT, MANIFEST_FILE
from sagann.storage.json_fields import as_flag, as_integer, as_list, as_mapping, as_text, as_texts, is_unicode
from sagann.storage.npy import DTYPE_NAMES, ArraySpec, dtype_name

VERSION = 1
SAFE_NAME = re.compile(r"[A-Za-z0-9_]{1,64}")
"Pattern of the names that may become part of a file name."

_MANIFEST_LIMIT_BYTES = 64 * 2**20
_FEATURES = ("none", "dense", "csr")
_LABELS = ("none", "single", "multi")


@dataclass(frozen=True, kw_only=True, slots=True)
class EdgeTreatment:
    """Changes that an import made to the edges of its source."""

    symmetrised: bool = False
    "Whether every edge got its reverse and multi-edges were merged."
    coalesced: bool = False
    "Whether multi-edges were merged."
    self_loops_dropped: bool = False
    "Whether edges v -> v were left out."


@dataclass(frozen=True, kw_only=True, slots=True)
class Manifest:
    """Description of a dataset, without the data of its arrays."""

    name: str
    "Name of the graph."
    num_vertices: int
    "Number of vertices."
    num_edges: int
    "Number of directed edges."
    num_features: int = 0
    "Number of features per vertex; 0 without features."
    features: str = "none"
    "Layout of the features: 'none', 'dense' or 'csr'."
    num_classes: int = 0
    "Number of classes; 0 without labels."
    labels: str = "none"
    "Kind of the labels: 'none', 'single' (int64, -1 for unknown) or 'multi' (uint8, 0 and 1)."
    num_targets: int = 0
    "Number of target values per vertex, for a regression; 0 without targets."
    num_edge_types: int = 0
    "Number of edge types; 0 without types."
    edge_data: tuple[str, ...] = ()
    "Names of the edge data."
    splits: tuple[str, ...] = ()
    "Names of the splits."
    num_graphs: int = 1
    "Number of graphs; more than 1 requires the array graph_ptr."
    graph_names: tuple[str, ...] = ()
    "Names of the graphs, or empty."
    graph_labels: str = "none"
    "Kind of the labels of graphs, as of ``labels``."
    num_graph_classes: int = 0
    "Number of classes of graphs; 0 without labels of graphs."
    num_graph_targets: int = 0
    "Number of target values per graph; 0 without targets of graphs."
    graph_splits: tuple[str, ...] = ()
    "Names of the splits of graphs."
    class_names: tuple[str, ...] = ()
    "Names of the classes, or empty."
    edge_type_names: tuple[str, ...] = ()
    "Names of the edge types, or empty."
    feature_names: tuple[str, ...] = ()
    "Names of the features, or empty."
    edges: EdgeTreatment = field(default_factory=EdgeTreatment)
    "Changes that the import made to the edges of the source."
    source: str = ""
    "Origin of the data, in words."
    arrays: Mapping[str, ArraySpec]
    "Descriptions of all arrays by name; the file of an array is its name with '.npy'."


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write the manifest, after all arrays are written and synced; refuse arrays that contradict the other fields."""
    if problem := _contradiction(manifest):
        raise InputError(
            f"graph cannot be stored: {problem} (in graph '{manifest.name}')",
            hint="Correct the named array or count; the fields of Graph say what each array must be.",
        )
    body = {"format": FORMAT, "version": VERSION, **asdict(manifest)}
    for name, spec in manifest.arrays.items():
        body["arrays"][name]["file_bytes"] = spec.file_bytes
    body["manifest_crc32"] = _self_checksum(body)
    write_whole(folder / MANIFEST_FILE, json.dumps(body, indent=1, ensure_ascii=False).encode())


def read_manifest(folder: Path) -> Manifest:
    """Read and check a manifest; no array file is opened."""
    body = _read_body(folder)
    path = folder / MANIFEST_FILE
    try:
        values = {key.name: _READERS[str(key.type)](body[key.name]) for key in fields(Manifest)}
    except (KeyError, TypeError, ValueError) as error:
        raise _refused(path, f"a field is missing or has the wrong type: {error}") from error
    manifest = Manifest(**values)
    if problem := _contradiction(manifest):
        raise _refused(path, problem)
    return manifest


def _read_body(folder: Path) -> dict[str, Any]:
    path = folder / MANIFEST_FILE
    try:
        with path.open("rb") as file:
            text = file.read(_MANIFEST_LIMIT_BYTES)
    except OSError as error:
        raise DatasetError(
            f"not a dataset of sagann: {MANIFEST_FILE}: {error.strerror or error} (in {folder})",
            hint="Give a folder made by 'sagann data import' or save_graph.",
        ) from error
    try:
        body = json.loads(text)
    except ValueError as error:
        raise _refused(path, f"it is not JSON: {error}") from error
    if not isinstance(body, dict) or body.get("format") != FORMAT:
        raise _refused(path, f"it does not say format '{FORMAT}'")
    if body.get("version") != VERSION:
        raise DatasetError(
            f"dataset has another version of the format: version {body.get('version')!r}, this sagann reads "
            f"version {VERSION} (in {path})",
            hint="Install the sagann that wrote it, or import the dataset again.",
        )
    found = body.pop("manifest_crc32", None)
    if found != _self_checksum(body):
        raise _refused(path, "its checksum does not agree with its content")
    return body


def _self_checksum(body: Mapping[str, Any]) -> int:
    canonical = json.dumps(body, sort_keys=True, separators=(",", ":"))
    return crc32(canonical.encode())


def _refused(path: Path, problem: str) -> DatasetError:
    return DatasetError(
        f"manifest cannot be used: {problem} (in {path})",
        hint="Import the dataset again; a manifest is not meant to be edited by hand.",
    )


def _edges(value: Any) -> EdgeTreatment:
    flags = as_mapping(value)
    return EdgeTreatment(**{key.name: as_flag(flags[key.name]) for key in fields(EdgeTreatment)})


def _arrays(value: Any) -> dict[str, ArraySpec]:
    return {name: _array(item) for name, item in as_mapping(value).items()}


def _array(value: Any) -> ArraySpec:
    item = as_mapping(value)
    if item["dtype"] not in DTYPE_NAMES:
        raise ValueError(f"unknown dtype {item['dtype']!r:.40}")
    spec = ArraySpec(
        dtype=item["dtype"],
        shape=tuple(as_integer(size, "size") for size in as_list(item["shape"])),
        crc32=tuple(as_integer(checksum, "crc32") for checksum in as_list(item["crc32"])),
    )
    require_shape(spec.shape, spec.item_bytes)
    if len(spec.crc32) != spec.num_parts:
        raise ValueError(
            f"there are {len(spec.crc32)} checksums of {spec.data_bytes} bytes, expected {spec.num_parts}"
        )
    return spec


_READERS: Mapping[str, Callable[[Any], Any]] = {
    "str": as_text,
    # The range depends on the field, and is checked with the other contradictions.
    "int": lambda value: value,
    "tuple[str, ...]": as_texts,
    "EdgeTreatment": _edges,
    "Mapping[str, ArraySpec]": _arrays,
}
"Function that reads and checks a field of the manifest, by the type of the field."


def _contradiction(manifest: Manifest) -> str:
    """Describe the first contradiction in a manifest; an empty text if there is none."""
    for key in fields(Manifest):
        if key.type == "int" and (value := getattr(manifest, key.name)) not in RANGES[key.name]:
            return f"{key.name} is {value!r:.40}, expected {RANGES[key.name]}"
    for what in ("splits", "graph_splits"):
        if not set(splits := getattr(manifest, what)) <= set(SPLIT_NAMES):
            return f"{what} are {splits}, expected some of {SPLIT_NAMES}"
    if not all(SAFE_NAME.fullmatch(name) for name in manifest.edge_data):
        return f"a name of edge data is not made of letters, digits and underscores: {manifest.edge_data}"
    for what, kinds in (("features", _FEATURES), ("labels", _LABELS), ("graph_labels", _LABELS)):
        if (kind := getattr(manifest, what)) not in kinds:
            return f"{what} are '{kind}', expected {', '.join(kinds[:-1])} or {kinds[-1]}"
    expected = _expected_arrays(manifest)
    if set(manifest.arrays) != set(expected):
        return f"arrays are {sorted(manifest.arrays)}, expected {sorted(expected)}"
    for name, (dtypes, shape) in expected.items():
        spec = manifest.arrays[name]
        fits = len(spec.shape) == len(shape) and all(
            want in (-1, size) for want, size in zip(shape, spec.shape, strict=True)
        )
        if not fits or spec.dtype not in dtypes:
            return f"array '{name}' is {spec.dtype} {spec.shape}, expected {' or '.join(sorted(dtypes))} {shape}"
    if manifest.features == "csr":
        offsets, columns, values = (manifest.arrays[f"features_{part}"] for part in ("indptr", "indices", "values"))
        if offsets.dtype != columns.dtype or columns.shape != values.shape:
            return "the three arrays of the sparse features do not fit each other"
        try:
            require_shape((manifest.num_vertices, manifest.num_features), 1)
        except ValueError as error:
            return f"sparse features: {error}"
    return _contradiction_in_names(manifest)


def _contradiction_in_names(manifest: Manifest) -> str:
    texts = (
        manifest.name,
        manifest.source,
        *manifest.graph_names,
        *manifest.class_names,
        *manifest.edge_type_names,
        *manifest.feature_names,
    )
    if wrong := [text for text in texts if not is_unicode(text)]:
        return f"{wrong[0]!r:.80} cannot be written in UTF-8"
    for what, names, count in (
        ("graphs", manifest.graph_names, manifest.num_graphs),
        ("classes", manifest.class_names, manifest.num_classes),
        ("edge types", manifest.edge_type_names, manifest.num_edge_types),
        ("features", manifest.feature_names, manifest.num_features),
    ):
        if names and len(names) != count:
            return f"there are {count} {what}, but {len(names)} names"
    has_types = "type" in manifest.edge_data
    # A graph without edges may have edge data 'type' and no edge type.
    if has_types != (manifest.num_edge_types > 0) and not (has_types and manifest.num_edges == 0):
        presence = "present" if has_types else "missing"
        return f"num_edge_types is {manifest.num_edge_types}, but edge data 'type' is {presence}"
    return ""


def _expected_arrays(manifest: Manifest) -> dict[str, tuple[frozenset[str], tuple[int, ...]]]:
    """Allowed dtypes and the shape of every array; a size of -1 stands for any size."""
    num_vertices, num_edges = manifest.num_vertices, manifest.num_edges
    int64, ids = frozenset({"int64"}), frozenset({"int32", "int64"})
    expected: dict[str, tuple[frozenset[str], tuple[int, ...]]] = {
        "indptr": (int64, (num_vertices + 1,)),
        "indices": (frozenset({dtype_name(id_dtype(num_vertices)), "int64"}), (num_edges,)),
    }
    for name in manifest.edge_data:
        # Edge data may have further dimensions, whose sizes no other field states.
        spec = manifest.arrays.get(f"edge_{name}")
        columns = (-1,) * (len(spec.shape) - 1) if spec else ()
        expected[f"edge_{name}"] = (DTYPE_NAMES, (num_edges, *columns))
    if manifest.features == "dense":
        expected["features"] = (DTYPE_NAMES, (num_vertices, manifest.num_features))
    elif manifest.features == "csr":
        expected["features_indptr"] = (ids, (num_vertices + 1,))
        expected["features_indices"] = (ids, (-1,))
        expected["features_values"] = (DTYPE_NAMES, (-1,))
    for prefix, rows in (("", num_vertices), ("graph_", manifest.num_graphs)):
        labels, num_targets = getattr(manifest, f"{prefix}labels"), getattr(manifest, f"num_{prefix}targets")
        if labels == "single":
            expected[f"{prefix}labels"] = (int64, (rows,))
        elif labels == "multi":
            expected[f"{prefix}labels"] = (frozenset({"uint8"}), (rows, getattr(manifest, f"num_{prefix}classes")))
        if num_targets:
            columns = () if num_targets == 1 else (num_targets,)
            expected[f"{prefix}targets"] = (frozenset({"float32"}), (rows, *columns))
        for name in getattr(manifest, f"{prefix}splits"):
            expected[f"{prefix}split_{name}"] = (frozenset({"bool"}), (rows,))
    if (
        "graph_ptr" in manifest.arrays
        or manifest.num_graphs > 1
        or any(name.startswith("graph_") for name in expected)
    ):
        expected["graph_ptr"] = (int64, (manifest.num_graphs + 1,))
    if "original_ids" in manifest.arrays:
        expected["original_ids"] = (int64, (num_vertices,))
    return expected


def answers_fields(
    prefix: str, labels: str, num_classes: int, num_targets: int, splits: Iterable[str]
) -> dict[str, Any]:
    """The fields of a Manifest about the answers of vertices, or with the prefix 'graph_' about those of graphs."""
    return {
        f"{prefix}labels": labels,
        f"num_{prefix}classes": num_classes,
        f"num_{prefix}targets": num_targets,
        f"{prefix}splits": tuple(splits),
    }


def kind_of_labels(labels: Tensor | None) -> str:
    """Name the kind of labels: 'none', 'single' or 'multi'."""
    if labels is None:
        return "none"
    return "multi" if labels.ndim == 2 else "single"


def layout_of(features: Features | None) -> str:
    """Name the layout of a graph's features: 'none', 'dense' or 'csr'."""
    if features is None:
        return "none"
    return "csr" if is_sparse(features) else "dense"
