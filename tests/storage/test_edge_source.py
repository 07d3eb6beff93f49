"""Edge data that stands beside the ids stays with its edges, however both are cut into chunks."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from sagann.errors import DatasetError
from sagann.storage.edge_source import EdgeChunk, Edges, checked_chunk
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


@pytest.mark.parametrize("edges_at_once", [1, 3, 4, 10])
@pytest.mark.parametrize("rows_at_once", [1, 2, 3, 5, 10])
def test_every_edge_keeps_its_row(edges_at_once: int, rows_at_once: int) -> None:
    edges = joined(10, edges_at_once, [float(i) for i in range(10)], rows_at_once)
    for chunk in edges.chunks():
        assert chunk.data["weight"].tolist() == chunk.src.tolist()
        assert chunk.data_places["weight"] == ("w.npy", chunk.src[0])


@pytest.mark.parametrize("rows_at_once", [1, 3, 10])
def test_data_of_another_length_is_refused(rows_at_once: int) -> None:
    with pytest.raises(DatasetError, match=r"data 'weight' ends after 4 rows, and more edges follow \(in w\.npy\)"):
        list(joined(5, 3, [0.0] * 4, rows_at_once).chunks())
    with pytest.raises(DatasetError, match=r"data 'weight' goes on after 5 rows, the number of edges"):
        list(joined(5, 3, [0.0] * 6, rows_at_once).chunks())


def test_a_bad_value_is_named_by_its_own_file_and_row() -> None:
    edges = joined(6, 4, [0.0] * 5 + [1e39], 2)
    first, second = edges.chunks()
    checked_chunk(first, 6, edges.columns)
    with pytest.raises(DatasetError, match=r"'weight' is not finite: 1e\+39, beyond float32.*w\.npy, row 5\)"):
        checked_chunk(second, 6, edges.columns)
