"""What an import reads: the source of a graph that an importer fills."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from sagann.errors import DatasetError, InputError
from sagann.storage.edge_source import Edges
from sagann.storage.rows import Rows

READING = "reading edges"
"Stage of an import that reads the edges of the source."
WRITING = "writing "
"Begin of the name of a stage that reads and writes an array; the array's name follows."


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
    so on."""
    num_vertices: int | None = None
    "Number of vertices; None where the source does not state it."
    stated: Mapping[str, Any] = field(default_factory=dict)
    """Names, and numbers of classes and so on, by their names in a manifest (:data:`sagann.storage.manifest.STATED`). No label or type exceeds a
    number; what is missing, or None, is counted."""


@contextmanager
def naming(source: ImportSource) -> Iterator[None]:
    """Turn errors about the whole graph into DatasetErrors that name the source."""
    try:
        yield
    except InputError as error:
        raise DatasetError(f"{source.description}: {error.message}", hint=error.hint) from error
