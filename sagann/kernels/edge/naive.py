"""Edge functions in plain PyTorch, with a tensor per value and a row per edge: the twin that every dialect is compared with.

The result is differentiable. Backward passes are traced from :func:`evaluate`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from sagann.graph.rows import id_dtype
from sagann.graph.topology import Topology
from sagann.kernels.edge.function import BINARY, REDUCTIONS, UNARY, EdgeFunction, End, Op, Output
from sagann.kernels.edge.pass_edges import Edges, PassEdges
from sagann.kernels.edge.random import random_rows
from sagann.kernels.naive import HALF, by_source
from sagann.kernels.seeds import Seed

_LOGICAL: dict[str, Any] = {"not": torch.logical_not, "and": torch.logical_and, "or": torch.logical_or}
# The language names its ops as PyTorch does.
_FUNCTIONS: dict[str, Callable[..., Tensor]] = {
    name: _LOGICAL.get(name) or getattr(torch, name) for name in UNARY | BINARY | REDUCTIONS | {"where"}
}


def run(
    function: EdgeFunction,
    edges: Edges,
    arrays: Mapping[str, Tensor],
    *,
    seed: Seed = 0,
    into: Sequence[Tensor] | None = None,
    edge_offset: int = 0,
) -> tuple[Tensor, ...]:
    """Run a pass, or continue one with more edges.

    Args:
        function: the edge function.
        edges: a topology, or edges for one pass.
        arrays: the inputs by name. "src" [num_src, ...], "dst" [num_dst, ...], "edge" [num_edges, ...] in CSC order or as
            the data of ``edges`` lies, "param" without rows.
        seed: seed of the random values.
        into: results of earlier edges of the same rows, without outputs that are not reduced. The pass adds its edges to
            these tensors in place, and is not differentiable. ``edges`` may have more rows, if those have no edges. By
            default the pass starts anew.
        edge_offset: id of the first edge, where the pass continues.
    Returns:
        The tensors of every output (:class:`Output`); where ``into`` is given, its tensors.
    """
    with nullcontext() if into is None else torch.no_grad():
        found = _results(function, edges, arrays, seed, edge_offset)
    if into is None:
        return tuple(rows for part in found for rows in part)
    results: list[Tensor] = []
    known = iter(into)
    for output, part in zip(function.outputs, found, strict=True):
        if output.reduction.rows == "edge":
            results += part
            continue
        earlier = [next(known) for _ in part]
        part = tuple(
            torch.where(rows < 0, -1, rows.long() + edge_offset) if form.is_edge else rows
            for rows, form in zip(part, output.reduction.state, strict=True)
        )
        if output.reduction.rows == "row":
            part = tuple(rows[: len(earlier[0])] for rows in part)
        output.reduction.merge(earlier, part)
        results += earlier
    return tuple(results)


def _results(
    function: EdgeFunction, edges: Edges, arrays: Mapping[str, Tensor], seed: Seed, edge_offset: int
) -> list[tuple[Tensor, ...]]:
    """The results of these edges, by output. Extrema name their edges by position."""
    groups, order = _grouped(edges, function.at)
    rows: dict[str, Tensor] = {}
    for given in function.inputs:
        array = arrays[given.name]
        if given.side == "param":
            array = array.unsqueeze(0)
        elif given.side != "edge":
            ends = groups.edge_dst() if given.side == function.at else groups.indices
            array = array.index_select(0, ends.long())
        elif order is not None and not (isinstance(edges, PassEdges) and edges.holds(array)):
            array = array.index_select(0, order)
        rows[given.name] = array
    positions = torch.arange(groups.num_edges, device=groups.device) if order is None else order
    values = evaluate(function, rows, edge_ids=positions + edge_offset, seed=seed)
    results: list[tuple[Tensor, ...]] = []
    for output in function.outputs:
        shapes = [(groups.num_edges, *function.value(name).shape) for name in output.values]
        reduced = [values[name].expand(shape) for name, shape in zip(output.values, shapes, strict=True)]
        results.append(_reduce(groups, order, output, reduced))
    return results


def _grouped(edges: Edges, at: End) -> tuple[Topology, Tensor | None]:
    """The edges as a topology whose destinations are the groups, and the position of each edge in CSC order; None where they lie in it."""
    if isinstance(edges, PassEdges):
        return edges.topology(), None if edges.edge_ids is None else edges.edge_ids.long()
    return (edges, None) if at == "dst" else by_source(edges)


def evaluate(
    function: EdgeFunction, rows: Mapping[str, Tensor], *, edge_ids: Tensor | None = None, seed: Seed = 0
) -> dict[str, Tensor]:
    """Every value of the function, [num_edges, ...] each; parameters and constants may have 1 row instead.

    ``rows`` holds the inputs, [num_edges, *shape] each, or [1, *shape] for parameters. ``edge_ids`` may be None where no op is
    random or edge_id.
    """
    values: dict[str, Tensor] = {}
    for given in function.inputs:
        # Half precision is storage only: arithmetic is in float32.
        values[given.name] = rows[given.name].float() if given.dtype in HALF else rows[given.name]
    for op in function.ops:
        args = [_aligned(values[arg], op) if isinstance(arg, str) else arg for arg in op.args]
        values[op.name] = _apply(op, args, edge_ids, seed, values)
    return values


def _aligned(value: Tensor, op: Op) -> Tensor:
    """Insert dimensions after the row's, so that features broadcast from the right."""
    if op.op in {"reshape", "permute", "slice", "cat"} | REDUCTIONS:
        return value
    missing = len(op.shape) + 1 - value.ndim
    return value.reshape(value.shape[0], *(1,) * missing, *value.shape[1:]) if missing > 0 else value


def _apply(op: Op, args: list[Any], edge_ids: Tensor | None, seed: Seed, values: Mapping[str, Tensor]) -> Tensor:
    name, attrs = op.op, op.attrs
    if name in UNARY or name == "where":
        return _FUNCTIONS[name](*args)
    if name in BINARY:
        # An op of two constants never occurs, but the constant may stand first.
        if not isinstance(args[0], Tensor):
            args[0] = torch.as_tensor(args[0], dtype=args[1].dtype, device=args[1].device)
        if not isinstance(args[1], Tensor) and name in ("maximum", "minimum", "and", "or"):
            args[1] = torch.as_tensor(args[1], dtype=args[0].dtype, device=args[0].device)
        return _FUNCTIONS[name](args[0], args[1])
    if name == "cast":
        return args[0].to(op.dtype)
    if name in ("reshape", "broadcast"):
        reshape = torch.Tensor.expand if name == "broadcast" else torch.Tensor.reshape
        return reshape(args[0], args[0].shape[0], *op.shape)
    if name == "permute":
        return args[0].permute(0, *(dim + 1 for dim in attrs["dims"]))
    if name == "slice":
        dim, start, step = attrs["dim"], attrs["start"], attrs["step"]
        stop = start + (op.shape[dim] - 1) * step + 1
        return args[0][(slice(None),) * (dim + 1) + (slice(start, stop, step),)]
    if name == "cat":
        # Constants have one row, also where there are no edges.
        count = next((arg.shape[0] for arg in args if arg.shape[0] != 1), 1)
        return torch.cat([arg.expand(count, *arg.shape[1:]) for arg in args], attrs["dim"] + 1)
    if name == "full":
        # A message may read nothing but its edges' ids.
        device = getattr(next(iter(values.values()), edge_ids), "device", None)
        return torch.full((1, *op.shape), args[0], dtype=op.dtype, device=device)
    if name in ("edge_id", "random"):
        assert edge_ids is not None
        is_id = name == "edge_id"
        return edge_ids if is_id else random_rows(edge_ids, op.shape, attrs["p"], attrs["salt"], seed, op.dtype)
    dims = tuple(dim + 1 for dim in attrs["dims"])
    return _FUNCTIONS[name](args[0], dims) if dims else args[0]


def _reduce(groups: Topology, order: Tensor | None, output: Output, values: Sequence[Tensor]) -> tuple[Tensor, ...]:
    reduction = output.reduction

    def by_id(rows: Tensor, *, is_edge: bool) -> Tensor:
        if is_edge:
            if order is not None and len(order):
                rows = torch.where(rows < 0, rows, order[rows.clamp(min=0)])
            return rows.to(id_dtype(groups.num_edges))
        if order is None or reduction.rows != "edge":
            return rows
        return torch.empty_like(rows).index_copy(0, order, rows)

    return tuple(
        by_id(rows, is_edge=part.is_edge)
        for rows, part in zip(reduction.reduce(groups, values), reduction.state, strict=True)
    )
