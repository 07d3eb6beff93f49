"""A dataset with its vertices in another order, written row by row, so that features may be larger than memory."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import replace

import torch
from torch import Tensor

from sagann.graph import Graph
from sagann.graph.renumber import check_order, edges_among, fields_of_graphs, new_ids
from sagann.graph.rows import gather_ranges, take_rows
from sagann.storage.dataset import manifest_of, tensors_of
from sagann.storage.folder import new_folder
from sagann.storage.manifest import Manifest, write_manifest
from sagann.storage.npy import write_npy

_AT_ONCE_BYTES = 32 << 20


def save_reordered(
    graph: Graph,
    order: Tensor,
    path: str | os.PathLike[str],
    *,
    overwrite: bool = False,
    manifest: Manifest | None = None,
) -> None:
    """Write a graph as a dataset folder with its vertices renumbered: vertex i of it is vertex ``order[i]`` of ``graph``.

    The dataset keeps the ids that the vertices had before any renumbering, as its ``original_ids``.

    The dataset equals that of ``save_graph(relabel(graph, order), path)``, but only a few arrays of one number per vertex, and
    some rows, are in memory at a time.

    If the graph consists of several graphs, ``order`` must keep the vertices of each graph together. ``manifest`` is
    that of the graph's dataset; if given, its other fields (names of classes and edge types, origin) are kept.
    """
    check_order(graph, order)
    # Refused before the folder gets its name.
    with new_folder(path, overwrite=overwrite) as folder:
        found = replace(graph, **fields_of_graphs(graph, order))
        arrays = {
            name: write_npy(folder / f"{name}.npy", tensor, pieces)
            for name, tensor, pieces in _arrays(found, order)
        }
        known = manifest_of(found, arrays) if manifest is None else replace(manifest, arrays=arrays)
        write_manifest(folder, replace(known, stated={**known.stated, "graph_names": found.graph_names}))


def _arrays(graph: Graph, order: Tensor) -> Iterator[tuple[str, Tensor, Iterable[Tensor]]]:
    """Yield for each array its name, the old array (for dtype and row shape), and the new rows in pieces."""
    topology, ids, tensors = graph.topology, new_ids(graph.topology, order), tensors_of(graph)
    for name, tensor in tensors.items():
        if name in ("indptr", "features_indptr"):
            yield name, tensor, [tensor[:1], tensor.diff()[order].cumsum(0).to(tensor.dtype)]
        elif name == "indices" or name.startswith("edge_"):
            # The sources are sorted again for each array, because the order of all edges would take too much memory.
            pieces = (edges_among(topology, piece, ids) for piece in _pieces(tensor, topology.indptr, order))
            yield name, tensor, (indices if name == "indices" else tensor[edges] for _, indices, edges in pieces)
        elif name in ("features_indices", "features_values"):
            indptr = tensors["features_indptr"]
            places = (gather_ranges(indptr, piece)[1] for piece in _pieces(tensor, indptr, order))
            yield name, tensor, map(tensor.__getitem__, places)
        elif name.startswith("graph_"):
            yield name, tensor, [tensor]
        else:
            pieces = order.split(max(1, _AT_ONCE_BYTES // max(1, tensor[:1].nbytes)))
            yield name, tensor, (take_rows(tensor, piece) for piece in pieces)
    if graph.original_ids is None:
        yield "original_ids", order, [order]


def _pieces(tensor: Tensor, indptr: Tensor, order: Tensor) -> Iterator[Tensor]:
    """Cut the new order into pieces whose edges or entries, with a row of the array each, take little memory."""
    # Per edge, memory holds a row of the array, three 64-bit positions, and the old and the new id of the source.
    most = max(1, _AT_ONCE_BYTES // (32 + tensor[:1].nbytes))
    ends = (indptr[1:] - indptr[:-1])[order].cumsum(0)
    first = done = 0
    while first < len(order):
        last = max(first + 1, int(torch.searchsorted(ends, done + most, right=True)))
        yield order[first:last]
        first, done = last, int(ends[last - 1])
