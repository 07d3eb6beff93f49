"""What all imports share: read vertex arrays and edges from a source, check them, and make a dataset or a graph.

An importer fills an :class:`sagann.storage.import_source.ImportSource`. :func:`import_dataset` streams the source into a folder in
bounded memory; :func:`graph_of` reads the source into memory. So every format has the same options and
checks, and a kill leaves no half dataset.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from sagann.errors import DatasetError
from sagann.free_space import require_memory
from sagann.graph import Graph, Topology, id_dtype, symmetrise, validate_graph
from sagann.graph.checks import check_columns, check_labels, numbered, unknown_target
from sagann.graph.graph import names_of
from sagann.import_config import ImportOptions
from sagann.storage.dataset import graph_of_arrays, manifest_of, with_vertex_arrays
from sagann.storage.edge_source import Edges, checked_chunk
from sagann.storage.folder import new_folder
from sagann.storage.import_source import READING, WRITING, CsrRows, ImportSource, naming
from sagann.storage.manifest import EdgeTreatment, write_manifest
from sagann.storage.npy import NpyWriter, dtype_name, map_npy
from sagann.storage.rows import Array, RowChunk, Rows, as_stored, in_order_of_ids

if TYPE_CHECKING:
    from sagann.storage.edge_spool import EdgeSpool

# Ids that are larger than so many times the number of edges (plus 2^20) are refused: they are probably hashes.
_MOST_VERTICES_PER_EDGE = 64
# Fields with names of what another field counts.
_COUNTS = {"feature_names": "num_features", "class_names": "num_classes", "edge_type_names": "num_edge_types"}
# Per vertex of a graph in memory: the offset of its in-edges, and their number while edges are sorted.
_VERTEX_BYTES = 16


def import_dataset(source: ImportSource, out: str | os.PathLike[str], options: ImportOptions) -> None:
    """Stream a source into a dataset folder, in bounded memory and atomically.

    Raises:
        DatasetError: a value of the source is wrong, or the disk is too small. The message about a value names its file
            and row; if only the whole graph shows the error, the message names the vertex or edge. No file is left
            behind.
    """
    # Imported here, so that a caller that only opens a dataset does not wait until Numba compiles or loads its kernels.
    from sagann.storage.external_sort import ExternalSort

    mirrors = options.symmetrise or source.undirected_once
    with new_folder(out, overwrite=options.overwrite) as folder:

        def open_array(name: str, dtype: str, row_shape: tuple[int, ...] = ()) -> NpyWriter:
            return NpyWriter(folder / f"{name}.npy", dtype, row_shape)

        vertices = _VertexArrays(source, options, open_array)
        spool, num_vertices = _spool(folder, source.edges, vertices, options, mirrors=mirrors)
        edges = ExternalSort(
            spool,
            num_vertices=num_vertices,
            merge=options.coalesce,
            memory_bytes=options.memory_bytes,
            folder=folder,
            open_array=open_array,
            progress=options.progress,
        ).run()
        arrays = {**vertices.arrays, **edges}
        stated = {
            "name": options.name or source.name,
            "num_classes": vertices.num_classes,
            "num_graph_classes": vertices.num_graph_classes,
            "num_edge_types": count_types(source, spool.largest_type),
        }
        tensors = {name: map_npy(folder / f"{name}.npy", spec) for name, spec in arrays.items()}
        treatment = EdgeTreatment(
            symmetrised=mirrors,
            coalesced=options.coalesce or mirrors,
            self_loops_dropped=options.drop_self_loops,
        )
        with naming(source):
            graph = graph_of_arrays(tensors, vertices.num_features, names_of(source), stated)
            for names, count in _COUNTS.items():
                # A graph drops names that do not fit.
                if getattr(graph, names) != getattr(source, names):
                    raise DatasetError(
                        f"names do not fit: {len(getattr(source, names))} {names}, but {count} is "
                        f"{getattr(graph, count)} (in graph '{graph.name}')",
                        hint="Give as many names, or none.",
                    )
            manifest = manifest_of(graph, arrays)
            write_manifest(folder, replace(manifest, edges=treatment, source=source.description))
            validate_graph(graph)


def graph_of(source: ImportSource) -> Graph:
    """Read a source into memory, and check every value; the errors are those of an import."""
    vertices = _VertexArrays(source, ImportOptions(), _MemoryArray)
    columns = source.edges.columns
    src, dst = _MemoryArray("src", "int64"), _MemoryArray("dst", "int64")
    data = {name: _MemoryArray(name, form.dtype, form.row_shape) for name, form in columns.items()}
    largest_id = largest_type = -1
    for found in source.edges.chunks():
        chunk = checked_chunk(found, vertices.num_vertices, columns, vertices.rows_of)
        src.append(chunk.src)
        dst.append(chunk.dst)
        largest_id = max(largest_id, chunk.src.max(initial=-1), chunk.dst.max(initial=-1))
        for name, rows in chunk.data.items():
            data[name].append(rows)
        if "type" in chunk.data:
            largest_type = max(largest_type, chunk.data["type"].max(initial=-1))
    num_vertices = vertices.num_vertices
    if num_vertices is None:
        num_vertices = count_by_ids(int(largest_id), src.num_rows, source.description)
    num_edge_types = count_types(source, int(largest_type))
    require_memory(
        num_vertices * _VERTEX_BYTES,
        where=f"{source.description}, {num_vertices} vertices",
        hint="Check the number of vertices, or import the source: 'sagann data import' needs little memory.",
    )
    with naming(source):
        topology = Topology.from_coo(
            src=src.finish(),
            dst=dst.finish(),
            num_src=num_vertices,
            edge_data={name: rows.finish() for name, rows in data.items()},
        )
        graph = Graph(
            topology=topology,
            num_classes=vertices.num_classes,
            num_graph_classes=vertices.num_graph_classes,
            num_edge_types=num_edge_types,
            name=source.name,
        )
        graph = with_vertex_arrays(graph, vertices.arrays, vertices.num_features, names_of(source))
        if source.undirected_once:
            graph = symmetrise(graph)
        validate_graph(graph)
    return graph


class _VertexArrays:
    """Write the arrays of vertices and of graphs, and find the numbers of vertices, features, classes and targets.

    ``open_array`` makes the writer of an array from its name, dtype and row shape: an NpyWriter, or an object with the same
    methods. ``rows_of`` names the file whose rows were counted for the number of vertices, if that is not stated. ``arrays`` holds the
    result of each writer's ``finish``, by the name of the array.
    """

    def __init__(self, source: ImportSource, options: ImportOptions, open_array: Callable[..., Any]) -> None:
        self._options = options
        self._open = open_array
        self.rows_of = ""
        self.num_vertices = options.num_vertices if options.num_vertices is not None else source.num_vertices
        num_classes = options.num_classes if options.num_classes is not None else source.num_classes
        self._num_classes = {"labels": num_classes, "graph_labels": source.num_graph_classes}
        self._num_graphs = None if source.graph_ptr is None else len(source.graph_ptr) - 1
        self.num_features = 0
        self.arrays: dict[str, Any] = {}
        self._largest_label = {"labels": -1, "graph_labels": -1}

        features = source.features
        if isinstance(features, CsrRows):
            self.num_features = features.num_features
            self._write_csr(features)
        elif features is not None:
            self.num_features = features.row_shape[0]
            self._write_rows("features", features)
        self.num_classes = self._write_answers("", source.labels, source.targets, source.splits)
        if source.graph_ptr is not None:
            with self._open("graph_ptr", "int64") as writer:
                writer.append(source.graph_ptr)
                self.arrays["graph_ptr"] = writer.finish()
        self.num_graph_classes = self._write_answers(
            "graph_", source.graph_labels, source.graph_targets, source.graph_splits
        )

    def _write_answers(
        self, prefix: str, labels: Rows | None, targets: Rows | None, splits: Mapping[str, Rows]
    ) -> int:
        """Write the answers of vertices, or with the prefix 'graph_' those of graphs; the number of classes."""
        name = f"{prefix}labels"
        arrays = {name: labels, f"{prefix}targets": targets}
        arrays |= {f"{prefix}split_{split}": mask for split, mask in splits.items()}
        for array, rows in arrays.items():
            if rows is not None:
                self._write_rows(array, rows)
        stated = self._num_classes[name]
        found = labels.row_shape[0] if labels is not None and labels.row_shape else self._largest_label[name] + 1
        return found if stated is None else stated

    def _write_rows(self, name: str, source: Rows) -> None:
        unit, units, total = "vertex", "vertices", self.num_vertices
        if name.startswith("graph_"):
            unit, units, total = "graph", "graphs", self._num_graphs
        with self._open(name, source.store_as, source.row_shape) as writer:
            for rows in in_order_of_ids(self._checked(name, source, unit), source.file):
                writer.append(rows)
                self._options.progress(writer.num_rows, total, units, f"{WRITING}{name}")
            self.arrays[name] = writer.finish()
        if unit == "vertex":
            self._agree(writer.num_rows, source.file)
        else:
            self._agree_on_graphs(writer.num_rows, source.file)

    def _checked(self, name: str, source: Rows, unit: str) -> Iterator[RowChunk]:
        for chunk in source.chunks():
            rows, where = chunk.rows, numbered(source.file, "row", chunk.first_row)
            if name == "features":
                rows = as_stored(rows, source.store_as, "feature", where=where)
            elif name in ("targets", "graph_targets"):
                rows = as_stored(rows, source.store_as, "target", where=where, hint=unknown_target(unit))
            elif name in self._largest_label:
                check_labels(rows, self._num_classes[name], where=where, error=DatasetError)
                if rows.ndim == 1:
                    self._largest_label[name] = max(self._largest_label[name], int(rows.max(initial=-1)))
            yield replace(chunk, rows=rows)

    def _write_csr(self, features: CsrRows) -> None:
        num_entries = int(features.indptr[-1])
        index_dtype = dtype_name(id_dtype(max(num_entries, features.num_features)))
        with ExitStack() as stack:
            indptr, indices, values = (
                stack.enter_context(self._open(f"features_{part}", dtype))
                for part, dtype in (("indptr", index_dtype), ("indices", index_dtype), ("values", "float32"))
            )
            indptr.append(features.indptr)
            for columns, entries in features.entries:
                where = numbered(features.file, "entry", indices.num_rows)
                check_columns(columns, features.num_features, where=where, error=DatasetError)
                values.append(as_stored(entries, "float32", "feature", where=where))
                indices.append(columns)
                # The rows whose last entry has been written.
                num_rows = int(np.searchsorted(features.indptr, indices.num_rows, side="right")) - 1
                self._options.progress(num_rows, len(features.indptr) - 1, "vertices", f"{WRITING}features")
            if indices.num_rows != num_entries:
                raise DatasetError(
                    f"sparse features are not a CSR matrix: {indices.num_rows} entries, the offsets end at "
                    f"{num_entries} (in {features.file})",
                    hint="Write the file again, with one column and one value per entry.",
                )
            for part, writer in (("indptr", indptr), ("indices", indices), ("values", values)):
                self.arrays[f"features_{part}"] = writer.finish()
        self._agree(len(features.indptr) - 1, features.file)

    def _agree(self, num_rows: int, file: str) -> None:
        if self.num_vertices is None:
            self.num_vertices, self.rows_of = num_rows, file
        elif num_rows != self.num_vertices:
            raise DatasetError(
                f"number of vertices is not clear: {num_rows} rows, but {self.rows_of or 'num_vertices'} says "
                f"{self.num_vertices} (in {file})",
                hint="Provide one row for each vertex, or state the right number of vertices.",
            )

    def _agree_on_graphs(self, num_rows: int, file: str) -> None:
        if num_rows != self._num_graphs:
            says = "there is no graph_ptr" if self._num_graphs is None else f"graph_ptr says {self._num_graphs}"
            raise DatasetError(
                f"number of graphs is not clear: {num_rows} rows, but {says} (in {file})",
                hint="Provide graph_ptr [num_graphs + 1], and one row for each graph.",
            )


def _spool(
    folder: Path, source: Edges, vertices: _VertexArrays, options: ImportOptions, *, mirrors: bool
) -> tuple[EdgeSpool, int]:
    """Spool the edges; return the spool and the number of vertices."""
    from sagann.storage.edge_spool import EdgeSpool

    # An estimate: ids that need 8 bytes are rare, so each id counts 4 bytes.
    record_bytes = 8 + sum(column.row_bytes for column in source.columns.values())
    copies = 2 if mirrors else 1
    if source.num_edges is not None:
        _check_space(folder, source.num_edges * record_bytes * (1 + copies))
    spool = EdgeSpool(
        folder / "edges-0.tmp",
        columns=source.columns,
        num_vertices=vertices.num_vertices,
        rows_of=vertices.rows_of,
        drop_self_loops=options.drop_self_loops,
        mirrors=mirrors,
        block_edges=max(1024, min(2**22, options.memory_bytes // (8 * record_bytes))),
    )
    num_read = 0
    for chunk in source.chunks():
        spool.add(chunk)
        # Self-loops that are dropped were read as well.
        num_read += len(chunk.src)
        options.progress(num_read, source.num_edges, "edges", READING)
    count = vertices.num_vertices
    if count is None:
        count = count_by_ids(spool.largest_id, spool.num_edges, str(folder.parent))
    spool.finish(count)
    _check_space(folder, 8 * count + spool.num_edges * copies * record_bytes)
    return spool, count


def count_by_ids(largest_id: int, num_edges: int, where: str) -> int:
    """Number of vertices: one more than the largest id. Refuse ids that do not count from 0, such as hashes."""
    if largest_id + 1 > _MOST_VERTICES_PER_EDGE * num_edges + 2**20:
        raise DatasetError(
            f"vertex ids are not numbered from 0: the largest is {largest_id}, with {num_edges} edges (in {where})",
            hint="Number the vertices from 0 without gaps (pandas.factorize does), or state num_vertices "
            "(--num-vertices) if there are so many.",
        )
    return largest_id + 1


def count_types(source: ImportSource, largest_type: int) -> int:
    """Number of edge types: the stated one, which no type may exceed, or one more than the largest type."""
    if "type" not in source.edges.columns:
        return 0
    found, stated = largest_type + 1, source.num_edge_types
    if stated is not None and found > stated:
        raise DatasetError(
            f"edge type out of range: {largest_type}, but there are {stated} types, numbered from 0 (in "
            f"{source.name})",
            hint="State the right number of edge types.",
        )
    return found if stated is None else stated


class _MemoryArray(AbstractContextManager["_MemoryArray"]):
    """An array in memory that grows by rows."""

    def __init__(self, name: str, dtype: str, row_shape: tuple[int, ...] = ()) -> None:
        self._rows: Array = np.empty((0, *row_shape), dtype=dtype)

    @property
    def num_rows(self) -> int:
        return len(self._rows)

    def append(self, rows: Array) -> None:
        begin = len(self._rows)
        # To grow a large array, the system moves its pages instead of copying them, so there is never a second copy.
        self._rows.resize((begin + len(rows), *self._rows.shape[1:]), refcheck=False)
        self._rows[begin:] = rows

    def finish(self) -> Tensor:
        return torch.from_numpy(self._rows)

    def __exit__(self, *_: object) -> None:
        pass


def _check_space(folder: Path, needed_bytes: int) -> None:
    free_bytes = shutil.disk_usage(folder).free
    if needed_bytes > free_bytes:
        raise DatasetError(
            f"disk is too small for this import: about {needed_bytes / 2**30:.1f} GiB are needed, temporary "
            f"files included, {free_bytes / 2**30:.1f} GiB are free (in {folder.parent})",
            hint="Free some space, or choose another disk; nothing was left behind.",
        )
