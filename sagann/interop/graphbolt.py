"""Datasets of DGL GraphBolt in their raw layout: a ``metadata.yaml`` that names CSV and ``.npy`` files.

Graphs are homogeneous, with a vertex task. Files in torch's format are refused, because reading them may run code.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from sagann.errors import DatasetError, MissingDependencyError, SagannError, first_line, shown
from sagann.free_space import require_memory
from sagann.import_config import ImportOptions
from sagann.storage.edge_list import open_array, table_edges
from sagann.storage.import_source import Edges, ImportSource, edges_of_array, with_data
from sagann.storage.importer import import_dataset
from sagann.storage.json_fields import as_integer
from sagann.storage.manifest import SAFE_NAME
from sagann.storage.regular_file import reading
from sagann.storage.rows import Array, Rows, array_rows, map_array, masks_of, open_rows, stored
from sagann.storage.tables import CsvTable

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
    options = options or ImportOptions()
    try:
        import yaml
    except ImportError as error:
        raise MissingDependencyError("yaml", extra="graphbolt", feature="import of GraphBolt datasets") from error
    with reading(path, hint="Correct the file; it must be YAML."), path.open("rb") as file:
        body = yaml.safe_load(file)
    try:
        found = _source(body, path.parent, options.num_classes)
    except SagannError:
        raise
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        problem = f"{error} is missing" if isinstance(error, KeyError) else first_line(error)
        raise DatasetError(
            f"metadata.yaml cannot be used: {problem} (in {path})",
            hint="Follow GraphBolt's layout for on-disk datasets in the raw form, of a graph with vertices and edges of one kind each.",
        ) from error
    import_dataset(found, out, options)


def _source(body: Mapping[str, Any], folder: Path, num_classes: int | None) -> ImportSource:
    """What is imported. A body of another form fails in some way."""
    (nodes, edges), features = (body["graph"][part] for part in ("nodes", "edges")), body.get("feature_data") or []
    types = [item["type"] for item in (*nodes, *edges) if item.get("type") is not None]
    if len(nodes) != 1 or len(edges) != 1 or types:
        kinds = ", ".join(map(_text, types)) or f"{len(nodes)} kinds of vertices, and {len(edges)} of edges"
        raise ValueError(f"a heterogeneous graph, with {kinds}")
    num_vertices = as_integer(nodes[0]["num"], "num_vertices", of="num")
    answers, stated = _task(body.get("tasks"), folder, num_vertices, num_classes)
    return ImportSource(
        name=_text(body.get("dataset_name")) or folder.name,
        description=f"GraphBolt folder {folder.name}",
        edges=_edges(edges[0], features, folder),
        arrays={**_features(features, folder), **answers},
        num_vertices=num_vertices,
        stated={"num_classes": stated},
    )


def _file(item: Mapping[str, Any], folder: Path, kinds: tuple[str, ...] = ("numpy",)) -> Path:
    if item["format"] not in kinds:
        raise DatasetError(
            f"file format not supported: format {shown(item['format'])} of {shown(item['path'])}, expected "
            f"{' or '.join(kinds)} (in {folder / 'metadata.yaml'})",
            hint="Save the array with numpy.save; files in torch's format may run code, so they are not opened.",
        )
    return folder / item["path"]


def _text(value: object) -> str:
    """A value as text; empty for a value that is missing."""
    return value if isinstance(value, str) else "" if value is None else shown(value)


def _edges(item: Mapping[str, Any], features: list[Mapping[str, Any]], folder: Path) -> Edges:
    data: dict[str, Rows] = {}
    for feature in features:
        if feature["domain"] == "edge":
            file, name = _file(feature, folder), _text(feature["name"])
            if not SAFE_NAME.fullmatch(name):
                raise ValueError(
                    f"edge feature {shown(name)} has a name not made of letters, digits and underscores"
                )
            data[name] = open_rows(file)
    path = _file(item, folder, ("csv", "numpy"))
    if path.suffix != ".npy":
        table = CsvTable(path, header=False)
        if len(table.names) < 2:
            raise ValueError(f"{path.name} has one column, expected source and destination separated by a comma")
        return with_data(table_edges(table, table.names[:2]), table.estimate_rows(), data)
    array = map_array(path)
    if array.ndim != 2 or array.shape[0] != 2 or array.dtype.kind not in "iu":
        raise ValueError(f"{path.name} is {array.dtype} {list(array.shape)}, expected integers [2, num_edges]")
    return with_data(edges_of_array(array, str(path)), array.shape[1], data)


def _features(features: list[Mapping[str, Any]], folder: Path) -> dict[str, Rows]:
    items = [item for item in features if item["domain"] == "node"]
    if not items:
        return {}
    named = [item for item in items if item["name"] == "feat"] or (items if len(items) == 1 else [])
    if not named:
        names = ", ".join(_text(item["name"]) for item in items)
        raise ValueError(f"several vertex features and none named 'feat': {names}")
    return {"features": open_array(_file(named[0], folder), "features")}


def _task(
    tasks: list[Mapping[str, Any]] | None, folder: Path, num_vertices: int, num_classes: int | None
) -> tuple[dict[str, Rows], int | None]:
    """Labels of all vertices and masks of the splits, and the number of classes that the first task states."""
    if not tasks:
        return {}, None
    task = tasks[0]
    stated = None if task.get("num_classes") is None else as_integer(task["num_classes"], "num_classes")
    counts = {"num_classes": stated if num_classes is None else num_classes}
    ids: dict[str, list[Rows]] = {}
    known: list[tuple[Array, Rows]] = []
    for split, key in _SETS.items():
        for part in task.get(key) or []:
            data = enumerate(part["data"])
            by_name = {_text(item.get("name")) or ("seeds", "labels")[min(at, 1)]: item for at, item in data}
            file = _file(by_name["seeds" if "seeds" in by_name else "seed_nodes"], folder)
            seeds = np.asarray(map_array(file))
            if seeds.ndim != 1 or seeds.dtype.kind not in "iu":
                raise ValueError(
                    f"seeds of '{key}' are {seeds.dtype} {list(seeds.shape)}; only vertex tasks are known"
                )
            seeds = seeds.astype(np.int64)
            ids.setdefault(split, []).append(array_rows(seeds, str(file)))
            if "labels" in by_name:
                labels = open_rows(_file(by_name["labels"], folder))
                if labels.shape[:1] != seeds.shape:
                    raise DatasetError(
                        f"labels and seeds differ in number: labels {list(labels.shape)}, {len(seeds)} seeds (in {labels.file})",
                        hint="Provide one label for each seed.",
                    )
                known.append((seeds, stored("labels", labels, counts)))
    answers = masks_of(ids, num_vertices)
    if known:
        answers["labels"] = _labels(known, num_vertices)
    return answers, stated


def _labels(known: list[tuple[Array, Rows]], num_vertices: int) -> Rows:
    """Labels of all vertices: those of the seeds, and for any other vertex -1 or a row of zeros."""
    first = known[0][1]
    require_memory(
        num_vertices * math.prod(first.row_shape) * np.dtype(first.store_as).itemsize,
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
        # Values are checked here, where the error can still name the file and the row.
        for chunk in labels.chunks():
            whole[seeds[chunk.first_row : chunk.first_row + len(chunk.rows)]] = chunk.rows
    return array_rows(whole, "labels of the sets")
