"""Edge data that stands beside the ids stays with its edges, however both are cut into chunks."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from sagann.storage.edge_source import EdgeChunk, Edges
from sagann.storage.rows import RowChunk, Rows


def joined(num_edges: int, edges_at_once: int, values: list[float], rows_at_once: int) -> Edges:
    def ends() -> Iterator[EdgeChunk]:
        for first in range(0, num_edges, edges_at_once):
            ids = np.arange(first, min(first + edges_at_once, num_edges))
            yield EdgeChunk(src=ids, dst=ids, file="edges.csv", first_row=first + 1)

    def chunks() -> Iterator[RowChunk]:
        for first in range(0, len(values), rows_at_once):
            yield RowChunk(rows=np.array(values[first : first + rows_at_once]), first_row=first)

    weights = Rows(file="w.npy", dtype=np.dtype("f8"), shape=(-1,), chunks=chunks, store_as="float32")
    return Edges(ends=ends(), num_edges=num_edges, data={"weight": weights})


@pytest.mark.parametrize("edges_at_once", [1, 4, 10])
@pytest.mark.parametrize("rows_at_once", [1, 3, 10])
def test_every_edge_keeps_its_row(edges_at_once: int, rows_at_once: int) -> None:
    edges = joined(10, edges_at_once, [float(i) for i in range(10)], rows_at_once)
    for chunk in edges.chunks():
        assert chunk.data["weight"].tolist() == chunk.src.tolist()
        assert chunk.data_places["weight"] == ("w.npy", chunk.src[0])
