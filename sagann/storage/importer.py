"""What all imports share: read vertex arrays and edges from a source, check them, and make a dataset or a graph.

An importer fills an :class:`ImportSource`. :func:`import_dataset` streams the source into a folder in bounded memory;
:func:`sagann.storage.read_source.graph_of` reads the source into memory. So every format has the same options and
checks, and a kill leaves no half dataset.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from sagann.errors import DatasetError, InputError
from sagann.graph import id_dtype, validate_graph
from sagann.graph.checks import check_columns, check_labels, numbered, unknown_target
from sagann.ranges import require_integer
from sagann.storage.dataset import map_dataset
from sagann.storage.edge_source import EdgeSource
from sagann.storage.expanded import EXPANSION
from sagann.storage.folder import new_folder
from sagann.storage.json_fields import is_unicode
from sagann.storage.manifest import EdgeTreatment, Manifest, write_manifest
from sagann.storage.npy import NpyWriter, dtype_name
from sagann.storage.row_source import Array, RowSource, as_stored
from sagann.storage.whole_files import require_whole_sources

if TYPE_CHECKING:
    from sagann.storage.edge_spool import EdgeSpool

LEAST_MEMORY_BYTES = 2**20
"Smallest working memory of an import, in bytes."

# Ids that are larger than so many times the number of edges (plus 2^20) are refused: they are probably hashes.
_MOST_VERTICES_PER_EDGE = 64


class Progress(Protocol):
    """Callback for the progress of an import, called after every chunk from the thread that imports."""

    def __call__(self, done: int, total: int | None, unit: str, stage: str) -> None:
        """Receive the state of one stage.

        Args:
            done: number of units done in this stage.
            total: number of units in this stage, exact or estimated; None where it is unknown.
            unit: "edges" or "vertices".
            stage: "reading edges", "partitioning", "sorting", or "writing" with the name of a vertex array.
        """


def silent(done: int, total: int | None, unit: str, stage: str) -> None:
    """Ignore the progress."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ImportOptions:
    """Options of every import."""

    symmetrise: bool = False
    "Whether to add the reverse of every edge that has none, and to merge multi-edges."
    coalesce: bool = False
    "Whether to merge multi-edges. Weights are summed; edges of different types are not merged."
    drop_self_loops: bool = False
    "Whether the import leaves out self-loops."
    num_vertices: int | None = None
    """Number of vertices. Default: the number that the source states, else the number of rows of the vertex arrays,
    else one more than the largest id."""
    num_classes: int | None = None
    "Number of classes. Default: the number that the source states, else one more than the largest label."
    name: str | None = None
    "Name of the graph; default the name of the source, or for an edge list the name of the folder to make."
    memory_bytes: int = 256 * 2**20
    "Working memory in bytes, without the memory of libraries; default 256 MiB."
    expansion: int = EXPANSION
    "Largest number of bytes to which a byte of a gzip file may expand; default 500. A file that expands further is refused."
    overwrite: bool = False
    "Whether the import replaces a dataset that stands in the folder to make."
    progress: Progress = silent
    "Callback for the progress of the import; default none."

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
        for what in ("num_vertices", "num_classes", "expansion"):
            if getattr(self, what) is not None:
                require_integer(getattr(self, what), what, where=f"ImportOptions.{what}")


@dataclass(frozen=True, kw_only=True, slots=True)
class CsrRows:
    """Sparse features to import: the offsets are in memory, columns and values are read in chunks."""

    indptr: Array
    "Offsets of the rows, int64 [N + 1]; the caller has checked them."
    num_features: int
    "Number of columns."
    entries: Iterator[tuple[Array, Array]]
    "Chunks of the entries in CSR order: a chunk is the columns [n] and the values [n] of some entries."
    file: str
    "Name of the features in errors."


@dataclass(frozen=True, kw_only=True, slots=True)
class ImportSource:
    """A graph to import."""

    name: str
    "Name of the source."
    description: str
    "Origin of the data in words, for the manifest and for errors."
    edges: EdgeSource
    "The edges."
    undirected_once: bool = False
    "Whether the graph is undirected and each edge is stored once, so that its reverse must be added."
    features: RowSource | CsrRows | None = None
    "Vertex features; None for a graph without features."
    labels: RowSource | None = None
    "Labels: int64 [N], or uint8 [N, C]; None for a graph without labels."
    targets: RowSource | None = None
    "Targets of a regression: float32 [N], or [N, T]; None for a graph without targets."
    splits: Mapping[str, RowSource] = field(default_factory=dict)
    "Masks of the splits, bool [N], by name."
    graph_ptr: Array | None = None
    "Offsets of the graphs, int64 [num_graphs + 1]; None for a single graph."
    graph_names: tuple[str, ...] = ()
    "Names of the graphs, or empty."
    graph_labels: RowSource | None = None
    "Labels of the graphs: int64 [num_graphs], or uint8 [num_graphs, C]; None without labels of graphs."
    num_graph_classes: int | None = None
    "Number of classes of graphs; None where the source does not state it."
    graph_targets: RowSource | None = None
    "Targets of the graphs: float32 [num_graphs], or [num_graphs, T]; None without targets of graphs."
    graph_splits: Mapping[str, RowSource] = field(default_factory=dict)
    "Masks of the splits of graphs, bool [num_graphs], by name."
    class_names: tuple[str, ...] = ()
    "Names of the classes, or empty."
    edge_type_names: tuple[str, ...] = ()
    "Names of the edge types, or empty."
    num_vertices: int | None = None
    "Number of vertices; None where the source does not state it."
    num_classes: int | None = None
    "Number of classes; None where the source does not state it."
    num_edge_types: int | None = None
    "Number of edge types; None where the source does not state it."


def import_dataset(source: ImportSource, out: str | os.PathLike[str], options: ImportOptions) -> None:
    """Stream a source into a dataset folder, in bounded memory and atomically.

    Raises:
        DatasetError: a value of the source is wrong, or the disk is too small. The message about a value names its file
            and row; if only the whole graph shows the error, the message names the vertex or edge. No file is left
            behind.
    """
    # Imported here, so that a caller that only opens a dataset does not wait until Numba compiles or loads its kernels.
    from sagann.storage.external_sort import ExternalSort

    symmetrise = options.symmetrise or source.undirected_once
    with new_folder(out, overwrite=options.overwrite) as folder:

        def open_array(name: str, dtype: str, row_shape: tuple[int, ...] = ()) -> NpyWriter:
            return NpyWriter(folder / f"{name}.npy", dtype, row_shape)

        vertices = VertexArrays(source, options, open_array)
        spool, num_vertices = _spool(folder, source.edges, vertices.num_vertices, options, mirrors=symmetrise)
        edges = ExternalSort(
            spool,
            num_vertices=num_vertices,
            merge=options.coalesce,
            memory_bytes=options.memory_bytes,
            folder=folder,
            open_array=open_array,
            progress=options.progress,
        ).run()
        manifest = Manifest(
            name=options.name or source.name,
            num_vertices=num_vertices,
            num_edges=edges["indices"].shape[0],
            num_features=vertices.num_features,
            features=vertices.layout,
            num_classes=vertices.num_classes,
            labels=vertices.label_kind,
            num_targets=vertices.num_targets,
            num_edge_types=count_types(source, spool.largest_type),
            edge_data=tuple(source.edges.columns),
            splits=tuple(source.splits),
            num_graphs=1 if source.graph_ptr is None else len(source.graph_ptr) - 1,
            graph_names=source.graph_names,
            graph_labels=vertices.graph_label_kind,
            num_graph_classes=vertices.num_graph_classes,
            num_graph_targets=vertices.num_graph_targets,
            graph_splits=tuple(source.graph_splits),
            class_names=source.class_names,
            edge_type_names=source.edge_type_names,
            edges=EdgeTreatment(
                symmetrised=symmetrise,
                coalesced=options.coalesce or symmetrise,
                self_loops_dropped=options.drop_self_loops,
            ),
            source=source.description,
            arrays={**vertices.arrays, **edges},
        )
        require_whole_sources()
        write_manifest(folder, manifest)
        with naming(source):
            validate_graph(map_dataset(folder, manifest))


@contextmanager
def naming(source: ImportSource) -> Iterator[None]:
    """Turn errors about the whole graph into DatasetErrors that name the source."""
    try:
        yield
    except InputError as error:
        where = f"{source.description}, {error.where}"
        raise DatasetError(error.what, value=error.value, where=where, fix=error.fix) from error


def _spool(
    folder: Path, source: EdgeSource, num_vertices: int | None, options: ImportOptions, *, mirrors: bool
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
        num_vertices=num_vertices,
        drop_self_loops=options.drop_self_loops,
        mirrors=mirrors,
        block_edges=max(1024, min(2**22, options.memory_bytes // (8 * record_bytes))),
    )
    for chunk in source.chunks():
        spool.add(chunk)
        options.progress(spool.num_edges, source.num_edges, "edges", "reading edges")
    count = num_vertices
    if count is None:
        count = count_by_ids(spool.largest_id, spool.num_edges, str(folder.parent))
    spool.finish(count)
    _check_space(folder, 8 * count + spool.num_edges * copies * record_bytes)
    return spool, count


def largest(ids: Array) -> int:
    """The largest number of an array; -1 for an empty array."""
    return int(ids.max()) if len(ids) else -1


def count_by_ids(largest_id: int, num_edges: int, where: str) -> int:
    """Number of vertices: one more than the largest id. Refuse ids that do not count from 0, such as hashes."""
    if largest_id + 1 > _MOST_VERTICES_PER_EDGE * num_edges + 2**20:
        raise DatasetError(
            "vertex ids are not numbered from 0",
            value=f"the largest is {largest_id}, with {num_edges} edges",
            where=where,
            fix="Number the vertices from 0 without gaps (pandas.factorize does), or state num_vertices "
            "(--num-vertices) if there are so many.",
        )
    return largest_id + 1


class VertexArrays:
    """Write the arrays of vertices and of graphs, and find the numbers of vertices, features, classes and targets.

    ``open_array`` makes the writer of an array from its name, dtype and row shape: an NpyWriter, or an object with the same
    methods. ``arrays`` holds the result of each writer's ``finish``, by the name of the array.
    """

    def __init__(self, source: ImportSource, options: ImportOptions, open_array: Callable[..., Any]) -> None:
        self._options = options
        self._open = open_array
        self._told_by = "num_vertices"
        self.num_vertices = options.num_vertices if options.num_vertices is not None else source.num_vertices
        num_classes = options.num_classes if options.num_classes is not None else source.num_classes
        self._num_classes = {"labels": num_classes, "graph_labels": source.num_graph_classes}
        self._num_graphs = None if source.graph_ptr is None else len(source.graph_ptr) - 1
        self.num_features = 0
        self.layout = "none"
        self.arrays: dict[str, Any] = {}
        self._largest_label = {"labels": -1, "graph_labels": -1}

        features = source.features
        if isinstance(features, CsrRows):
            self._write_csr(features)
        elif features is not None:
            self.layout, self.num_features = "dense", features.row_shape[0]
            self._write_rows("features", features)
        self.label_kind, self.num_classes, self.num_targets = self._write_answers(
            "", source.labels, source.targets, source.splits
        )
        if source.graph_ptr is not None:
            with self._open("graph_ptr", "int64") as writer:
                writer.append(source.graph_ptr)
                self.arrays["graph_ptr"] = writer.finish()
        self.graph_label_kind, self.num_graph_classes, self.num_graph_targets = self._write_answers(
            "graph_", source.graph_labels, source.graph_targets, source.graph_splits
        )

    def _write_answers(
        self, prefix: str, labels: RowSource | None, targets: RowSource | None, splits: Mapping[str, RowSource]
    ) -> tuple[str, int, int]:
        """Write the answers of vertices, or with the prefix 'graph_' those of graphs: kind of labels, number of classes and of targets."""
        kind, num_targets = "none", 0
        if labels is not None:
            kind = "multi" if labels.row_shape else "single"
            self._write_rows(f"{prefix}labels", labels)
        if targets is not None:
            num_targets = targets.row_shape[0] if targets.row_shape else 1
            self._write_rows(f"{prefix}targets", targets)
        for name, mask in splits.items():
            self._write_rows(f"{prefix}split_{name}", mask)
        name = f"{prefix}labels"
        found = labels.row_shape[0] if labels is not None and labels.row_shape else self._largest_label[name] + 1
        stated = self._num_classes[name]
        return kind, found if stated is None else stated, num_targets

    def _write_rows(self, name: str, source: RowSource) -> None:
        unit, units, total = "vertex", "vertices", self.num_vertices
        if name.startswith("graph_"):
            unit, units, total = "graph", "graphs", self._num_graphs
        with self._open(name, source.dtype, source.row_shape) as writer:
            for chunk in source.chunks():
                rows, where = chunk.rows, numbered(source.file, "row", chunk.first_row)
                if name == "features":
                    rows = as_stored(rows, source.dtype, "feature", where=where)
                elif name in ("targets", "graph_targets"):
                    rows = as_stored(rows, source.dtype, "target", where=where, fix=unknown_target(unit))
                elif name in self._largest_label:
                    check_labels(rows, self._num_classes[name], where=where, error=DatasetError)
                    if rows.ndim == 1:
                        self._largest_label[name] = max(self._largest_label[name], largest(rows))
                writer.append(rows)
                self._options.progress(writer.num_rows, total, units, f"writing {name}")
            self.arrays[name] = writer.finish()
        if unit == "vertex":
            self._agree(writer.num_rows, source.file)
        else:
            self._agree_on_graphs(writer.num_rows, source.file)

    def _write_csr(self, features: CsrRows) -> None:
        self.layout, self.num_features = "csr", features.num_features
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
            if indices.num_rows != num_entries:
                raise DatasetError(
                    "sparse features are not a CSR matrix",
                    value=f"{indices.num_rows} entries, the offsets end at {num_entries}",
                    where=features.file,
                    fix="Write the file again, with one column and one value per entry.",
                )
            for part, writer in (("indptr", indptr), ("indices", indices), ("values", values)):
                self.arrays[f"features_{part}"] = writer.finish()
        self._agree(len(features.indptr) - 1, features.file)

    def _agree(self, num_rows: int, file: str) -> None:
        if self.num_vertices is None:
            self.num_vertices, self._told_by = num_rows, file
        elif num_rows != self.num_vertices:
            raise DatasetError(
                "number of vertices is not clear",
                value=f"{num_rows} rows, but {self._told_by} says {self.num_vertices}",
                where=file,
                fix="Provide one row for each vertex, or state the right number of vertices.",
            )

    def _agree_on_graphs(self, num_rows: int, file: str) -> None:
        if num_rows != self._num_graphs:
            says = "there is no graph_ptr" if self._num_graphs is None else f"graph_ptr says {self._num_graphs}"
            raise DatasetError(
                "number of graphs is not clear",
                value=f"{num_rows} rows, but {says}",
                where=file,
                fix="Provide graph_ptr [num_graphs + 1], and one row for each graph.",
            )


def count_types(source: ImportSource, largest_type: int) -> int:
    """Number of edge types: the stated one, which no type may exceed, or one more than the largest type."""
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
