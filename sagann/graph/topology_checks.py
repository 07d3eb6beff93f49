"""Checks of the arrays that a topology is made of: types, shapes and ids."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from sagann.errors import InputError, require_type
from sagann.graph.checks import check_ids, numbered, wrong_form

_AS_TENSOR = "Convert it with torch.as_tensor."
_AS_COUNT = "Pass the number of vertices, as int(...)."


def check_forms(
    indptr: Tensor, indices: Tensor, num_src: int, edge_data: Mapping[str, Tensor] | None, edge_ids: Tensor | None
) -> None:
    """Check types, dtypes and shapes of what a topology is made of; the values are not read."""
    for name, array in (("indptr", indptr), ("indices", indices)):
        require_type(array, Tensor, where=f"Topology.{name}", hint=_AS_TENSOR)
    require_type(edge_ids, Tensor, where="Topology.edge_ids", hint=_AS_TENSOR, optional=True)
    require_type(num_src, int, where="Topology.num_src", hint=_AS_COUNT)
    if indptr.dtype != torch.int64 or indptr.ndim != 1 or len(indptr) == 0:
        hint = "Convert the offsets with .to(torch.int64)."
        raise wrong_form(indptr, "torch.int64 [num_dst + 1]", where="Topology.indptr", hint=hint)
    if indices.dtype not in (torch.int32, torch.int64) or indices.ndim != 1:
        expected, hint = "torch.int32 or torch.int64 [num_edges]", "Convert the ids with .to(torch.int32)."
        raise wrong_form(indices, expected, where="Topology.indices", hint=hint)
    num_dst, num_edges = indptr.size(0) - 1, indices.size(0)
    if num_dst > num_src:
        raise InputError(
            f"more destination than source vertices: num_dst {num_dst}, num_src {num_src} (in Topology)",
            hint="Number the vertices so that the destinations are the first of the sources.",
        )
    _check_rows(edge_data or {}, num_edges)
    if edge_ids is not None:
        _check_rows({"edge_ids": edge_ids}, num_edges)


def check_coo(src: Tensor, dst: Tensor, num_src: int, num_dst: int, edge_data: Mapping[str, Tensor] | None) -> None:
    """Check a list of edges, with its ids."""
    for side, ids in (("src", src), ("dst", dst)):
        require_type(ids, Tensor, where=f"Topology.from_coo, {side}", hint=_AS_TENSOR)
    for name, count in (("num_src", num_src), ("num_dst", num_dst)):
        require_type(count, int, where=f"Topology.from_coo, {name}", hint=_AS_COUNT)
    if src.ndim != 1 or src.shape != dst.shape:
        raise InputError(
            f"source and destination ids differ in shape: {list(src.shape)} and {list(dst.shape)}, expected "
            "two arrays [num_edges] (in Topology.from_coo)",
            hint="Pass one source and one destination id per edge.",
        )
    for name, side, ids, count in (("src", "source", src, num_src), ("dst", "destination", dst, num_dst)):
        if ids.dtype not in (torch.int32, torch.int64):
            hint = "Convert the ids with .to(torch.int64)."
            raise wrong_form(ids, "torch.int32 or torch.int64 [num_edges]", where=name, hint=hint)
        check_ids(ids, count, side, where=numbered(name, "edge"))
    _check_rows(edge_data or {}, len(src))


def check_edge_index(edge_index: Tensor) -> None:
    """Check the form of PyG's ``edge_index``."""
    require_type(edge_index, Tensor, where="Topology.from_edge_index, edge_index", hint=_AS_TENSOR)
    if edge_index.ndim != 2 or edge_index.shape[0] != 2:
        raise InputError(
            f"edge_index has the wrong form: {list(edge_index.shape)}, expected [2, num_edges] (in "
            "Topology.from_edge_index, edge_index)",
            hint="Pass the sources in the first row and the destinations in the second; transpose edges [num_edges, 2].",
        )


def _check_rows(edge_data: Mapping[str, Tensor], num_edges: int) -> None:
    require_type(edge_data, Mapping, where="edge data", hint="Pass a mapping of name to tensor.")
    for name, rows in edge_data.items():
        require_type(rows, Tensor, where=f"edge data '{name}'", hint=_AS_TENSOR)
        if rows.ndim == 0 or len(rows) != num_edges:
            raise InputError(
                f"edge data has the wrong number of rows: {list(rows.shape)}, expected one row for each of "
                f"{num_edges} edges (in edge data '{name}')",
                hint="Pass one row per edge, in the topology's order (by destination, then source), or use from_coo.",
            )
