"""What all imports share: read vertex arrays and edges from a source, check them, and make a dataset or a graph.

An importer fills an :class:`sagann.storage.import_source.ImportSource`. :func:`import_dataset` streams the source into a folder in
bounded memory; :func:`graph_of` reads the source into memory. So every format has the same options and
checks, and a kill leaves no half dataset.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sagann.errors import DatasetError
from sagann.free_space import require_memory
from sagann.graph import Graph, Topology, symmetrise, validate_graph
from sagann.graph.checks import UNITS, check_ids, numbered
from sagann.graph.graph import NAMES
from sagann.import_config import ImportOptions
from sagann.storage.dataset import graph_of_arrays, manifest_of, map_arrays
from sagann.storage.folder import new_folder
from sagann.storage.import_source import READING, WRITING, EdgeChunk, ImportSource, naming
from sagann.storage.manifest import STATED, write_manifest
from sagann.storage.npy import NpyWriter
from sagann.storage.rows import Array, Rows, in_order_of_ids, stored

# Fields with names of what another field counts.
_COUNTS = {"feature_names": "num_features", "class_names": "num_classes", "edge_type_names": "num_edge_types"}
_UNITS = dict([*UNITS.items(), ("entry", "entries")])
# Arrays that have no row for each vertex or graph.
_ENTRIES = ("graph_ptr", "features_indices", "features_values")
# Ids that are larger than so many times the number of edges (plus 2^20) are refused: they are probably hashes.
_MOST_VERTICES_PER_EDGE = 64
# Per vertex of a graph in memory: the offset of its in-edges, and their number while edges are sorted.
_VERTEX_BYTES = 16


def import_dataset(source: ImportSource, out: str | os.PathLike[str], options: ImportOptions) -> None:
    """Stream a source into a dataset folder, in bounded memory and atomically."""
    # Imported here, so that a caller that only opens a dataset does not wait until Numba compiles or loads its kernels.
    from sagann.storage.edge_sort import ExternalSort
    from sagann.storage.edge_spool import EdgeSpool

    mirrors, edges = options.symmetrise or source.undirected_once, source.edges
    # An estimate: ids that need 8 bytes are rare, so each id counts 4 bytes.
    record_bytes, copies = 8 + sum(column.itemsize for column in edges.columns.values()), 2 if mirrors else 1
    with new_folder(out, overwrite=options.overwrite) as folder:

        def open_array(name: str, dtype: str, row_shape: tuple[int, ...] = ()) -> NpyWriter:
            return NpyWriter(folder / f"{name}.npy", dtype, row_shape)

        reader = _Reader(source, options, open_array)
        _check_space(folder, (edges.num_edges or 0) * record_bytes * (1 + copies))
        spool = EdgeSpool(
            folder,
            columns=edges.columns,
            drop_self_loops=options.drop_self_loops,
            mirrors=mirrors,
            block_edges=max(1024, min(2**22, options.memory_bytes // (8 * record_bytes))),
        )
        for chunk in reader.edges():
            spool.add(chunk)
            # Self-loops that are dropped were read as well, and their vertices and types exist.
            options.progress(reader.num_read, edges.num_edges, "edges", READING)
        num_vertices = reader.count_vertices(str(folder.parent))
        spool.finish(num_vertices)
        _check_space(folder, 8 * num_vertices + spool.run.num_edges * copies * record_bytes)
        sort = ExternalSort(
            spool,
            num_vertices=num_vertices,
            merge=options.coalesce,
            memory_bytes=options.memory_bytes,
            open_array=open_array,
            progress=options.progress,
        )
        written = {**reader.written, **sort.run()}
        stated = reader.stated()
        with naming(source):
            graph = graph_of_arrays(map_arrays(folder, written), stated)
            for names, count in _COUNTS.items():
                # A graph drops names that do not fit.
                if getattr(graph, names) != stated[names]:
                    raise DatasetError(
                        f"names do not fit: {len(stated[names])} {names}, but {count} is {getattr(graph, count)} (in graph '{graph.name}')",
                        hint="Give as many names, or none.",
                    )
            validate_graph(graph)
        treatment = {
            "symmetrised": mirrors,
            "coalesced": options.coalesce or mirrors,
            "self_loops_dropped": options.drop_self_loops,
        }
        write_manifest(folder, replace(manifest_of(graph, written), edges=treatment, source=source.description))


def graph_of(source: ImportSource) -> Graph:
    """Read a source into memory, and check every value; the errors are those of an import."""
    reader = _Reader(source, ImportOptions(), _MemoryArray)
    src, dst = _MemoryArray("src", "int64"), _MemoryArray("dst", "int64")
    data = {name: _MemoryArray(name, form.base.name, form.shape) for name, form in source.edges.columns.items()}
    for chunk in reader.edges():
        src.append(chunk.src)
        dst.append(chunk.dst)
        for name, rows in chunk.data.items():
            data[name].append(rows)
    num_vertices = reader.count_vertices(source.description)
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
        graph = graph_of_arrays(reader.written, reader.stated(), topology)
        if source.undirected_once:
            graph = symmetrise(graph)
        validate_graph(graph)
    return graph


class _Reader:
    """Read a source once: write the arrays of vertices and of graphs, then give the edges, and find the numbers that a graph states.

    ``open_array`` makes the writer of an array from its name, dtype and row shape: an NpyWriter, or an object with the same
    methods. ``written`` holds the result of each writer's ``finish``, by the name of the array. ``num_read`` is the number of edges so far.
    """

    def __init__(self, source: ImportSource, options: ImportOptions, open_array: Callable[..., Any]) -> None:
        self.source, self._options, self._open = source, options, open_array
        self._rows_of = ""
        "File whose rows were counted for the number of vertices, if that is not stated."
        self._num_vertices = options.num_vertices if options.num_vertices is not None else source.num_vertices
        self._stated = {**source.stated, "name": options.name or source.name}
        if options.num_classes is not None:
            self._stated["num_classes"] = options.num_classes
        arrays = {name: stored(name, rows, self._stated) for name, rows in source.arrays.items()}
        graph_ptr = arrays.get("graph_ptr")
        self._num_graphs = None if graph_ptr is None else graph_ptr.shape[0] - 1
        self._largest_id = self._largest_type = -1
        self.num_read = 0
        self.written: dict[str, Any] = {}
        for name, rows in arrays.items():
            self._write(name, rows)

    def edges(self) -> Iterator[EdgeChunk]:
        """The edges, with their ids checked."""
        for chunk in self.source.edges.chunks:
            where = numbered(chunk.file, "row", chunk.first_row)
            for side, ids in (("source", chunk.src), ("destination", chunk.dst)):
                check_ids(ids, self._num_vertices, side, where=where, rows_of=self._rows_of, error=DatasetError)
                self._largest_id = max(self._largest_id, int(ids.max(initial=-1)))
            if "type" in chunk.data:
                self._largest_type = max(self._largest_type, int(chunk.data["type"].max(initial=-1)))
            self.num_read += len(chunk.src)
            yield chunk

    def count_vertices(self, where: str) -> int:
        """Number of vertices as it is known, or one more than the largest id. Refuse ids that do not count from 0, such as hashes."""
        if self._num_vertices is not None:
            return self._num_vertices
        if self._largest_id + 1 > _MOST_VERTICES_PER_EDGE * self.num_read + 2**20:
            raise DatasetError(
                f"vertex ids are not numbered from 0: the largest is {self._largest_id}, with {self.num_read} edges (in {where})",
                hint="Number the vertices from 0 without gaps (pandas.factorize does), or state num_vertices "
                "(--num-vertices) if there are so many.",
            )
        return self._largest_id + 1

    def stated(self) -> dict[str, Any]:
        """What the graph states beside its arrays: 0 classes where nothing states them, which ``Graph`` counts.

        Types of edges that nothing states are counted here, with those of edges that are dropped.
        """
        found = {name: value for name, value in self._stated.items() if value is not None}
        counted = {"num_edge_types": self._largest_type + 1}
        stated: dict[str, Any] = {**dict.fromkeys(STATED, 0), **dict.fromkeys(NAMES, ()), **counted, **found}
        if "type" not in self.source.edges.columns:
            stated["num_edge_types"] = 0
        return stated

    def _write(self, name: str, source: Rows) -> None:
        unit = "entry" if name in _ENTRIES else "graph" if name.startswith("graph_") else "vertex"
        units, total = _UNITS[unit], {"vertex": self._num_vertices, "graph": self._num_graphs}.get(unit)
        # Offsets are one more than the rows that they are of.
        num_more, stage = int(name == "features_indptr"), f"{WRITING}{name.removesuffix('_indptr')}"
        with self._open(name, source.store_as, source.row_shape) as writer:
            for rows in in_order_of_ids(source.chunks(), source.file):
                writer.append(rows)
                self._options.progress(writer.num_rows - num_more, total, units, stage)
            self.written[name] = writer.finish()
        if unit == "vertex" and self._num_vertices is None:
            self._num_vertices, self._rows_of = writer.num_rows - num_more, source.file
        known = self._num_graphs if unit == "graph" else self._num_vertices
        if unit != "entry" and writer.num_rows - num_more != known:
            stated_by = "graph_ptr" if unit == "graph" else self._rows_of or "num_vertices"
            says = "there is no graph_ptr" if known is None else f"{stated_by} says {known}"
            raise DatasetError(
                f"number of {units} is not clear: {writer.num_rows - num_more} rows, but {says} (in {source.file})",
                hint="Provide one row for each vertex, and for each graph of graph_ptr, or state the right number of vertices.",
            )


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
