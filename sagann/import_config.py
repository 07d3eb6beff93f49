"""Configurations of imports, with all that is known of each option in one place (:mod:`sagann.options`). Nothing here loads PyTorch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated, Protocol

from sagann.errors import require_choice
from sagann.options import BYTES, Column, Metavar, Panel, Values, check_fields, integers, options
from sagann.ranges import RANGES

EDGE_LISTS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"csv": (".csv", ".csv.gz", ".tsv", ".tsv.gz", ".txt", ".txt.gz"), "parquet": (".parquet", ".pq")}
)
"Formats of edge lists, with the endings of their files."
_RESOURCES = Panel("Memory and disk")
_ROWS, _CLASSES = (integers(RANGES[name].low, RANGES[name].high) for name in ("num_vertices", "num_classes"))
_NAMES = Values(
    lambda name: not any("\ud800" <= character <= "\udfff" for character in name), "a name that UTF-8 can write"
)
LEAST_MEMORY_BYTES = 2**20
"Smallest working memory of an import, in bytes."
_MEMORY = integers(LEAST_MEMORY_BYTES, RANGES["bytes"].high)


class Progress(Protocol):
    """Callback for the progress of an import, called after every chunk from the thread that imports."""

    def __call__(self, done: int, total: int | None, unit: str, stage: str) -> None:
        """Receive the state of one stage: units done, of a total that is exact, estimated or unknown.

        A unit is "edges", "vertices", "graphs", or "entries" of an array that has not a row for each of these. A stage is "reading edges",
        "partitioning", "sorting", or "writing" with the name of an array.
        """


def silent(done: int, total: int | None, unit: str, stage: str) -> None:
    """Ignore the progress."""


@options("import", "Graph")
@dataclass(frozen=True, kw_only=True, slots=True)
class ImportOptions:
    """Options of every import."""

    symmetrise: bool = False
    "Add the reverse of every edge that has none, and merge multi-edges."
    coalesce: bool = False
    "Merge multi-edges of the same type; weights are summed."
    drop_self_loops: bool = False
    "Drop edges from a vertex to itself."
    num_vertices: Annotated[int | None, _ROWS] = None
    "Number of vertices. None is the number in the source, else the number of rows of the vertex arrays, else the largest id plus one."
    num_classes: Annotated[int | None, _CLASSES] = None
    "Number of classes. None is the number in the source, else the largest label plus one."
    name: Annotated[str | None, _NAMES] = None
    "Name of the graph. None is the name of the source; for an edge list, that of the dataset folder."
    memory_bytes: Annotated[int, _MEMORY, BYTES, _RESOURCES] = 256 * 2**20
    "Working memory, excluding libraries; more speeds up large imports."
    overwrite: Annotated[bool, _RESOURCES] = False
    "Replace an existing dataset."
    progress: Progress = silent
    "Callback for the progress of the import."

    def __post_init__(self) -> None:
        check_fields(self)


@options("edges", "Edge lists (csv, parquet)")
@dataclass(frozen=True, kw_only=True, slots=True)
class EdgeListFormat:
    """Columns and file format of an edge list."""

    src: Column | None = None
    "Column of the source ids, by name or position from 0. None detects it by name, else takes the first."
    dst: Column | None = None
    "Column of the destination ids. None detects it by name, else takes the second."
    weight: Column | None = None
    "Column of the edge weights. None reads no weights."
    edge_type: Column | None = None
    "Column of the edge types. None reads no types."
    separator: Annotated[str | None, Metavar("CHARACTER")] = None
    "Field separator of CSV files, including features, labels and targets; 'tab' for tabs. None is a tab in .tsv files, a comma in others."
    header: bool | None = None
    "Whether the CSV files of the edges start with a header. None detects it, as always in other files."
    kind: Annotated[str | None, Metavar("|".join(EDGE_LISTS))] = None
    "Format of the edge files, 'csv' or 'parquet'. None infers it from each file's suffix."

    def __post_init__(self) -> None:
        check_fields(self)
        require_choice(
            self.kind, (None, *EDGE_LISTS), what="kind of edge list is unknown", where="EdgeListFormat.kind"
        )
        if self.separator in ("tab", r"\t"):
            object.__setattr__(self, "separator", "\t")
