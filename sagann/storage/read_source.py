"""Read an import's source into memory, with the checks of an import."""

from __future__ import annotations

from contextlib import AbstractContextManager

import numpy as np
import torch
from torch import Tensor

from sagann.free_space import require_memory
from sagann.graph import Graph, Topology, symmetrise, validate_graph
from sagann.graph.graph import names_of
from sagann.storage.dataset import with_vertex_arrays
from sagann.storage.edge_source import checked_chunk
from sagann.storage.import_source import ImportOptions, ImportSource, naming
from sagann.storage.importer import count_by_ids, count_types
from sagann.storage.row_source import Array
from sagann.storage.vertex_arrays import VertexArrays, largest

# Per vertex: the offset of its in-edges, and their number while edges are sorted.
_VERTEX_BYTES = 16


def graph_of(source: ImportSource) -> Graph:
    """Read a source into memory, and check every value; the errors are those of an import."""
    vertices = VertexArrays(source, ImportOptions(), _MemoryArray)
    columns = source.edges.columns
    src, dst = _MemoryArray("src", "int64"), _MemoryArray("dst", "int64")
    data = {name: _MemoryArray(name, form.dtype, form.row_shape) for name, form in columns.items()}
    largest_id = largest_type = -1
    for found in source.edges.chunks():
        chunk = checked_chunk(found, vertices.num_vertices, columns, vertices.rows_of)
        src.append(chunk.src)
        dst.append(chunk.dst)
        largest_id = max(largest_id, largest(chunk.src), largest(chunk.dst))
        for name, rows in chunk.data.items():
            data[name].append(rows)
        if "type" in chunk.data:
            largest_type = max(largest_type, largest(chunk.data["type"]))
    num_vertices = vertices.num_vertices
    if num_vertices is None:
        num_vertices = count_by_ids(largest_id, src.num_rows, source.description)
    num_edge_types = count_types(source, largest_type)
    require_memory(
        num_vertices * _VERTEX_BYTES,
        where=f"{source.description}, {num_vertices} vertices",
        fix="Check the number of vertices, or import the source: 'sagann data import' needs little memory.",
    )
    with naming(source):
        topology = Topology.from_coo(
            src=src.finish(),
            dst=dst.finish(),
            num_src=num_vertices,
            edge_data={name: rows.finish() for name, rows in data.items()},
        )
        graph = Graph(
            topology=topology,
            num_classes=vertices.answers["num_classes"],
            num_graph_classes=vertices.answers["num_graph_classes"],
            num_edge_types=num_edge_types,
            name=source.name,
        )
        graph = with_vertex_arrays(graph, vertices.arrays, vertices.num_features, names_of(source))
        if source.undirected_once:
            graph = symmetrise(graph)
        validate_graph(graph)
    return graph


class _MemoryArray(AbstractContextManager["_MemoryArray"]):
    """An array in memory that grows by rows."""

    def __init__(self, name: str, dtype: str, row_shape: tuple[int, ...] = ()) -> None:
        self._rows: Array = np.empty((0, *row_shape), dtype=dtype)

    @property
    def num_rows(self) -> int:
        return len(self._rows)

    def append(self, rows: Array) -> None:
        begin = len(self._rows)
        # To grow a large array, the system moves its pages instead of copying them, so there is never a second copy.
        self._rows.resize((begin + len(rows), *self._rows.shape[1:]), refcheck=False)
        self._rows[begin:] = rows

    def finish(self) -> Tensor:
        return torch.from_numpy(self._rows)

    def __exit__(self, *_: object) -> None:
        pass
