"""Graphs in one ``.npz`` file, with an optional description ``NAME.json`` beside it.

The arrays are those of a common exchange format: ``edge_index`` [2, E]; features dense (``features``) or CSR
(``features_indptr``, ``features_indices``, ``features_data``, ``features_shape``); ``labels`` [N] or [N, C];
``train_mask``, ``val_mask``, ``test_mask``; ``edge_type`` [E]; ``edge_weight`` [E]; ``graph_ptr`` [G + 1].
Weights and the values of CSR features become float32; dense features keep the floats that they are.
Other arrays are left alone.

The description says whether the graph is directed and how its edges are stored. An undirected graph that
stores each edge once gets both directions here, each once; without a description edges are taken as they are.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sagann.errors import DatasetError, InputError
from sagann.graph import SPLIT_NAMES, Graph, Topology, validate_graph
from sagann.storage.csr_features import csr_features
from sagann.storage.npz import NpzArchive
from sagann.storage.regular_file import require_file

_FEATURE_PARTS = ("features_indptr", "features_indices", "features_data", "features_shape")


@dataclass(frozen=True, kw_only=True, slots=True)
class NpzDescription:
    """What the description beside an archive says; the defaults hold where there is none."""

    name: str
    "Name of the graph; default the file's."
    undirected_once: bool = False
    "The graph is undirected and stores each edge once."
    num_classes: int | None = None
    "Number of classes, that of their names where only those are given; None when not said."
    num_edge_types: int | None = None
    "Number of edge types, likewise; None when not said."
    num_vertices: int | None = None
    "Number of vertices; None when not said."
    class_names: tuple[str, ...] = ()
    "Names of the classes."
    edge_type_names: tuple[str, ...] = ()
    "Names of the edge types."
    graph_names: tuple[str, ...] = ()
    "Names of the graphs."


def read_npz(path: str | os.PathLike[str]) -> Graph:
    """Read a graph from an ``.npz`` file into memory, and check every value.

    Args:
        path: the archive; ``NAME.json`` beside it is read where it exists.
    Returns:
        the graph; sparse features as ``torch.sparse_csr``.
    Raises:
        DatasetError: the archive is missing, damaged, pickled, or not a graph for vertex tasks.
        InputError: the arrays do not make a graph to train on.
    Example:
        >>> import tempfile, numpy as np
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     np.savez(folder + "/path.npz", edge_index=np.array([[0, 1], [1, 2]]), labels=np.array([0, 1, 1]))
        ...     read_npz(folder + "/path.npz")
        Graph(num_vertices=3, num_edges=2, num_features=0, num_classes=2)
    """
    path = Path(path)
    description = describe_npz(path)
    with NpzArchive(path) as archive:
        refuse_foreign(archive)
        edge_index = _integers(archive, "edge_index", ndim=2)
        features = _features(archive)
        labels = _labels(archive)
        edge_data = {}
        if "edge_type" in archive.members:
            edge_data["type"] = _integers(archive, "edge_type", ndim=1)
        if "edge_weight" in archive.members:
            edge_data["weight"] = _float32(archive, "edge_weight")
        splits = {name: _mask(archive, f"{name}_mask") for name in SPLIT_NAMES if f"{name}_mask" in archive.members}
        graph_ptr = _integers(archive, "graph_ptr", ndim=1).long() if "graph_ptr" in archive.members else None

    num_vertices = count_vertices(archive, description)
    if num_vertices is None:
        num_vertices = int(edge_index.max()) + 1 if edge_index.numel() else 0
    try:
        topology = Topology.from_coo(
            src=edge_index[0], dst=edge_index[1], num_src=num_vertices, edge_data=edge_data
        )
        graph = Graph(
            topology=topology,
            features=features,
            labels=labels,
            num_classes=count_classes(labels) if description.num_classes is None else description.num_classes,
            splits=splits,
            graph_ptr=graph_ptr,
            graph_names=description.graph_names,
            num_edge_types=_count_types(edge_data)
            if description.num_edge_types is None
            else description.num_edge_types,
            name=description.name,
        )
        if description.undirected_once:
            # Imported here: transformations are needed for some files only.
            from sagann.graph.transform import symmetrise

            graph = symmetrise(graph)
        validate_graph(graph)
    except InputError as error:
        raise DatasetError(error.what, value=error.value, where=f"{path}, {error.where}", fix=error.fix) from error
    return graph


def describe_npz(path: Path) -> NpzDescription:
    """Read the description beside an archive; defaults where there is none.

    Raises:
        DatasetError: the description is not JSON, a field has the wrong type, or names and counts differ.
    """
    described = path.with_suffix(".json")
    require_file(described)
    if not described.exists():
        return NpzDescription(name=path.stem)
    try:
        body = json.loads(described.read_bytes())
        if not isinstance(body, dict):
            raise TypeError("it is not an object")
        directed = body.get("directed", True)
        if not isinstance(directed, bool):
            raise TypeError(f"directed is {directed!r:.40}, expected true or false")
        class_names, edge_type_names = _names(body, "class_names"), _names(body, "edge_type_names")
        return NpzDescription(
            name=_text(body, "name", path.stem),
            undirected_once=not directed and "both" not in _text(body, "edges_stored", "both directions"),
            num_classes=_count(body, "num_classes", class_names),
            num_edge_types=_count(body, "num_edge_types", edge_type_names),
            num_vertices=_count(body, "num_nodes"),
            class_names=class_names,
            edge_type_names=edge_type_names,
            graph_names=_names(body, "graph_names"),
        )
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise DatasetError(
            "description of an archive cannot be used",
            value=str(error),
            where=str(described),
            fix="Mend the file, or remove it to take the archive as it is.",
        ) from error


def is_edge_index(archive: NpzArchive, name: str) -> bool:
    """Whether an array has the shape [2, E]."""
    shape = archive.members[name].shape
    return len(shape) == 2 and shape[0] == 2


def refuse_foreign(archive: NpzArchive) -> None:
    """Refuse an archive that is no graph with a vertex task.

    Raises:
        DatasetError: ``edge_index`` is missing or not [2, E], parts of the features are missing, or the
            archive has targets for whole graphs.
    """
    found = ", ".join(sorted(archive.members)) or "nothing"
    if "edge_index" not in archive.members or not is_edge_index(archive, "edge_index"):
        raise DatasetError(
            "archive has no edges",
            value=f"no array 'edge_index' [2, E]; it holds {found}",
            where=str(archive.path),
            fix="Save the edges as edge_index, first row sources, second row destinations.",
        )
    if "graph_targets" in archive.members:
        raise DatasetError(
            "task not supported",
            value="'graph_targets' asks for a value per graph, sagann trains vertex tasks",
            where=str(archive.path),
            fix="Use a dataset with vertex labels.",
        )
    missing = [part for part in _FEATURE_PARTS if part not in archive.members]
    if 0 < len(missing) < len(_FEATURE_PARTS):
        raise DatasetError(
            "sparse features are not complete",
            value=f"missing {', '.join(missing)}",
            where=str(archive.path),
            fix="Save all four arrays, or none.",
        )


def count_vertices(archive: NpzArchive, description: NpzDescription) -> int | None:
    """Number of vertices as the description or the arrays' shapes tell it; None when only the edges do."""
    if description.num_vertices is not None:
        return description.num_vertices
    members = archive.members
    for name in ("labels", "features", "train_mask", "val_mask", "test_mask"):
        if name in members and members[name].shape:
            return members[name].shape[0]
    return members["features_indptr"].shape[0] - 1 if "features_indptr" in members else None


def count_classes(labels: Tensor | None) -> int:
    """Number of classes that labels show: columns, or the highest label plus one."""
    if labels is None:
        return 0
    if labels.ndim == 2:
        return labels.shape[1]
    return max(0, int(labels.max()) + 1) if len(labels) else 0


def _features(archive: NpzArchive) -> Tensor | None:
    if "features" in archive.members:
        return _floats(archive, "features")
    if "features_indptr" not in archive.members:
        return None
    shape = _integers(archive, "features_shape", ndim=1).tolist()
    indptr = _integers(archive, "features_indptr", ndim=1)
    if len(shape) != 2 or shape[0] != len(indptr) - 1 or shape[1] < 0:
        raise _wrong(archive, "features_shape", f"{shape}, but there are offsets for {len(indptr) - 1} rows")
    return csr_features(
        indptr,
        _integers(archive, "features_indices", ndim=1),
        _float32(archive, "features_data"),
        num_features=shape[1],
        where=f"{archive.path}, features",
    )


def _labels(archive: NpzArchive) -> Tensor | None:
    if "labels" not in archive.members:
        return None
    shape = archive.members["labels"].shape
    if len(shape) == 1 or (len(shape) == 2 and shape[1] == 1):
        # Imported here: it brings the reader of tables.
        from sagann.storage.vertex_files import label_rows

        rows = label_rows(_read(archive, "labels", ndim=len(shape), kinds="iuf"), f"{archive.path}, labels")
        return torch.from_numpy(np.concatenate([np.empty(0, np.int64), *(chunk.rows for chunk in rows.chunks())]))
    array = _read(archive, "labels", ndim=2, kinds="biu")
    if array.size and (array.min() < 0 or array.max() > 1):
        raise _wrong(archive, "labels", f"values from {array.min()} to {array.max()}, expected 0 and 1")
    return torch.from_numpy(array.astype(np.uint8))


def _mask(archive: NpzArchive, name: str) -> Tensor:
    return torch.from_numpy(_read(archive, name, ndim=1, kinds="b"))


def _integers(archive: NpzArchive, name: str, *, ndim: int) -> Tensor:
    array = _read(archive, name, ndim=ndim, kinds="iu")
    return torch.from_numpy(array.astype(np.int32 if array.dtype == np.int32 else np.int64, copy=False))


def _float32(archive: NpzArchive, name: str) -> Tensor:
    array = _read(archive, name, ndim=1, kinds="biuf")
    with np.errstate(over="ignore"):
        values = array.astype(np.float32)
    beyond = np.isinf(values) & np.isfinite(array)
    if beyond.any():
        at = int(beyond.argmax())
        raise _wrong(archive, name, f"{array[at]} in row {at} is not finite in float32")
    return torch.from_numpy(values)


def _floats(archive: NpzArchive, name: str) -> Tensor:
    array = _read(archive, name, ndim=2, kinds="biuf")
    keep = array.dtype in (np.float16, np.float32, np.float64)
    native = array.dtype.newbyteorder("=") if keep else np.dtype(np.float32)
    return torch.from_numpy(array.astype(native, copy=False))


def _read(archive: NpzArchive, name: str, *, ndim: int, kinds: str) -> np.ndarray[Any, Any]:
    member = archive.members[name]
    if len(member.shape) != ndim or member.dtype.kind not in kinds:
        raise _wrong(
            archive, name, f"{member.dtype} {list(member.shape)}, expected {ndim} dimensions of {_KINDS[kinds]}"
        )
    return archive.read(name)


_KINDS = {"b": "booleans", "iu": "integers", "iuf": "integers", "biu": "integers 0 and 1", "biuf": "numbers"}


def _wrong(archive: NpzArchive, name: str, value: str) -> DatasetError:
    return DatasetError(
        "array has the wrong form",
        value=value,
        where=f"{archive.path}, array '{name}'",
        fix="Save it in the form that docs/format.md describes.",
    )


def _count_types(edge_data: dict[str, Tensor]) -> int:
    types = edge_data.get("type")
    return 0 if types is None or not len(types) else int(types.max()) + 1


def _count(body: dict[str, Any], key: str, names: tuple[str, ...] = ()) -> int | None:
    if key not in body:
        return len(names) if names else None
    value = body[key]
    if type(value) is not int or not 0 <= value < 2**56:
        raise TypeError(f"{key} is {value!r:.40}, expected a count")
    if names and len(names) != value:
        raise ValueError(f"{key} is {value}, but there are {len(names)} names")
    return value


def _text(body: dict[str, Any], key: str, default: str) -> str:
    value = body.get(key, default)
    if not isinstance(value, str):
        raise TypeError(f"{key} is {value!r:.40}, expected text")
    return value


def _names(body: dict[str, Any], key: str) -> tuple[str, ...]:
    value = body.get(key, [])
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise TypeError(f"{key} is not a list of names")
    return tuple(value)
