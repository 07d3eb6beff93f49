"""Datasets of DGL GraphBolt in their raw layout: a ``metadata.yaml`` that names CSV and ``.npy`` files.

Graphs are homogeneous, with a vertex task. Files in torch's format are refused, because reading them may run code.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sagann.errors import DatasetError, MissingDependencyError, shown
from sagann.free_space import require_memory
from sagann.graph.checks import check_labels, numbered
from sagann.import_config import ImportOptions
from sagann.storage.edge_list import table_edges
from sagann.storage.edge_source import Edges, edges_of_array
from sagann.storage.import_source import ImportSource
from sagann.storage.importer import import_dataset
from sagann.storage.json_fields import as_integer
from sagann.storage.manifest import SAFE_NAME
from sagann.storage.regular_file import reading
from sagann.storage.rows import FLOATS, Array, Rows, array_rows, as_labels, map_array, masks_of
from sagann.storage.tables import CsvTable
from sagann.storage.vertex_files import open_features

_SETS = {"train": "train_set", "val": "validation_set", "test": "test_set"}


def import_graphbolt(
    source: str | os.PathLike[str], out: str | os.PathLike[str], *, options: ImportOptions | None = None
) -> None:
    """Import a GraphBolt dataset, streaming the edges in bounded memory.

    Vertex features are the array named 'feat', or the only array of vertex features. Edge features become edge data of
    the same name. Labels and splits are those of the first task.

    Args:
        source: folder with ``metadata.yaml``, or that file.
        out: dataset folder to make.
        options: symmetrise, memory, and so on.
    Raises:
        MissingDependencyError: PyYAML is not installed.
        DatasetError: a file is missing or damaged, or the graph is heterogeneous; the message names file and row.
    """
    path = Path(source)
    path = path / "metadata.yaml" if path.is_dir() else path
    meta = _Metadata(path=path, body=_read_yaml(path))
    graph = meta.mapping(meta.body, "graph")
    num_vertices = _only_nodes(meta, graph)
    options = options or ImportOptions()
    labels, splits, num_classes = _task(meta, num_vertices, options.num_classes)
    import_dataset(
        ImportSource(
            name=_text(meta.body.get("dataset_name")) or path.parent.name,
            description=f"GraphBolt folder {path.parent.name}",
            edges=_edges(meta, graph),
            features=_features(meta),
            labels=labels,
            splits=splits,
            num_vertices=num_vertices,
            num_classes=num_classes,
        ),
        out,
        options,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Metadata:
    path: Path
    body: Mapping[str, Any]

    def mapping(self, parent: Mapping[str, Any], key: str) -> Mapping[str, Any]:
        value = parent.get(key)
        if not isinstance(value, dict):
            raise self.wrong(f"'{key}' is missing or not a mapping")
        return value

    def items(self, parent: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
        value = parent.get(key) or []
        if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
            raise self.wrong(f"'{key}' is not a list of mappings")
        return value

    def integer(self, item: Mapping[str, Any], key: str, what: str) -> int:
        try:
            return as_integer(item.get(key), what)
        except TypeError as error:
            raise self.wrong(f"'{key}': {error}") from error

    def file(self, item: Mapping[str, Any], kinds: tuple[str, ...] = ("numpy",)) -> Path:
        kind, name = item.get("format"), item.get("path")
        if kind not in kinds or not isinstance(name, str):
            raise DatasetError(
                f"file format not supported: format {shown(kind)} of {shown(name)}, expected "
                f"{' or '.join(kinds)} (in {self.path})",
                hint="Save the array with numpy.save; files in torch's format may run code, so they are not opened.",
            )
        return self.path.parent / name

    def wrong(self, problem: str) -> DatasetError:
        return DatasetError(
            f"metadata.yaml cannot be used: {problem} (in {self.path})",
            hint="Follow GraphBolt's layout for on-disk datasets in the raw form, of a graph with vertices and edges of one kind each.",
        )


def _read_yaml(path: Path) -> Mapping[str, Any]:
    try:
        import yaml
    except ImportError as error:
        raise MissingDependencyError("yaml", extra="graphbolt", feature="import of GraphBolt datasets") from error
    with (
        reading(path, yaml.YAMLError, hint="Correct the file; it must be YAML."),
        path.open("rb") as file,
    ):
        body = yaml.safe_load(file)
    if not isinstance(body, dict):
        raise _Metadata(path=path, body={}).wrong("it is not a mapping")
    return body


def _text(value: object) -> str:
    """A value as text; empty for a value that is missing."""
    return value if isinstance(value, str) else "" if value is None else shown(value)


def _only_nodes(meta: _Metadata, graph: Mapping[str, Any]) -> int:
    nodes, edges = meta.items(graph, "nodes"), meta.items(graph, "edges")
    types = [item.get("type") for item in (*nodes, *edges) if item.get("type") is not None]
    if len(nodes) > 1 or len(edges) > 1 or types:
        raise meta.wrong(f"a heterogeneous graph, with {', '.join(map(_text, types)) or 'several types'}")
    if len(nodes) != 1 or len(edges) != 1:
        raise meta.wrong("'graph' needs one entry under 'nodes' and one under 'edges'")
    return meta.integer(nodes[0], "num", "num_vertices")


def _edges(meta: _Metadata, graph: Mapping[str, Any]) -> Edges:
    data: dict[str, Rows] = {}
    for feature in meta.items(meta.body, "feature_data"):
        if feature.get("domain") == "edge":
            file, name = meta.file(feature), _text(feature.get("name"))
            if not SAFE_NAME.fullmatch(name):
                raise meta.wrong(
                    f"edge feature {shown(name)} has a name not made of letters, digits and underscores"
                )
            array = map_array(file)
            if array.dtype.kind not in "fiu" or array.ndim == 0:
                raise meta.wrong(f"edge feature '{name}' is not an array of numbers")
            if name == "type" and (array.dtype.kind == "f" or array.ndim != 1):
                raise meta.wrong(f"edge feature 'type' is {array.dtype} {list(array.shape)}, expected integers [E]")
            dtype = "int64" if name == "type" else array.dtype.name
            data[name] = array_rows(array, str(file), dtype if dtype in ("int32", "int64", *FLOATS) else "float32")
    path = meta.file(meta.items(graph, "edges")[0], ("csv", "numpy"))
    if path.suffix != ".npy":
        table = CsvTable(path, header=False)
        if len(table.names) < 2:
            raise meta.wrong(f"{path.name} has one column, expected source and destination separated by a comma")
        return Edges(ends=table_edges(table, table.names[:2]), num_edges=table.estimate_rows(), data=data)
    array = map_array(path)
    if array.ndim != 2 or array.shape[0] != 2 or array.dtype.kind not in "iu":
        raise meta.wrong(f"{path.name} is {array.dtype} {list(array.shape)}, expected integers [2, num_edges]")
    return Edges(ends=edges_of_array(array, str(path)), num_edges=array.shape[1], data=data)


def _features(meta: _Metadata) -> Rows | None:
    items = [item for item in meta.items(meta.body, "feature_data") if item.get("domain") == "node"]
    if not items:
        return None
    named = [item for item in items if item.get("name") == "feat"] or (items if len(items) == 1 else [])
    if not named:
        names = ", ".join(_text(item.get("name")) for item in items)
        raise meta.wrong(f"several vertex features and none named 'feat': {names}")
    return open_features(meta.file(named[0]))


def _task(
    meta: _Metadata, num_vertices: int, num_classes: int | None
) -> tuple[Rows | None, dict[str, Rows], int | None]:
    """Labels of all vertices, masks of the splits, and the number of classes that the first task states."""
    tasks = meta.items(meta.body, "tasks")
    if not tasks:
        return None, {}, None
    task = tasks[0]
    ids: dict[str, list[Rows]] = {}
    known: list[tuple[Array, Rows]] = []
    for split, key in _SETS.items():
        for part in meta.items(task, key):
            data = meta.items(part, "data")
            by_name = {
                _text(item.get("name")) or ("seeds", "labels")[min(at, 1)]: item for at, item in enumerate(data)
            }
            seeds_item = by_name.get("seeds") or by_name.get("seed_nodes")
            if seeds_item is None:
                raise meta.wrong(f"'{key}' of the task has no seeds")
            file = meta.file(seeds_item)
            seeds = np.asarray(map_array(file))
            if seeds.ndim != 1 or seeds.dtype.kind not in "iu":
                raise meta.wrong(
                    f"seeds of '{key}' are {seeds.dtype} {list(seeds.shape)}; only vertex tasks are known"
                )
            seeds = seeds.astype(np.int64)
            ids.setdefault(split, []).append(array_rows(seeds, str(file)))
            if "labels" in by_name:
                known.append((seeds, _labels_of(seeds, meta.file(by_name["labels"]))))
    masks = masks_of(ids, num_vertices)
    classes = None if task.get("num_classes") is None else meta.integer(task, "num_classes", "num_classes")
    stated = classes if num_classes is None else num_classes
    return _labels(known, num_vertices, stated), masks, classes


def _labels_of(seeds: Array, file: Path) -> Rows:
    labels = np.asarray(map_array(file))
    if labels.ndim == 0 or len(labels) != len(seeds):
        raise DatasetError(
            f"labels and seeds differ in number: labels {list(labels.shape)}, {len(seeds)} seeds (in {file})",
            hint="Provide one label for each seed.",
        )
    return as_labels(array_rows(labels, str(file)))


def _labels(known: list[tuple[Array, Rows]], num_vertices: int, num_classes: int | None) -> Rows | None:
    """Labels of all vertices: those of the seeds, and for any other vertex -1 or a row of zeros."""
    if not known:
        return None
    first = known[0][1]
    row_bytes = np.dtype(first.store_as).itemsize * max(1, math.prod(first.row_shape))
    require_memory(
        num_vertices * row_bytes,
        where=f"labels of {num_vertices} vertices",
        hint="Check the number of vertices that metadata.yaml states.",
    )
    whole = np.full((num_vertices, *first.row_shape), 0 if first.row_shape else -1, dtype=first.store_as)
    for seeds, labels in known:
        if labels.row_shape != first.row_shape:
            raise DatasetError(
                f"labels of the sets differ in form: rows have shape {list(labels.row_shape)}, but those of "
                f"{first.file} {list(first.row_shape)} (in {labels.file})",
                hint="Give the labels of all sets the same number of columns.",
            )
        for chunk in labels.chunks():
            # Labels are checked here, where the error can still name the file and the row.
            where = numbered(labels.file, "row", chunk.first_row)
            check_labels(chunk.rows, num_classes, where=where, error=DatasetError)
            whole[seeds[chunk.first_row : chunk.first_row + len(chunk.rows)]] = chunk.rows
    return array_rows(whole, "labels of the sets", first.store_as)
