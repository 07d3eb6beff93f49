"""What all imports share: read vertex arrays and edges from a source, check them, and make a dataset or a graph.

An importer fills an :class:`sagann.storage.import_source.ImportSource`. :func:`import_dataset` streams the source into a folder in
bounded memory; :func:`graph_of` reads the source into memory. So every format has the same options and
checks, and a kill leaves no half dataset.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from sagann.errors import DatasetError
from sagann.free_space import require_memory
from sagann.graph import Graph, Topology, symmetrise, validate_graph
from sagann.graph.checks import UNITS, Where, check_columns, check_labels, unknown_target
from sagann.graph.graph import names_of
from sagann.import_config import ImportOptions
from sagann.storage.dataset import graph_of_arrays, manifest_of, map_arrays, topology_of_arrays
from sagann.storage.edge_source import CheckedEdges
from sagann.storage.folder import new_folder
from sagann.storage.import_source import READING, WRITING, ImportSource, naming
from sagann.storage.manifest import EdgeTreatment, write_manifest
from sagann.storage.npy import NpyWriter
from sagann.storage.rows import Array, Rows, as_stored, in_order_of_ids

if TYPE_CHECKING:
    from sagann.storage.edge_spool import EdgeSpool

# Fields with names of what another field counts.
_COUNTS = {"feature_names": "num_features", "class_names": "num_classes", "edge_type_names": "num_edge_types"}
_UNITS = dict([*UNITS.items(), ("entry", "entries")])
# Arrays that have no row for each vertex or graph.
_ENTRIES = ("graph_ptr", "features_indices", "features_values")
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

        arrays = _Arrays(source, options, open_array)
        edges = CheckedEdges(source.edges, arrays.num_vertices, arrays.rows_of)
        spool, num_vertices = _spool(folder, edges, options, mirrors=mirrors)
        sort = ExternalSort(
            spool,
            num_vertices=num_vertices,
            merge=options.coalesce,
            memory_bytes=options.memory_bytes,
            open_array=open_array,
            progress=options.progress,
        )
        written = {**arrays.written, **sort.run()}
        stated = arrays.stated(options.name or source.name, edges.largest_type)
        tensors = map_arrays(folder, written)
        treatment = EdgeTreatment(
            symmetrised=mirrors,
            coalesced=options.coalesce or mirrors,
            self_loops_dropped=options.drop_self_loops,
        )
        with naming(source):
            graph = graph_of_arrays(topology_of_arrays(tensors), tensors, stated)
            for names, count in _COUNTS.items():
                # A graph drops names that do not fit.
                if getattr(graph, names) != getattr(source, names):
                    raise DatasetError(
                        f"names do not fit: {len(getattr(source, names))} {names}, but {count} is "
                        f"{getattr(graph, count)} (in graph '{graph.name}')",
                        hint="Give as many names, or none.",
                    )
            validate_graph(graph)
        manifest = manifest_of(graph, written)
        write_manifest(folder, replace(manifest, edges=treatment, source=source.description))


def graph_of(source: ImportSource) -> Graph:
    """Read a source into memory, and check every value; the errors are those of an import."""
    arrays = _Arrays(source, ImportOptions(), _MemoryArray)
    src, dst = _MemoryArray("src", "int64"), _MemoryArray("dst", "int64")
    data = {name: _MemoryArray(name, form.base.name, form.shape) for name, form in source.edges.columns.items()}
    edges = CheckedEdges(source.edges, arrays.num_vertices, arrays.rows_of)
    for chunk in edges:
        src.append(chunk.src)
        dst.append(chunk.dst)
        for name, rows in chunk.data.items():
            data[name].append(rows)
    num_vertices = edges.count_vertices(source.description)
    stated = arrays.stated(source.name, edges.largest_type)
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
        graph = graph_of_arrays(topology, arrays.written, stated)
        if source.undirected_once:
            graph = symmetrise(graph)
        validate_graph(graph)
    return graph


class _Arrays:
    """Write the arrays of vertices and of graphs, and find the numbers of vertices and classes.

    ``open_array`` makes the writer of an array from its name, dtype and row shape: an NpyWriter, or an object with the same
    methods. ``written`` holds the result of each writer's ``finish``, by the name of the array. ``rows_of`` names the file whose rows were
    counted for the number of vertices, if that is not stated.
    """

    def __init__(self, source: ImportSource, options: ImportOptions, open_array: Callable[..., Any]) -> None:
        self._source, self._options, self._open = source, options, open_array
        self.rows_of = ""
        self.num_vertices = options.num_vertices if options.num_vertices is not None else source.num_vertices
        num_classes = options.num_classes if options.num_classes is not None else source.num_classes
        self._num_classes = {"labels": num_classes, "graph_labels": source.num_graph_classes}
        self._largest_label = {"labels": -1, "graph_labels": -1}
        graph_ptr = source.arrays.get("graph_ptr")
        self._num_graphs = None if graph_ptr is None else graph_ptr.shape[0] - 1
        self.written: dict[str, Any] = {}
        for name, rows in source.arrays.items():
            self._write(name, rows)

    def stated(self, name: str, largest_type: int) -> dict[str, Any]:
        """What the graph states beside its arrays."""
        return {
            "name": name,
            "num_features": self._source.num_features,
            "num_classes": self._count_classes("labels"),
            "num_graph_classes": self._count_classes("graph_labels"),
            "num_edge_types": count_types(self._source, largest_type),
            **names_of(self._source),
        }

    def _count_classes(self, name: str) -> int:
        if (stated := self._num_classes[name]) is not None:
            return stated
        labels = self._source.arrays.get(name)
        return labels.row_shape[0] if labels is not None and labels.row_shape else self._largest_label[name] + 1

    def _write(self, name: str, source: Rows) -> None:
        unit = "entry" if name in _ENTRIES else "graph" if name.startswith("graph_") else "vertex"
        units, total = _UNITS[unit], {"vertex": self.num_vertices, "graph": self._num_graphs}.get(unit)
        # Offsets are one more than the rows that they are of.
        num_more, stage = int(name == "features_indptr"), f"{WRITING}{name.removesuffix('_indptr')}"
        with self._open(name, source.store_as, source.row_shape) as writer:
            checked = source.mapped(
                partial(self._checked, name, source, unit), unit="entry" if unit == "entry" else "row"
            )
            for rows in in_order_of_ids(checked.chunks(), source.file):
                writer.append(rows)
                self._options.progress(writer.num_rows - num_more, total, units, stage)
            self.written[name] = writer.finish()
        if unit == "graph":
            self._agree_on_graphs(writer.num_rows, source.file)
        elif unit == "vertex":
            self._agree(writer.num_rows - num_more, source.file)

    def _checked(self, name: str, source: Rows, unit: str, rows: Array, where: Where) -> Array:
        match name.removeprefix("graph_"):
            case "features" | "features_values":
                return as_stored(rows, source.store_as, "feature", where=where)
            case "features_indices":
                check_columns(rows, self._source.num_features, where=where, error=DatasetError)
            case "targets":
                return as_stored(rows, source.store_as, "target", where=where, hint=unknown_target(unit))
            case "labels":
                check_labels(rows, self._num_classes[name], where=where, error=DatasetError)
                if rows.ndim == 1:
                    self._largest_label[name] = max(self._largest_label[name], int(rows.max(initial=-1)))
        return rows

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


def _spool(folder: Path, edges: CheckedEdges, options: ImportOptions, *, mirrors: bool) -> tuple[EdgeSpool, int]:
    """Spool the edges; return the spool and the number of vertices."""
    from sagann.storage.edge_spool import EdgeSpool

    columns, num_edges = edges.source.columns, edges.source.num_edges
    # An estimate: ids that need 8 bytes are rare, so each id counts 4 bytes.
    record_bytes = 8 + sum(column.itemsize for column in columns.values())
    copies = 2 if mirrors else 1
    if num_edges is not None:
        _check_space(folder, num_edges * record_bytes * (1 + copies))
    spool = EdgeSpool(
        folder,
        columns=columns,
        drop_self_loops=options.drop_self_loops,
        mirrors=mirrors,
        block_edges=max(1024, min(2**22, options.memory_bytes // (8 * record_bytes))),
    )
    for chunk in edges:
        spool.add(chunk)
        # Self-loops that are dropped were read as well, and their vertices and types exist.
        options.progress(edges.num_read, num_edges, "edges", READING)
    num_vertices = edges.count_vertices(str(folder.parent))
    spool.finish(num_vertices)
    _check_space(folder, 8 * num_vertices + spool.num_edges * copies * record_bytes)
    return spool, num_vertices


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
