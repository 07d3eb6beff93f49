"""``.npz`` graphs streamed into dataset folders: the archive's arrays are not whole in memory.

Excepted are arrays of rows in Fortran order, whose rows do not stand together (an ``edge_index`` in that order
streams like any other), 0/1 labels, and offsets.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from sagann.errors import DatasetError
from sagann.graph import SPLIT_NAMES
from sagann.storage.edge_chunk import EdgeChunk, EdgeColumn
from sagann.storage.importer import CsrRows, ImportOptions, ImportSource, import_dataset
from sagann.storage.npz import NpzArchive
from sagann.storage.npz_graph import count_vertices, describe_npz, is_edge_index, refuse_foreign
from sagann.storage.vertex_arrays import RowChunk, RowSource
from sagann.storage.vertex_files import LabelRows, label_rows

Array = np.ndarray[Any, Any]

_CHUNK_EDGES = 2**20


def import_npz(
    source: str | os.PathLike[str], out: str | os.PathLike[str], *, options: ImportOptions | None = None
) -> None:
    """Import a graph from an ``.npz`` file (:mod:`sagann.storage.npz_graph` describes the arrays).

    Gives the graph that :func:`sagann.storage.read_npz` reads, in bounded memory, with the names of classes
    and edge types kept. An undirected graph whose description says that each edge is stored once is
    symmetrised, whatever ``options`` say.

    Args:
        source: the archive; ``NAME.json`` beside it is read where it exists.
        out: dataset folder to make.
        options: symmetrise, memory, and so on.
    Raises:
        DatasetError: the archive is missing, damaged, pickled, not a graph for vertex tasks, or a value is no
            good; names file, array and row.
    """
    options = options or ImportOptions()
    path = Path(source)
    description = describe_npz(path)
    with NpzArchive(path) as archive:
        refuse_foreign(archive)
        members = archive.members
        data = {}
        if "edge_weight" in members:
            data["weight"] = ("edge_weight", EdgeColumn(dtype="float32"))
        if "edge_type" in members:
            data["type"] = ("edge_type", EdgeColumn(dtype="int32"))
        graph_ptr = None
        if "graph_ptr" in members:
            member = members["graph_ptr"]
            if len(member.shape) != 1 or member.dtype.kind not in "iu":
                raise _wrong_form(archive, "graph_ptr", "integers [num_graphs + 1]")
            graph_ptr = archive.read("graph_ptr").astype(np.int64)
        import_dataset(
            ImportSource(
                name=description.name,
                description=f"archive {path.name}",
                edges=NpzEdges(archive=archive, edge_index="edge_index", data=data),
                features=_features(archive),
                labels=npz_labels(archive, "labels") if "labels" in members else None,
                splits={
                    name: NpzRows(archive=archive, name=f"{name}_mask", dtype="bool", kinds="b")
                    for name in SPLIT_NAMES
                    if f"{name}_mask" in members
                },
                graph_ptr=graph_ptr,
                graph_names=description.graph_names,
                class_names=description.class_names,
                edge_type_names=description.edge_type_names,
                num_vertices=count_vertices(archive, description),
                num_classes=description.num_classes,
                num_edge_types=description.num_edge_types,
            ),
            out,
            replace(options, symmetrise=options.symmetrise or description.undirected_once),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class NpzEdges:
    """Edges from an array [2, E] of an archive, with edge data from arrays [E, ...]."""

    archive: NpzArchive
    "The archive, open."
    edge_index: str
    "Name of the array with the ids."
    data: Mapping[str, tuple[str, EdgeColumn]] = field(default_factory=dict)
    "For each piece of edge data its array and form."

    @property
    def num_edges(self) -> int:
        """Number of edges."""
        return self.archive.members[self.edge_index].shape[1]

    @property
    def columns(self) -> Mapping[str, EdgeColumn]:
        """Forms of the edge data."""
        return {name: form for name, (_, form) in self.data.items()}

    def chunks(self) -> Iterator[EdgeChunk]:
        """The edges; sources and destinations are read side by side."""
        member = self.archive.members[self.edge_index]
        if not is_edge_index(self.archive, self.edge_index) or member.dtype.kind not in "iu":
            raise _wrong_form(self.archive, self.edge_index, "integers [2, E]")
        for array, form in self.data.values():
            shape, kind = self.archive.members[array].shape, self.archive.members[array].dtype.kind
            expected_kinds = "fiub" if form.dtype.startswith("float") else "iu"
            if shape != (self.num_edges, *form.row_shape) or kind not in expected_kinds:
                raise _wrong_form(self.archive, array, f"one value for each of {self.num_edges} edges")
        streams = [self._rows(array) for array, _ in self.data.values()]
        where = f"{self.archive.path}, {self.edge_index}"
        data_files = {name: f"{self.archive.path}, {array}" for name, (array, _) in self.data.items()}
        first = 0
        for src, dst in self._ends():
            data = {name: next(stream) for name, stream in zip(self.data, streams, strict=True)}
            yield EdgeChunk(
                src=_as_ids(src), dst=_as_ids(dst), data=data, file=where, data_files=data_files, first_row=first
            )
            first += len(src)

    def _ends(self) -> Iterator[tuple[Array, Array]]:
        member = self.archive.members[self.edge_index]
        if member.fortran:
            # In Fortran order the two ends of an edge stand beside each other.
            for pairs in self._stream(self.edge_index):
                yield pairs[:, 0].copy(), pairs[:, 1].copy()
            return
        # Rows are read as raw numbers: from the start for the sources, from the middle for the destinations.
        yield from zip(
            self.archive.elements(self.edge_index, 0, self.num_edges, _CHUNK_EDGES),
            self.archive.elements(self.edge_index, self.num_edges, 2 * self.num_edges, _CHUNK_EDGES),
            strict=True,
        )

    def _rows(self, name: str) -> Iterator[Array]:
        """Edge data in slabs of as many edges as the ids come in."""
        if not self.archive.members[name].fortran:
            yield from self._stream(name)
            return
        # Rows of an array in Fortran order do not stand together: read it whole.
        whole = self.archive.read(name)
        for first in range(0, len(whole), _CHUNK_EDGES):
            yield whole[first : first + _CHUNK_EDGES]

    def _stream(self, name: str) -> Iterator[Array]:
        # Rows may be of width 0; they are counted all the same.
        return self.archive.chunks(name, chunk_bytes=_CHUNK_EDGES * max(1, self.archive.members[name].row_bytes))


@dataclass(frozen=True, kw_only=True, slots=True)
class NpzRows:
    """Row source over one array of an archive."""

    archive: NpzArchive
    "The archive, open."
    name: str
    "Name of the array."
    dtype: str
    "Name of the torch dtype to store."
    kinds: str
    "Kinds of numpy dtype that are accepted."

    @property
    def row_shape(self) -> tuple[int, ...]:
        """Shape of one row."""
        return self.archive.members[self.name].shape[1:]

    def chunks(self) -> Iterator[RowChunk]:
        """The rows, in slabs."""
        member = self.archive.members[self.name]
        if member.dtype.kind not in self.kinds or not member.shape:
            raise _wrong_form(self.archive, self.name, f"one row per vertex, dtype kind {' or '.join(self.kinds)}")
        first = 0
        # Rows of an array in Fortran order do not stand together: read it whole.
        slabs = iter([self.archive.read(self.name)]) if member.fortran else self.archive.chunks(self.name)
        for rows in slabs:
            yield RowChunk(rows=rows, file=f"{self.archive.path}, {self.name}", first_row=first)
            first += len(rows)


def npz_labels(archive: NpzArchive, name: str) -> RowSource:
    """Labels of an archive: integers (or floats with NaN for unknown) [N] or [N, 1], or 0/1 [N, C]."""
    member = archive.members[name]
    if len(member.shape) == 1 or (len(member.shape) == 2 and member.shape[1] == 1):
        return LabelRows(rows=NpzRows(archive=archive, name=name, dtype="int64", kinds="iuf"))
    # 0/1 labels take a byte each and are checked as a whole.
    return label_rows(archive.read(name), f"{archive.path}, {name}")


def npz_dense(archive: NpzArchive, name: str) -> RowSource:
    """Dense features of an archive, [N, F]."""
    member = archive.members[name]
    if len(member.shape) != 2:
        raise _wrong_form(archive, name, "numbers [num_vertices, num_features]")
    keep = member.dtype.name if member.dtype.name in ("float16", "float32", "float64") else "float32"
    return NpzRows(archive=archive, name=name, dtype=keep, kinds="fiub")


def _features(archive: NpzArchive) -> RowSource | CsrRows | None:
    if "features" in archive.members:
        return npz_dense(archive, "features")
    if "features_indptr" not in archive.members:
        return None
    where = f"{archive.path}, features"
    for part, kinds in (("indptr", "iu"), ("indices", "iu"), ("shape", "iu"), ("data", "fiub")):
        member = archive.members[f"features_{part}"]
        if len(member.shape) != 1 or member.dtype.kind not in kinds:
            raise _wrong_form(archive, f"features_{part}", "a vector of numbers")
    indptr, shape = archive.read("features_indptr").astype(np.int64), archive.read("features_shape").tolist()
    num_entries = archive.members["features_indices"].shape[0]
    if len(shape) != 2 or len(indptr) == 0 or shape[0] != len(indptr) - 1 or not 0 <= shape[1] < 2**31:
        raise _wrong_form(archive, "features_shape", f"[{len(indptr) - 1}, num_features]")
    if indptr[0] != 0 or indptr[-1] != num_entries or (np.diff(indptr) < 0).any():
        raise _wrong_form(archive, "features_indptr", f"offsets that rise from 0 to {num_entries}")
    entries = zip(
        archive.chunks("features_indices", chunk_bytes=2**20 * archive.members["features_indices"].row_bytes),
        archive.chunks("features_data", chunk_bytes=2**20 * archive.members["features_data"].row_bytes),
        strict=False,
    )
    return CsrRows(indptr=indptr, num_features=shape[1], entries=entries, where=where)


def _as_ids(ids: Array) -> Array:
    # Numba compiles once for each dtype and byte order; unsigned ids beyond 63 bits turn negative, and are refused.
    return ids if ids.dtype == np.int32 else ids.astype(np.int64, copy=False)


def _wrong_form(archive: NpzArchive, name: str, expected: str) -> DatasetError:
    member = archive.members[name]
    return DatasetError(
        "array has the wrong form",
        value=f"{member.dtype} {list(member.shape)}, expected {expected}",
        where=f"{archive.path}, array '{name}'",
        fix="Save it in the form that docs/format.md describes.",
    )
