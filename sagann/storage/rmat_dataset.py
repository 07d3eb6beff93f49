"""R-MAT graphs of any size, written to disk in chunks: no array of the graph is ever whole in memory."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial
from typing import TypeAlias

import numpy as np

from sagann.graph import SPLIT_NAMES, Quadrants, rmat_chunks
from sagann.import_config import ImportOptions
from sagann.ranges import require_integer
from sagann.storage.import_source import EdgeChunk, Edges, ImportSource
from sagann.storage.importer import import_dataset
from sagann.storage.rows import Array, RowChunk, Rows

# Number of rows drawn from one stream of random numbers. It is fixed, because the graph of a seed depends on it.
_DRAWN_ROWS = 65536
_Draw: TypeAlias = Callable[[np.random.Generator, int], Array]


def write_rmat(
    path: str | os.PathLike[str],
    num_vertices: int,
    num_edges: int,
    *,
    seed: int,
    num_features: int = 0,
    num_classes: int = 0,
    quadrants: Quadrants | None = None,
    options: ImportOptions | None = None,
) -> None:
    """Generate an R-MAT graph as a dataset folder, in bounded memory.

    The edges are those of :func:`sagann.graph.rmat.rmat_graph` for the same seed. Features and labels are random too,
    but are not those of that function.

    Args:
        path: folder to make.
        num_vertices: number of vertices.
        num_edges: edges drawn; ``options`` may merge, mirror or drop some.
        seed: seed of edges, features, labels and splits.
        num_features: number of features per vertex, float32, standard normal; 0 for none.
        num_classes: number of classes; labels are uniformly random, with a 60/20/20 split; 0 for no labels.
        quadrants: probabilities of the quadrants; default those of Graph500.
        options: symmetrise, memory, and so on.
    Raises:
        DatasetError: ``path`` exists and must not be replaced, or the disk is too small.
        InputError: there are edges but no vertices, or a number is out of range.
    """
    given = (("num_vertices", num_vertices), ("num_edges", num_edges), ("num_features", num_features))
    for name, count in (*given, ("num_classes", num_classes)):
        require_integer(count, name, where="write_rmat")

    def rows(purpose: int, dtype: str, draw: _Draw, *row_shape: int) -> Rows:
        def chunks() -> Iterator[RowChunk]:
            for first in range(0, num_vertices, _DRAWN_ROWS):
                numbers = np.random.default_rng([seed, purpose, first // _DRAWN_ROWS])
                yield RowChunk(rows=draw(numbers, min(_DRAWN_ROWS, num_vertices - first)), first_row=first)

        return Rows(file="R-MAT", dtype=np.dtype(dtype), shape=(num_vertices, *row_shape), chunks=chunks)

    def split(part: int, numbers: np.random.Generator, count: int) -> Array:
        return np.digitize(numbers.random(count), (0.6, 0.8)) == part

    def edges() -> Iterator[EdgeChunk]:
        first = 0
        for src, dst in rmat_chunks(num_vertices, num_edges, seed=seed, chunk_edges=2**20, quadrants=quadrants):
            yield EdgeChunk(src=src.numpy(), dst=dst.numpy(), file="R-MAT", first_row=first)
            first += len(src)

    arrays: dict[str, Rows] = {}
    if num_features:
        shape = (num_features,)
        arrays["features"] = rows(
            0, "float32", lambda numbers, n: numbers.standard_normal((n, *shape), "f4"), *shape
        )
    if num_classes:
        arrays["labels"] = rows(1, "int64", lambda numbers, n: numbers.integers(num_classes, size=n))
        arrays |= {f"split_{name}": rows(2, "bool", partial(split, part)) for part, name in enumerate(SPLIT_NAMES)}
    source = ImportSource(
        name=f"rmat-{num_vertices}-{num_edges}",
        description=f"R-MAT, seed {seed}",
        edges=Edges(chunks=edges(), num_edges=num_edges),
        arrays=arrays,
        num_vertices=num_vertices,
        stated={"num_classes": num_classes or None},
    )
    import_dataset(source, path, options or ImportOptions())
