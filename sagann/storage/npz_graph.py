"""Graphs in one ``.npz`` file, with an optional description ``NAME.json`` beside it.

The arrays are those of a common exchange format: ``edge_index`` [2, E]; features dense (``features``) or CSR
(``features_indptr``, ``features_indices``, ``features_data``, ``features_shape``); ``labels`` [N] or [N, C]; ``targets`` [N] or [N, T];
``train_mask``, ``val_mask``, ``test_mask``; ``edge_type`` [E]; ``edge_weight`` [E]; ``graph_ptr`` [G + 1], and of whole graphs
``graph_labels`` [G] or [G, C], ``graph_targets`` [G] or [G, T], ``graph_train_mask``, ``graph_val_mask``, ``graph_test_mask``.
Weights, targets and the values of CSR features become float32; dense features keep a floating-point dtype.
Other arrays are left out (:func:`arrays_left_out`).

The description says whether the graph is directed and how its edges are stored. If an undirected graph stores each edge
once, the reverse edges are added. Without a description, edges are taken as they are.

An import streams the arrays. Offsets are read whole into memory, and so are arrays of rows in Fortran order, because
their rows are not contiguous. An ``edge_index`` in Fortran order streams too.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sagann.errors import DatasetError, InputError, printable
from sagann.graph import SPLIT_NAMES, Graph
from sagann.graph.checks import check_offsets, wrong_form
from sagann.ranges import RANGES
from sagann.storage.edge_source import EdgeChunk, JoinedEdges
from sagann.storage.import_source import CsrRows, ImportOptions, ImportSource
from sagann.storage.importer import import_dataset
from sagann.storage.json_fields import as_flag, as_integer, as_mapping, as_text, as_texts
from sagann.storage.npz import NpzArchive
from sagann.storage.read_source import graph_of
from sagann.storage.row_source import Array, RowChunk, RowSource, feature_dtype, label_rows, target_rows

_FEATURE_PARTS = ("features_indptr", "features_indices", "features_data", "features_shape")
_READ = {
    "edge_index",
    "edge_split",
    "edge_type",
    "edge_weight",
    "features",
    *_FEATURE_PARTS,
    "graph_ptr",
    *(f"{of}{answers}" for of in ("", "graph_") for answers in ("labels", "targets")),
    *(f"{of}{split}_mask" for of in ("", "graph_") for split in SPLIT_NAMES),
}
"The arrays that are read, where they are there."
_CHUNK_EDGES = 2**20
_KINDS = {"b": "booleans", "iu": "integers", "fiub": "numbers"}


def read_npz(path: str | os.PathLike[str]) -> Graph:
    """Read a graph from an ``.npz`` file into memory, and check every value.

    Args:
        path: the archive; ``NAME.json`` beside it is read where it exists.
    Returns:
        the graph; sparse features as ``torch.sparse_csr``.
    Raises:
        DatasetError: the archive is missing, damaged, pickled, or not a graph.
        InputError: a value is not valid in a graph.
    Example:
        >>> import tempfile, numpy as np
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     np.savez(folder + "/path.npz", edge_index=np.array([[0, 1], [1, 2]]), labels=np.array([0, 1, 1]))
        ...     read_npz(folder + "/path.npz")
        Graph(num_vertices=3, num_edges=2, num_features=0, num_classes=2)
    """
    with NpzArchive(path) as archive:
        return graph_of(_source(archive))


def import_npz(
    source: str | os.PathLike[str], out: str | os.PathLike[str], *, options: ImportOptions | None = None
) -> None:
    """Import a graph from an ``.npz`` file, in bounded memory.

    The dataset has the graph that :func:`read_npz` reads, and the names of classes and edge types. If the description says
    that each undirected edge is stored once, the graph is symmetrised, whatever ``options`` say.

    Args:
        source: the archive; ``NAME.json`` beside it is read where it exists.
        out: dataset folder to make.
        options: symmetrise, memory, and so on.
    Raises:
        DatasetError: the archive is missing, damaged, pickled, not a graph, or has a wrong value; the message names file, array and
            row.
    """
    with NpzArchive(source) as archive:
        import_dataset(_source(archive), out, options or ImportOptions())


def arrays_left_out(source: str | os.PathLike[str]) -> list[str]:
    """The arrays of an archive that an import does not read, each with its type and shape.

    Raises:
        DatasetError: the archive is missing or damaged.
    """
    with NpzArchive(source) as archive:
        others = [(name, member) for name, member in sorted(archive.members.items()) if name not in _READ]
        return [f"{printable(name):.80} ({member.dtype!s:.40} {list(member.shape)})" for name, member in others]


def _source(archive: NpzArchive) -> ImportSource:
    _refuse_foreign(archive)
    members = archive.members
    data: dict[str, RowSource] = {}
    if "edge_weight" in members:
        data["weight"] = npz_rows(archive, "edge_weight", "float32", ndim=1, kinds="fiub")
    for name in ("type", "split"):
        if f"edge_{name}" in members:
            data[name] = npz_rows(archive, f"edge_{name}", "int32", ndim=1, kinds="iu")
    answers: dict[str, Any] = {}
    for of in ("", "graph_"):
        read = {f"{of}labels": npz_labels, f"{of}targets": _targets}
        answers |= {name: rows_of(archive, name) for name, rows_of in read.items() if name in members}
        masks = {split: f"{of}{split}_mask" for split in SPLIT_NAMES}
        answers[f"{of}splits"] = {
            split: npz_rows(archive, name, "bool", ndim=1, kinds="b")
            for split, name in masks.items()
            if name in members
        }
    return ImportSource(
        description=f"archive {archive.path.name}",
        edges=npz_edges(archive, data),
        features=_features(archive),
        graph_ptr=_vector(archive, "graph_ptr") if "graph_ptr" in members else None,
        **answers,
        **describe_npz(archive.path),
    )


def describe_npz(path: Path) -> dict[str, Any]:
    """Fields of an ImportSource from the description beside an archive; without a description, only the name."""
    described = path.with_suffix(".json")
    if not described.exists():
        return {"name": path.stem}
    try:
        body = as_mapping(json.loads(described.read_bytes()))
        directed = as_flag(body.get("directed", True))
        class_names, edge_type_names = (as_texts(body.get(f"{kind}_names", [])) for kind in ("class", "edge_type"))
        return {
            "name": as_text(body.get("name", path.stem)),
            "undirected_once": not directed and "both" not in as_text(body.get("edges_stored", "both directions")),
            # The number of names, unless a count is stated beside them.
            "num_classes": _count(body, "num_classes", class_names),
            "num_edge_types": _count(body, "num_edge_types", edge_type_names),
            "num_graph_classes": _count(body, "num_graph_classes", ()),
            "num_vertices": as_integer(body["num_nodes"], "num_vertices") if "num_nodes" in body else None,
            "class_names": class_names,
            "edge_type_names": edge_type_names,
            "graph_names": as_texts(body.get("graph_names", [])),
        }
    except (OSError, ValueError, TypeError) as error:
        raise DatasetError(
            "description of an archive cannot be used",
            value=str(error),
            where=str(described),
            fix="Correct the file, or remove it to take the archive as it is.",
        ) from error


def _count(body: dict[str, Any], key: str, names: tuple[str, ...]) -> int | None:
    if key not in body:
        return len(names) or None
    value = as_integer(body[key], key)
    if names and len(names) != value:
        raise ValueError(f"{key} is {value}, but there are {len(names)} names")
    return value


@dataclass(frozen=True, kw_only=True, slots=True)
class NpzRows:
    """A row source over one array of an archive."""

    archive: NpzArchive
    "The archive, open."
    name: str
    "Name of the array."
    dtype: str
    "Name of the torch dtype to store."

    @property
    def file(self) -> str:
        """Path of the archive, and name of the array."""
        return f"{self.archive.path}, {self.name}"

    @property
    def row_shape(self) -> tuple[int, ...]:
        """Shape of one row."""
        return self.archive.members[self.name].shape[1:]

    def chunks(self) -> Iterator[RowChunk]:
        """The rows, in slabs."""
        first = 0
        # The rows of an array in Fortran order are not contiguous, so the array is read whole.
        is_fortran = self.archive.members[self.name].fortran
        for rows in iter([self.archive.read(self.name)]) if is_fortran else self.archive.chunks(self.name):
            yield RowChunk(rows=rows, first_row=first)
            first += len(rows)


def npz_rows(archive: NpzArchive, name: str, dtype: str, *, ndim: int, kinds: str) -> NpzRows:
    """Read an array of an archive by rows, to store as ``dtype``; its NumPy dtype must be one of ``kinds`` (_KINDS)."""
    member = archive.members[name]
    if len(member.shape) != ndim or member.dtype.kind not in kinds:
        raise _wrong_form(archive, name, f"{ndim} dimensions of {_KINDS[kinds]}")
    return NpzRows(archive=archive, name=name, dtype=dtype)


def npz_labels(archive: NpzArchive, name: str) -> RowSource:
    """Labels of an archive; :func:`sagann.storage.row_source.label_rows` states the forms and the errors."""
    return label_rows(NpzRows(archive=archive, name=name, dtype="int64"), archive.members[name])


def _targets(archive: NpzArchive, name: str) -> RowSource:
    return target_rows(NpzRows(archive=archive, name=name, dtype="float32"), archive.members[name])


def npz_features(archive: NpzArchive, name: str) -> RowSource:
    """Dense features of an archive, [N, F]."""
    dtype = feature_dtype(archive.members[name], f"{archive.path}, array '{name}'")
    return NpzRows(archive=archive, name=name, dtype=dtype)


def npz_edges(archive: NpzArchive, data: dict[str, RowSource]) -> JoinedEdges:
    """The edges of the array ``edge_index`` [2, E], with edge data from other arrays."""
    member = archive.members["edge_index"]
    if len(member.shape) != 2 or member.shape[0] != 2 or member.dtype.kind not in "iu":
        raise _wrong_form(archive, "edge_index", "integers [2, E]")
    return JoinedEdges(ends=_ends(archive), num_edges=member.shape[1], data=data)


def _ends(archive: NpzArchive) -> Iterator[EdgeChunk]:
    name, member = "edge_index", archive.members["edge_index"]
    num_edges, first = member.shape[1], 0
    pairs: Iterator[tuple[Array, Array]]
    if member.fortran:
        # In Fortran order the two ends of an edge are adjacent.
        slabs = archive.chunks(name, chunk_bytes=_CHUNK_EDGES * member.row_bytes)
        pairs = ((slab[:, 0].copy(), slab[:, 1].copy()) for slab in slabs)
    else:
        # Both rows are read as plain numbers: the sources from the start, the destinations from the middle.
        sources = archive.elements(name, 0, num_edges, _CHUNK_EDGES)
        pairs = zip(sources, archive.elements(name, num_edges, 2 * num_edges, _CHUNK_EDGES), strict=True)
    for src, dst in pairs:
        yield EdgeChunk(src=_as_ids(src), dst=_as_ids(dst), file=f"{archive.path}, {name}", first_row=first)
        first += len(src)


def _as_ids(ids: Array) -> Array:
    # Numba compiles once for each dtype and byte order; unsigned ids beyond 63 bits turn negative, and are refused.
    return ids if ids.dtype == np.int32 else ids.astype(np.int64, copy=False)


def _vector(archive: NpzArchive, name: str) -> Array:
    npz_rows(archive, name, "int64", ndim=1, kinds="iu")
    return archive.read(name).astype(np.int64)


def _features(archive: NpzArchive) -> RowSource | CsrRows | None:
    if "features" in archive.members:
        return npz_features(archive, "features")
    if "features_indptr" not in archive.members:
        return None
    indptr, shape = _vector(archive, "features_indptr"), _vector(archive, "features_shape").tolist()
    streams = []
    for part, kinds in (("features_indices", "iu"), ("features_data", "fiub")):
        npz_rows(archive, part, "float32", ndim=1, kinds=kinds)
        streams.append(archive.chunks(part, chunk_bytes=2**20 * archive.members[part].row_bytes))
    if len(shape) != 2 or shape[0] != len(indptr) - 1 or shape[1] not in RANGES["num_features"]:
        raise DatasetError(
            "offsets and shape of sparse features differ",
            value=f"features_shape is {shape}, but there are offsets for {len(indptr) - 1} rows; the number of columns is "
            f"{RANGES['num_features']}",
            where=str(archive.path),
            fix="Save the arrays in the form that docs/format.md describes.",
        )
    file = f"{archive.path}, features"
    num_entries, num_values = (archive.members[part].shape[0] for part in ("features_indices", "features_data"))
    if num_entries != num_values:
        raise DatasetError(
            "columns and values of sparse features differ in number",
            value=f"{num_entries} columns and {num_values} values",
            where=file,
            fix="Save the arrays in the form that docs/format.md describes.",
        )
    check_offsets(
        torch.from_numpy(indptr), num_entries, "offsets of sparse features", where=file, error=DatasetError
    )
    return CsrRows(indptr=indptr, num_features=shape[1], entries=zip(*streams, strict=True), file=file)


def _refuse_foreign(archive: NpzArchive) -> None:
    """Refuse an archive that is no graph."""
    found = ", ".join(sorted(archive.members)) or "nothing"
    edge_index = archive.members.get("edge_index")
    if edge_index is None or len(edge_index.shape) != 2 or edge_index.shape[0] != 2:
        raise DatasetError(
            "archive has no edges",
            value=f"no array 'edge_index' [2, E]; it holds {found}"
            if edge_index is None
            else f"edge_index has the shape {list(edge_index.shape)}, expected [2, E]",
            where=str(archive.path),
            fix="Save the edges as edge_index, first row sources, second row destinations.",
        )
    missing = [part for part in _FEATURE_PARTS if part not in archive.members]
    if 0 < len(missing) < len(_FEATURE_PARTS):
        raise DatasetError(
            "sparse features are not complete",
            value=f"missing {', '.join(missing)}",
            where=str(archive.path),
            fix="Save all four arrays, or none.",
        )


def _wrong_form(archive: NpzArchive, name: str, expected: str) -> InputError:
    where, fix = f"{archive.path}, array '{name}'", "Save it in the form that docs/format.md describes."
    return wrong_form(archive.members[name], expected, where=where, fix=fix, error=DatasetError)
