"""Slices: where the graphs of a dataset that PyG has saved begin in each array, in which they stand one after the other.

Ids of vertices count from 0 in each graph there; in a :class:`sagann.graph.Graph` they count on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from sagann.errors import DatasetError, shown
from sagann.graph.checks import first_true
from sagann.ranges import RANGES
from sagann.storage.edge_source import EdgeChunk
from sagann.storage.row_source import Array

Refused = Callable[[str, str, str], DatasetError]
"Makes an error of what is wrong, the value, and what to do."

_OF_VERTICES = ("x", "z", "pos")
"Attributes with a row per vertex by PyG's convention, in the order in which they tell the number of vertices."
_COUNTS = ("_num_nodes", "num_nodes")
"Attributes that list the number of vertices of each graph; one is a sum where the other is the list."
_FIX = "Save the dataset again: InMemoryDataset.save(list(dataset), FILE)."


@dataclass(frozen=True, kw_only=True, slots=True)
class Slices:
    """Where graphs begin."""

    graph_ptr: Array
    "Offsets of the graphs among the vertices, int64 [G + 1]."
    bounds: Mapping[str, Array]
    "For each attribute with a tensor, the offsets of the graphs along its rows (of edge_index, its columns): int64 [G + 1]."

    @property
    def num_graphs(self) -> int:
        """Number of graphs."""
        return len(self.graph_ptr) - 1

    def is_of_vertices(self, name: str) -> bool:
        """Whether an attribute has a row per vertex."""
        return name in self.bounds and np.array_equal(self.bounds[name], self.graph_ptr)

    def is_of_edges(self, name: str) -> bool:
        """Whether an attribute has a row per edge."""
        return name in self.bounds and np.array_equal(self.bounds[name], self.bounds["edge_index"])

    def per_graph(self, name: str, array: Array) -> Array | None:
        """The rows of an attribute as one for each graph, [G, ...]; None where graphs have different numbers of rows, or none.

        A graph whose attribute is a vector of T numbers has T rows in the saved dataset.
        """
        counts = np.diff(self.bounds[name]) if name in self.bounds else np.zeros(0)
        if not len(counts) or counts[0] == 0 or (counts != counts[0]).any():
            return None
        return array if counts[0] == 1 else array.reshape(self.num_graphs, int(counts[0]), *array.shape[1:])

    def ends(self, ids: Array, *, chunk_edges: int, where: str) -> Iterator[EdgeChunk]:
        """The edges, with ids that count on from graph to graph. An id that is no vertex of its graph is a DatasetError."""
        edge_ptr = self.bounds["edge_index"]
        for first in range(0, ids.shape[1], chunk_edges):
            local = ids[:, first : first + chunk_edges].astype(np.int64)
            edges = np.arange(first, first + local.shape[1])
            graphs = np.searchsorted(edge_ptr, edges, side="right") - 1
            starts, sizes = self.graph_ptr[graphs], np.diff(self.graph_ptr)[graphs]
            at = first_true(((local < 0) | (local >= sizes)).any(axis=0))
            if at is not None:
                raise DatasetError(
                    "an edge leaves its graph",
                    value=f"{local[0, at]} -> {local[1, at]} in graph {graphs[at]}, which has {sizes[at]} vertices",
                    where=f"{where}, column {first + at}",
                    fix="Number the vertices of each graph from 0, and save the dataset again.",
                )
            src, dst = local + starts
            yield EdgeChunk(src=src, dst=dst, file=where, first_row=first)


def read_slices(
    saved: Mapping[str | int, Any],
    fields: Mapping[str, Any],
    array_of: Callable[[Any], Array | None],
    refused: Refused,
) -> Slices | None:
    """The slices of several graphs; None for one graph.

    Args:
        saved: the slices as the file has them.
        fields: the attributes.
        array_of: the array of an attribute or of slices; None for anything but a tensor.
        refused: makes the error that is raised where slices and attributes contradict each other.
    """
    # Attributes have texts as names.
    named = {name: value for name, value in saved.items() if type(name) is str}
    arrays = {name: array for name, value in named.items() if (array := array_of(value)) is not None}
    if all(array.shape == (2,) for array in arrays.values()):
        return None
    counts = {array.shape for array in arrays.values()}
    (shape, *others) = counts
    if others or len(shape) != 1 or shape[0] < 2:
        found = ", ".join(str(list(each)) for each in sorted(counts)[:3])
        raise refused(
            "the slices do not count the same graphs", f"slices {found}, expected [num_graphs + 1] each", _FIX
        )
    bounds: dict[str, Array] = {}
    for name, array in arrays.items():
        rows = array_of(fields.get(name))
        if rows is None:
            continue
        num_rows = 0 if rows.ndim == 0 else rows.shape[-1 if name == "edge_index" else 0]
        # Neighbours are compared, not subtracted: the difference of large offsets overflows.
        decrease = bool((array[1:] < array[:-1]).any())
        if array.dtype.kind not in "iu" or array[0] or decrease or array[-1] != num_rows:
            value = f"{array.dtype} from {array[0]} to {array[-1]}{', which decrease,' if decrease else ''} for {num_rows} rows"
            raise refused(f"the slices of {shown(name)} are not those of its rows", value, _FIX)
        bounds[name] = array.astype(np.int64)
    graph_ptr = _vertex_offsets(fields, bounds, shape[0] - 1)
    if graph_ptr is None or "edge_index" not in bounds:
        missing = "edge_index has no slices" if graph_ptr is not None else "neither x, z, pos nor num_nodes tells"
        raise refused("it is not clear which vertices a graph has", missing, _FIX)
    return Slices(graph_ptr=graph_ptr, bounds=bounds)


def _vertex_offsets(fields: Mapping[str, Any], bounds: Mapping[str, Array], num_graphs: int) -> Array | None:
    for name in _COUNTS:
        counts = fields.get(name)
        if not isinstance(counts, list) or len(counts) != num_graphs:
            continue
        if all(type(count) is int and count >= 0 for count in counts) and sum(counts) in RANGES["num_vertices"]:
            return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    return next((bounds[name] for name in _OF_VERTICES if name in bounds), None)
