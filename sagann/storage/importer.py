"""The way of every import: vertex arrays streamed to disk, edges spooled and sorted, a dataset in place.

An importer brings an :class:`EdgeSource` and, where there are any, row sources for features and labels and
masks for splits; everything else is here, so that every format has the same options, the same bound on memory
and the same protection against a kill.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from sagann.errors import DatasetError, InputError
from sagann.graph import id_dtype
from sagann.storage.dataset import check_written
from sagann.storage.edge_chunk import EdgeSource
from sagann.storage.folder import new_folder
from sagann.storage.manifest import EdgeTreatment, Manifest, is_unicode, write_manifest
from sagann.storage.npy import ArraySpec, NpyWriter, dtype_name
from sagann.storage.progress import Progress, silent
from sagann.storage.vertex_arrays import RowSource, check_features, check_labels

Array = np.ndarray[Any, Any]

LEAST_MEMORY_BYTES = 2**20
"Working memory below which an import is refused."


# Above this, ids without a stated number of vertices are taken for what they most often are: hashes.
_MOST_VERTICES_PER_EDGE = 64


@dataclass(frozen=True, kw_only=True, slots=True)
class ImportOptions:
    """What a user may decide about any import."""

    symmetrise: bool = False
    "Add the reverse of every edge that has none, and merge multi-edges."
    coalesce: bool = False
    "Merge multi-edges: weights are summed, types tell edges apart."
    drop_self_loops: bool = False
    "Leave out edges v -> v."
    num_vertices: int | None = None
    "Number of vertices; default what the vertex arrays, or else the largest id, tell."
    num_classes: int | None = None
    "Number of classes; default one more than the largest label."
    name: str | None = None
    "What to call the graph; default the source's name, of an edge list that of the folder to make."
    memory_bytes: int = 256 * 2**20
    "Working memory in bytes, beside the libraries'; default 256 MiB."
    overwrite: bool = False
    "Replace a dataset that stands in the way."
    progress: Progress = silent
    "Is told how far the import is."

    def __post_init__(self) -> None:
        if self.memory_bytes < LEAST_MEMORY_BYTES:
            raise InputError(
                "working memory is too small",
                value=f"{self.memory_bytes} bytes, at least {LEAST_MEMORY_BYTES} are needed",
                where="ImportOptions.memory_bytes",
                fix="Allow 256 MiB, or more for a faster import.",
            )
        if self.name is not None and not is_unicode(self.name):
            raise InputError(
                "name cannot be written in UTF-8",
                value=f"{self.name!r:.80}",
                where="ImportOptions.name",
                fix="Give a name of ordinary characters.",
            )
        for what, count in (("num_vertices", self.num_vertices), ("num_classes", self.num_classes)):
            if count is not None and not 0 <= count < 2**48:
                raise InputError(
                    f"{what} is out of range",
                    value=str(count),
                    where=f"ImportOptions.{what}",
                    fix="Give the count, or leave it out to have it taken from the data.",
                )


@dataclass(frozen=True, kw_only=True, slots=True)
class CsrRows:
    """Sparse features to import: offsets small enough for memory, columns and values in chunks."""

    indptr: Array
    "int64 [N + 1], checked."
    num_features: int
    "Number of columns."
    entries: Iterator[tuple[Array, Array]]
    "Columns and values, in order."
    where: str
    "What to call it in errors."


@dataclass(frozen=True, kw_only=True, slots=True)
class ImportSource:
    """Everything that an importer brings."""

    name: str
    "Name of the source."
    description: str
    "Where the data came from, in words, for the manifest."
    edges: EdgeSource
    "The edges."
    features: RowSource | CsrRows | None = None
    "Vertex features."
    labels: RowSource | None = None
    "Labels: int64 [N], or uint8 [N, C]."
    splits: Mapping[str, RowSource] = field(default_factory=dict)
    "bool masks [N] by name."
    graph_ptr: Array | None = None
    "int64 [num_graphs + 1]."
    graph_names: tuple[str, ...] = ()
    "Names of the graphs."
    class_names: tuple[str, ...] = ()
    "Names of the classes."
    edge_type_names: tuple[str, ...] = ()
    "Names of the edge types."
    num_vertices: int | None = None
    "Number of vertices, where the source says so."
    num_classes: int | None = None
    "Number of classes, where the source says so."
    num_edge_types: int | None = None
    "Number of edge types, where the source says so."


def import_dataset(source: ImportSource, out: str | os.PathLike[str], options: ImportOptions) -> None:
    """Stream a source into a dataset folder, in bounded memory and atomically.

    Args:
        source: what the importer brings.
        out: folder to make.
        options: the user's decisions.
    Raises:
        DatasetError: something in the source is no good (names file and row, or vertex or edge where only the
            whole shows it), or the disk is too small. Nothing is left behind.
    """
    with new_folder(out, overwrite=options.overwrite) as folder:
        vertices = _VertexWriter(folder, source, options)
        vertices.write()
        edges = _write_edges(folder, source.edges, vertices.num_vertices, options)
        num_vertices = vertices.num_vertices if vertices.num_vertices is not None else edges.num_vertices
        manifest = Manifest(
            name=options.name or source.name,
            num_vertices=num_vertices,
            num_edges=edges.num_edges,
            num_features=vertices.num_features,
            features=vertices.layout,
            num_classes=vertices.num_classes,
            labels=vertices.label_kind,
            num_edge_types=_count_types(source, edges.largest_type),
            edge_data=tuple(source.edges.columns),
            splits=tuple(source.splits),
            num_graphs=1 if source.graph_ptr is None else len(source.graph_ptr) - 1,
            graph_names=source.graph_names,
            class_names=source.class_names,
            edge_type_names=source.edge_type_names,
            edges=EdgeTreatment(
                symmetrised=options.symmetrise,
                coalesced=options.coalesce or options.symmetrise,
                self_loops_dropped=options.drop_self_loops,
            ),
            source=source.description,
            arrays={**vertices.arrays, **edges.arrays},
        )
        write_manifest(folder, manifest)
        check_written(folder, manifest)


@dataclass(frozen=True, kw_only=True, slots=True)
class _WrittenEdges:
    num_edges: int
    num_vertices: int
    largest_type: int
    arrays: Mapping[str, ArraySpec]


def _write_edges(
    folder: Path, source: EdgeSource, num_vertices: int | None, options: ImportOptions
) -> _WrittenEdges:
    # Imported here: Numba compiles or loads its kernels, which opening a dataset need not wait for.
    from sagann.storage.edge_spool import EdgeSpool
    from sagann.storage.external_sort import CscWriters, ExternalSort

    columns = source.columns
    # Until every edge is seen, ids count 4 bytes each.
    record_bytes = 8 + sum(column.row_bytes for column in columns.values())
    copies = 2 if options.symmetrise else 1
    if source.num_edges is not None:
        _check_space(folder, source.num_edges * record_bytes * (1 + copies))
    spool = EdgeSpool(
        folder / "edges-0.tmp",
        columns=columns,
        num_vertices=num_vertices,
        drop_self_loops=options.drop_self_loops,
        mirrors=options.symmetrise,
        block_edges=max(1024, min(2**22, options.memory_bytes // (8 * record_bytes))),
    )
    for chunk in source.chunks():
        spool.add(chunk)
        options.progress(spool.num_edges, source.num_edges, "edges", "reading edges")
    count = num_vertices if num_vertices is not None else _count_by_ids(spool.largest_id, spool.num_edges, folder)
    spool.finish(count)
    _check_space(folder, 8 * count + spool.num_edges * copies * record_bytes)

    with ExitStack() as stack:

        def writer(name: str, dtype: str, row_shape: tuple[int, ...] = ()) -> NpyWriter:
            return stack.enter_context(NpyWriter(folder / f"{name}.npy", dtype, row_shape))

        writers = CscWriters(
            indptr=writer("indptr", "int64"),
            indices=writer("indices", dtype_name(id_dtype(count))),
            data={name: writer(f"edge_{name}", form.dtype, form.row_shape) for name, form in columns.items()},
        )
        num_edges = ExternalSort(
            spool,
            num_vertices=count,
            merge=options.coalesce,
            memory_bytes=options.memory_bytes,
            folder=folder,
            writers=writers,
            progress=options.progress,
        ).run()
        arrays = {"indptr": writers.indptr.finish(), "indices": writers.indices.finish()}
        arrays |= {f"edge_{name}": data.finish() for name, data in writers.data.items()}
    return _WrittenEdges(num_edges=num_edges, num_vertices=count, largest_type=spool.largest_type, arrays=arrays)


def _count_by_ids(largest_id: int, num_edges: int, folder: Path) -> int:
    """Number of vertices that ids tell; ids that are no numbering (hashes, for one) are refused."""
    if largest_id + 1 > _MOST_VERTICES_PER_EDGE * num_edges + 2**20:
        raise DatasetError(
            "vertex ids are no numbering from 0",
            value=f"the largest is {largest_id}, with {num_edges} edges",
            where=str(folder.parent),
            fix="Number the vertices from 0 without gaps (pandas.factorize does), or state num_vertices "
            "(--num-vertices) if there are so many.",
        )
    return largest_id + 1


class _VertexWriter:
    """Write the vertex arrays, and find out what they tell: number of vertices and of classes."""

    def __init__(self, folder: Path, source: ImportSource, options: ImportOptions) -> None:
        self._folder = folder
        self._source = source
        self._options = options
        self._told_by = "what was stated"
        self.num_vertices = options.num_vertices if options.num_vertices is not None else source.num_vertices
        self.num_classes = options.num_classes if options.num_classes is not None else source.num_classes or 0
        self.num_features = 0
        self.layout = "none"
        self.label_kind = "none"
        self.arrays: dict[str, ArraySpec] = {}

    def write(self) -> None:
        """Write everything that there is."""
        features = self._source.features
        if isinstance(features, CsrRows):
            self._write_csr(features)
        elif features is not None:
            self.layout, self.num_features = "dense", features.row_shape[0]
            self._write_rows("features", features)
        if self._source.labels is not None:
            self._write_labels(self._source.labels)
        for name, mask in self._source.splits.items():
            self._write_rows(f"split_{name}", mask)
        if self._source.graph_ptr is not None:
            with NpyWriter(self._folder / "graph_ptr.npy", "int64") as writer:
                writer.append(self._source.graph_ptr)
                self.arrays["graph_ptr"] = writer.finish()

    def _write_labels(self, labels: RowSource) -> None:
        stated = self._options.num_classes if self._options.num_classes is not None else self._source.num_classes
        self.label_kind = "multi" if labels.row_shape else "single"
        if self.label_kind == "multi":
            self.num_classes = labels.row_shape[0] if stated is None else stated
            self._write_rows("labels", labels)
            return
        largest = self._write_rows("labels", labels)
        self.num_classes = largest + 1 if stated is None else stated

    def _write_rows(self, name: str, source: RowSource) -> int:
        """Write one array; return the largest value, which is of use for labels."""
        largest = -1
        stated = self._options.num_classes if self._options.num_classes is not None else self._source.num_classes
        file = name
        with NpyWriter(self._folder / f"{name}.npy", source.dtype, source.row_shape) as writer:
            for chunk in source.chunks():
                if name == "features":
                    check_features(chunk)
                elif name == "labels":
                    check_labels(chunk, stated)
                    if chunk.rows.ndim == 1 and len(chunk.rows):
                        largest = max(largest, int(chunk.rows.max()))
                writer.append(chunk.rows)
                file = chunk.file
                self._options.progress(writer.num_rows, self.num_vertices, "vertices", f"writing {name}")
            self.arrays[name] = writer.finish()
        self._agree(writer.num_rows, file)
        return largest

    def _write_csr(self, features: CsrRows) -> None:
        self.layout, self.num_features = "csr", features.num_features
        num_entries = int(features.indptr[-1])
        index_dtype = dtype_name(id_dtype(max(num_entries, features.num_features)))
        with ExitStack() as stack:
            indptr, indices, values = (
                stack.enter_context(NpyWriter(self._folder / f"features_{part}.npy", dtype))
                for part, dtype in (("indptr", index_dtype), ("indices", index_dtype), ("values", "float32"))
            )
            indptr.append(features.indptr)
            for columns, entries in features.entries:
                if len(columns) and (columns.min() < 0 or columns.max() >= features.num_features):
                    at = int(((columns < 0) | (columns >= features.num_features)).argmax())
                    raise DatasetError(
                        "feature column out of range",
                        value=f"{int(columns[at])}, but there are {features.num_features} columns",
                        where=f"{features.where}, entry {indices.num_rows + at}",
                        fix="Number the columns from 0.",
                    )
                with np.errstate(over="ignore"):
                    stored = entries.astype(np.float32)
                if not np.isfinite(stored).all():
                    at = int((~np.isfinite(stored)).argmax())
                    raise DatasetError(
                        "feature is not finite",
                        value=f"{entries[at]} in float32",
                        where=f"{features.where}, entry {indices.num_rows + at}",
                        fix="Fill in missing values before importing.",
                    )
                indices.append(columns)
                values.append(stored)
            if indices.num_rows != num_entries:
                raise DatasetError(
                    "sparse features are not a CSR matrix",
                    value=f"{indices.num_rows} entries, the offsets end at {num_entries}",
                    where=features.where,
                    fix="Make the file again.",
                )
            self.arrays |= {
                "features_indptr": indptr.finish(),
                "features_indices": indices.finish(),
                "features_values": values.finish(),
            }
        self._agree(len(features.indptr) - 1, features.where)

    def _agree(self, num_rows: int, file: str) -> None:
        if self.num_vertices is None:
            self.num_vertices, self._told_by = num_rows, file
        elif num_rows != self.num_vertices:
            raise DatasetError(
                "number of vertices is not clear",
                value=f"{num_rows} rows, but {self._told_by} says {self.num_vertices}",
                where=file,
                fix="Bring one row for each vertex, or state the right number of vertices.",
            )


def _count_types(source: ImportSource, largest_type: int) -> int:
    if "type" not in source.edges.columns:
        return 0
    found, stated = largest_type + 1, source.num_edge_types
    if stated is not None and found > stated:
        raise DatasetError(
            "edge type out of range",
            value=f"{largest_type}, but there are {stated} types, numbered from 0",
            where=source.name,
            fix="State the right number of edge types.",
        )
    return found if stated is None else stated


def _check_space(folder: Path, needed_bytes: int) -> None:
    free_bytes = shutil.disk_usage(folder).free
    if needed_bytes > free_bytes:
        raise DatasetError(
            "disk is too small for this import",
            value=f"about {needed_bytes / 2**30:.1f} GiB are needed, temporary files included, "
            f"{free_bytes / 2**30:.1f} GiB are free",
            where=str(folder.parent),
            fix="Free some space, or choose another disk; nothing was left behind.",
        )
