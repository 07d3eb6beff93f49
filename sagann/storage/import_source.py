"""What an import reads: the source of a graph that an importer fills."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from sagann.errors import DatasetError, InputError
from sagann.storage.edge_source import Edges
from sagann.storage.rows import Array, Rows

READING = "reading edges"
"Stage of an import that reads the edges of the source."
WRITING = "writing "
"Begin of the name of a stage that reads and writes an array; the array's name follows."


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
    edges: Edges
    "The edges."
    undirected_once: bool = False
    "Whether the graph is undirected and each edge is stored once, so that its reverse must be added."
    features: Rows | CsrRows | None = None
    "Vertex features; None for a graph without features."
    labels: Rows | None = None
    "Labels: int64 [N], or uint8 [N, C]; None for a graph without labels."
    targets: Rows | None = None
    "Targets of a regression: float32 [N], or [N, T]; None for a graph without targets."
    splits: Mapping[str, Rows] = field(default_factory=dict)
    "Masks of the splits, bool [N], by name."
    graph_ptr: Array | None = None
    "Offsets of the graphs, int64 [num_graphs + 1]; None for a single graph."
    graph_names: tuple[str, ...] = ()
    "Names of the graphs, or empty."
    graph_labels: Rows | None = None
    "Labels of the graphs: int64 [num_graphs], or uint8 [num_graphs, C]; None without labels of graphs."
    num_graph_classes: int | None = None
    "Number of classes of graphs; None where the source does not state it."
    graph_targets: Rows | None = None
    "Targets of the graphs: float32 [num_graphs], or [num_graphs, T]; None without targets of graphs."
    graph_splits: Mapping[str, Rows] = field(default_factory=dict)
    "Masks of the splits of graphs, bool [num_graphs], by name."
    class_names: tuple[str, ...] = ()
    "Names of the classes, or empty."
    edge_type_names: tuple[str, ...] = ()
    "Names of the edge types, or empty."
    feature_names: tuple[str, ...] = ()
    "Names of the features, or empty."
    num_vertices: int | None = None
    "Number of vertices; None where the source does not state it."
    num_classes: int | None = None
    "Number of classes; None where the source does not state it."
    num_edge_types: int | None = None
    "Number of edge types; None where the source does not state it."


@contextmanager
def naming(source: ImportSource) -> Iterator[None]:
    """Turn errors about the whole graph into DatasetErrors that name the source."""
    try:
        yield
    except InputError as error:
        raise DatasetError(f"{source.description}: {error.message}", hint=error.hint) from error
