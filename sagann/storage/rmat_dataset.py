"""R-MAT graphs of any size, straight to disk: no array of the graph is ever in memory."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sagann.graph.rmat import Quadrants, rmat_chunks
from sagann.storage.edge_chunk import EdgeChunk, EdgeColumn
from sagann.storage.importer import ImportOptions, ImportSource, import_dataset
from sagann.storage.vertex_arrays import RowChunk

Array = np.ndarray[Any, Any]

# Rows drawn from one stream of random numbers; part of what a seed means, so it does not follow the memory.
_DRAWN_ROWS = 65536
_FEATURES, _LABELS, _SPLITS = range(3)


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

    The edges are those of :func:`sagann.graph.rmat.rmat_graph` for the same seed; features and labels are
    random too, but drawn in another order.

    Args:
        path: folder to make.
        num_vertices: number of vertices.
        num_edges: edges drawn; ``options`` may merge, mirror or drop some.
        seed: of everything that is drawn.
        num_features: standard normal float32 features per vertex; 0 for none.
        num_classes: classes of uniformly random labels, with a 60/20/20 split; 0 for none.
        quadrants: the shape; default that of Graph500.
        options: symmetrise, memory, and so on.
    Raises:
        DatasetError: something stands at ``path``, or the disk is too small.
        InputError: no vertices for the edges.
    """

    def rows(
        purpose: int, dtype: str, draw: Callable[[np.random.Generator, int], Array], width: int = 0
    ) -> _DrawnRows:
        return _DrawnRows(
            num_rows=num_vertices, dtype=dtype, row_shape=(width,) if width else (), seed=(seed, purpose), draw=draw
        )

    def split(low: float, high: float) -> _DrawnRows:
        def draw(numbers: np.random.Generator, count: int) -> Array:
            position = numbers.random(count)
            return (position >= low) & (position < high)

        return rows(_SPLITS, "bool", draw)

    features = labels = None
    if num_features:
        features = rows(
            _FEATURES,
            "float32",
            lambda numbers, count: numbers.standard_normal((count, num_features), dtype=np.float32),
            num_features,
        )
    if num_classes:
        labels = rows(_LABELS, "int64", lambda numbers, count: numbers.integers(num_classes, size=count))
    source = ImportSource(
        name=f"rmat-{num_vertices}-{num_edges}",
        description=f"R-MAT, seed {seed}",
        edges=_RmatEdges(num_vertices=num_vertices, num_edges=num_edges, seed=seed, quadrants=quadrants),
        features=features,
        labels=labels,
        splits={"train": split(0, 0.6), "val": split(0.6, 0.8), "test": split(0.8, 1)} if num_classes else {},
        num_vertices=num_vertices,
        num_classes=num_classes or None,
    )
    import_dataset(source, path, options or ImportOptions())


@dataclass(frozen=True, kw_only=True, slots=True)
class _RmatEdges:
    num_vertices: int
    num_edges: int
    seed: int
    quadrants: Quadrants | None
    columns: Mapping[str, EdgeColumn] = field(default_factory=dict)

    def chunks(self) -> Iterator[EdgeChunk]:
        first = 0
        for src, dst in rmat_chunks(
            self.num_vertices, self.num_edges, seed=self.seed, chunk_edges=2**20, quadrants=self.quadrants
        ):
            yield EdgeChunk(src=src.numpy(), dst=dst.numpy(), file="R-MAT", first_row=first)
            first += len(src)


@dataclass(frozen=True, kw_only=True, slots=True)
class _DrawnRows:
    num_rows: int
    dtype: str
    row_shape: tuple[int, ...]
    seed: tuple[int, int]
    draw: Callable[[np.random.Generator, int], Array]

    def chunks(self) -> Iterator[RowChunk]:
        for first in range(0, self.num_rows, _DRAWN_ROWS):
            numbers = np.random.default_rng([*self.seed, first // _DRAWN_ROWS])
            rows = self.draw(numbers, min(_DRAWN_ROWS, self.num_rows - first))
            yield RowChunk(rows=rows, file="R-MAT", first_row=first)
