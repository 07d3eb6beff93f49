"""What an import reads: the source of a graph that an importer fills, and the options of every import."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

from sagann.errors import DatasetError, InputError
from sagann.options import with_known_names
from sagann.ranges import require_integer
from sagann.storage.edge_source import Edges
from sagann.storage.json_fields import is_unicode
from sagann.storage.rows import Rows

LEAST_MEMORY_BYTES = 2**20
"Smallest working memory of an import, in bytes."
READING = "reading edges"
"Stage of an import that reads the edges of the source."
WRITING = "writing "
"Begin of the name of a stage that reads and writes an array; the array's name follows."


class Progress(Protocol):
    """Callback for the progress of an import, called after every chunk from the thread that imports."""

    def __call__(self, done: int, total: int | None, unit: str, stage: str) -> None:
        """Receive the state of one stage.

        Args:
            done: number of units done in this stage.
            total: number of units in this stage, exact or estimated; None where it is unknown.
            unit: "edges", "vertices", "graphs", or "entries" of an array that has not a row for each of these.
            stage: "reading edges", "partitioning", "sorting", or "writing" with the name of an array.
        """


def silent(done: int, total: int | None, unit: str, stage: str) -> None:
    """Ignore the progress."""


@with_known_names
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
    overwrite: bool = False
    "Whether the import replaces a dataset that stands in the folder to make."
    progress: Progress = silent
    "Callback for the progress of the import; default none."

    def __post_init__(self) -> None:
        if self.memory_bytes < LEAST_MEMORY_BYTES:
            raise InputError(
                f"working memory is too small: {self.memory_bytes} bytes, at least {LEAST_MEMORY_BYTES} are "
                "needed (in ImportOptions.memory_bytes)",
                hint="Allow 256 MiB, or more for a faster import.",
            )
        if self.name is not None and not is_unicode(self.name):
            raise InputError(
                f"name cannot be written in UTF-8: {self.name!r:.80} (in ImportOptions.name)",
                hint="Give a name of ordinary characters.",
            )
        for what in ("num_vertices", "num_classes"):
            if getattr(self, what) is not None:
                require_integer(getattr(self, what), what, where=f"ImportOptions.{what}")


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
    arrays: Mapping[str, Rows] = field(default_factory=dict)
    """Arrays of vertices and of graphs, by the names of their files in a dataset: features, labels, split_train, graph_ptr, graph_targets and
    so on. The columns of sparse features are below ``num_features``."""
    num_features: int = 0
    "Number of columns of sparse features; else 0."
    graph_names: tuple[str, ...] = ()
    "Names of the graphs, or empty."
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
    num_graph_classes: int | None = None
    "Number of classes of graphs; None where the source does not state it."
    num_edge_types: int | None = None
    "Number of edge types; None where the source does not state it."


@contextmanager
def naming(source: ImportSource) -> Iterator[None]:
    """Turn errors about the whole graph into DatasetErrors that name the source."""
    try:
        yield
    except InputError as error:
        raise DatasetError(f"{source.description}: {error.message}", hint=error.hint) from error
