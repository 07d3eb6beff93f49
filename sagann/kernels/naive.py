"""Scatter and gather in plain PyTorch, with a row per edge: the twins that every faster kernel is compared with.

A gather takes edge rows in CSC order, [num_edges, ...], and returns one row per destination, [num_dst, ...]. A destination
without in-edges gets 0 (a product 1), as in PyG. NaN and infinity propagate as in PyTorch. float16 and bfloat16 rows are
accumulated in float32 and cast back. Where several edges attain a maximum, the first edge gets the gradient. Gradients have
gradients. Kernels have no scatter of their own: passes over the edges load vertices' rows where the rows lie.

A sum of very many terms in float32 would drift. Rows with many edges are summed in pieces, and the pieces in float64.

References:
    Ma et al., NGra, 2018, Sec. 2.1 and 3.3: Scatter; sum, max and concatenation. User-defined accumulators are not offered.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from sagann.errors import InputError
from sagann.graph.topology import Topology
from sagann.kernels.edge.work import MOST_TERMS

LEAST_VARIANCE = 1e-5
"A standard deviation is 0 where the variance is not larger."
HALF = (torch.float16, torch.bfloat16)


def scatter_src(topology: Topology, x: Tensor) -> Tensor:
    """Copy each edge's source row: [num_src, ...] -> [num_edges, ...]."""
    return _scatter(topology, x, "src")


def scatter_dst(topology: Topology, x: Tensor) -> Tensor:
    """Copy each edge's destination row: [num_src or num_dst, ...] -> [num_edges, ...]."""
    return _scatter(topology, x, "dst")


def by_source(topology: Topology) -> tuple[Topology, Tensor]:
    """The edges with their ends exchanged, grouped by source, and the position of each in CSC order."""
    csr, num_src = topology.csr(), max(topology.num_src, topology.num_dst)

    def exchanged() -> Topology:
        found = Topology(indptr=csr.indptr, indices=csr.indices, num_src=num_src, validate=False)
        found.derived(("has hubs", "dst"), lambda: has_hubs(topology, "src"))
        return found

    # Kept with what is found of its degrees, for which the host waits for a device.
    return topology.derived("exchanged", exchanged), csr.edge_ids.long()


def _scatter(topology: Topology, x: Tensor, at: str) -> Tensor:
    # PyTorch's gradient of index_select runs in parallel for int64 ids only.
    ends = (topology.indices if at == "src" else topology.edge_dst()).long()
    if not torch.is_grad_enabled() or not has_hubs(topology, at):
        return x.index_select(0, ends)
    scattered: Tensor = _Scatter.apply(x, ends, topology, at)  # type: ignore[no-untyped-call]
    return scattered


def has_hubs(topology: Topology, at: str) -> bool:
    """Whether a vertex at "dst" or "src" has more edges than are summed one after the other; found once."""

    def found() -> bool:
        degrees = topology.out_degrees() if at == "src" else topology.in_degrees()
        # A few edges need no look at a device.
        return topology.num_edges > 2 * MOST_TERMS and int(degrees.max()) > 2 * MOST_TERMS

    has: bool = topology.derived(("has hubs", at), found)
    return has


class _Scatter(torch.autograd.Function):
    """``torch.index_select``, whose own gradient adds up the edges of a vertex one after the other."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, ends: Tensor, topology: Topology, at: str) -> Tensor:
        return x.index_select(0, ends)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Topology, str], output: Tensor) -> None:
        ctx.num_rows, (ctx.topology, ctx.at) = len(inputs[0]), inputs[2:]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        topology = ctx.topology
        if ctx.at == "src":
            topology, order = by_source(topology)
            grad = grad.index_select(0, order)
        summed = gather_sum(topology, grad)
        rest = summed.new_zeros(ctx.num_rows - len(summed), *summed.shape[1:])
        return torch.cat([summed, rest]), None, None, None


def gather_sum(topology: Topology, values: Tensor) -> Tensor:
    """Sum of the in-edges' rows."""
    return _in_float32(lambda rows: _segment_sum(topology, rows), values)


def gather_mean(topology: Topology, values: Tensor) -> Tensor:
    """Mean of the in-edges' rows."""
    degrees = topology.in_degrees().clamp(min=1)

    def mean(rows: Tensor) -> Tensor:
        return _segment_sum(topology, rows) / columns(degrees.to(rows.dtype), rows.ndim)

    return _in_float32(mean, values)


def gather_max(topology: Topology, values: Tensor) -> Tensor:
    """Largest of the in-edges' rows, feature by feature."""
    return gather_extremum(topology, values, "max")[0]


def gather_min(topology: Topology, values: Tensor) -> Tensor:
    """Smallest of the in-edges' rows, feature by feature."""
    return gather_extremum(topology, values, "min")[0]


def gather_var(topology: Topology, values: Tensor) -> Tensor:
    """Variance of the in-edges' rows, over all of them."""
    return _in_float32(lambda rows: gather_mean(topology, _deviations(topology, rows).square()), values)


def gather_spread(topology: Topology, values: Tensor) -> Tensor:
    """Sum of the squared deviations of the in-edges' rows from their mean."""
    return _in_float32(lambda rows: gather_sum(topology, _deviations(topology, rows).square()), values)


def _deviations(topology: Topology, rows: Tensor) -> Tensor:
    """The rows of the edges less the mean of the in-edges of their destination."""
    return rows - scatter_dst(topology, gather_mean(topology, rows))


def gather_std(topology: Topology, values: Tensor) -> Tensor:
    """Standard deviation of the in-edges' rows; 0, and without gradient, up to :data:`LEAST_VARIANCE`, as in PyG."""

    def deviation(rows: Tensor) -> Tensor:
        found = gather_var(topology, rows).clamp(min=LEAST_VARIANCE).sqrt()
        return found.masked_fill(found <= math.sqrt(LEAST_VARIANCE), 0)

    return _in_float32(deviation, values)


def gather_mul(topology: Topology, values: Tensor) -> Tensor:
    """Product of the in-edges' rows; 1 without in-edges, as in PyG."""

    def product(rows: Tensor) -> Tensor:
        index = columns(topology.edge_dst().long(), rows.ndim).expand_as(rows)
        ones = rows.new_ones(topology.num_dst, *rows.shape[1:])
        return ones.scatter_reduce(0, index, rows, "prod")

    return _in_float32(product, values)


def gather_extremum(topology: Topology, values: Tensor, reduce: str) -> tuple[Tensor, Tensor]:
    """Largest ("max") or smallest ("min") of the in-edges' rows, and the first edge that attains it: [num_dst, ...] each.

    Without in-edges they are 0 and -1.
    """
    detached = values.detach()
    best = _extremum(topology, detached, "amax" if reduce == "max" else "amin")
    at_dst = best.index_select(0, topology.edge_dst())
    attained = (detached == at_dst) | (at_dst.isnan() & detached.isnan())
    num_edges = topology.num_edges
    ids = columns(torch.arange(num_edges, device=values.device), values.ndim)
    first = torch.where(attained, ids, num_edges)
    index = columns(topology.edge_dst().long(), values.ndim).expand_as(first)
    edge = torch.full(best.shape, num_edges, dtype=torch.int64, device=values.device)
    edge = edge.scatter_reduce(0, index, first, "amin")
    isolated = edge == num_edges
    if num_edges == 0:
        return best + values.sum(), edge - 1
    picked = values.gather(0, edge.masked_fill(isolated, 0)).masked_fill(isolated, 0)
    return picked, edge.masked_fill(isolated, -1)


def gather_denominator(topology: Topology, score: Tensor) -> tuple[Tensor, Tensor]:
    r"""The softmax's largest score :math:`t` and denominator :math:`\sum_e \exp(s_e - t)`, not differentiable.

    Two tensors are exact for scores of any size. A log-sum-exp would round the logarithm away beside a large score. Both are
    float32 or float64. Without in-edges they are -inf and 0; where all scores are -inf, the least finite number and 0.
    """
    score = score.detach().float() if score.dtype in HALF else score.detach()
    shift = _extremum(topology, score, "amax").clamp(min=torch.finfo(score.dtype).min)
    total = _segment_sum(topology, torch.exp(score - shift.index_select(0, topology.edge_dst())))
    return shift.masked_fill(columns(topology.in_degrees() == 0, shift.ndim), -torch.inf), total


def gather_softmax(topology: Topology, score: Tensor, value: Tensor) -> Tensor:
    r"""Softmax-weighted sum: :math:`\sum_e \frac{\exp s_e}{\sum_{e'} \exp s_{e'}} v_e` over the in-edges.

    The score, [num_edges] or [num_edges, H], has the first dimensions of the value, [num_edges, F] or [num_edges, H, D].
    """

    def softmax(score: Tensor, value: Tensor) -> Tensor:
        # The shift cancels out of the result, so its gradient is left out as well.
        shift = _extremum(topology, score.detach(), "amax")
        weight = torch.exp(score - shift.index_select(0, topology.edge_dst()))
        total = _segment_sum(topology, weight)
        accum = _segment_sum(topology, columns(weight, value.ndim) * value)
        # Only an isolated destination has total 0 (elsewhere the largest term is 1), and its accum is 0 too.
        isolated = columns(topology.in_degrees() == 0, total.ndim)
        return accum / columns(total.masked_fill(isolated, 1), accum.ndim)

    return _in_float32(softmax, score, value).to(value.dtype)


def gather_concat(topology: Topology, values: Tensor, max_degree: int) -> Tensor:
    """The in-edges' rows side by side in edge order, zero-padded: [num_edges, F] -> [num_dst, max_degree * F]."""
    slots = concat_slots(topology, max_degree)
    padded = values.new_zeros(topology.num_dst * max_degree, *values.shape[1:])
    return padded.index_copy(0, slots, values).reshape(topology.num_dst, max_degree * math.prod(values.shape[1:]))


def concat_slots(topology: Topology, max_degree: int) -> Tensor:
    """The place of each edge's row among the ``num_dst * max_degree`` padded rows: int64 [num_edges], ascending."""
    degrees = topology.in_degrees()
    if len(degrees) and int(degrees.max()) > max_degree:
        vertex = int(degrees.argmax())
        raise InputError(
            f"too many in-edges for the concat accumulator: {int(degrees[vertex])}, max_degree is {max_degree} "
            f"(in destination vertex {vertex})",
            hint="Raise max_degree, or keep at most that many in-edges per vertex.",
        )
    # In-edges of a destination take its first slots, so slots ascend as edges do.
    taken = torch.arange(max_degree, device=topology.device) < degrees.unsqueeze(1)
    return taken.flatten().nonzero().squeeze(1)


def _in_float32(reduce: Callable[..., Tensor], *rows: Tensor) -> Tensor:
    """Run ``reduce`` with half-precision rows in float32, and cast the result to the type of the last rows."""
    reduced = reduce(*(tensor.float() if tensor.dtype in HALF else tensor for tensor in rows))
    return reduced.to(rows[-1].dtype) if rows[-1].dtype in HALF else reduced


def _segment_sum(topology: Topology, rows: Tensor) -> Tensor:
    # In CSC order each destination is one segment: no atomics, and always the same order.
    if rows.numel() == 0:
        return rows.new_zeros(topology.num_dst, *rows.shape[1:]) + rows.sum()
    if not torch.is_grad_enabled():
        return _summed(rows, topology)
    summed: Tensor = _SegmentSum.apply(rows, topology)  # type: ignore[no-untyped-call]
    return summed


def _summed(rows: Tensor, topology: Topology) -> Tensor:
    pieces: tuple[Tensor, Tensor] | None = topology.derived("pieces", lambda: _pieces(topology))
    if pieces is None:
        return torch.segment_reduce(rows, "sum", offsets=topology.indptr, axis=0)
    sums = torch.segment_reduce(rows, "sum", offsets=pieces[0], axis=0)
    return torch.segment_reduce(sums.double(), "sum", offsets=pieces[1], axis=0).to(rows.dtype)


def _pieces(topology: Topology) -> tuple[Tensor, Tensor] | None:
    """Offsets of pieces of in-edges, and the offsets of each destination's pieces; None where no destination has many."""
    if not has_hubs(topology, "dst"):
        return None
    counts = (topology.in_degrees() + MOST_TERMS - 1) // MOST_TERMS
    of_row = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
    # As many as there can be, so that the host does not ask a device how many there are; the last ones are empty.
    piece = torch.arange(topology.num_dst + topology.num_edges // MOST_TERMS, device=counts.device)
    row = torch.searchsorted(of_row, piece, right=True) - 1
    begins = topology.indptr[row] + torch.where(row < topology.num_dst, (piece - of_row[row]) * MOST_TERMS, 0)
    return torch.cat([begins, topology.indptr[-1:]]), of_row


class _SegmentSum(torch.autograd.Function):
    """``torch.segment_reduce``, whose own gradient has no gradient."""

    generate_vmap_rule = True

    @staticmethod
    def forward(rows: Tensor, topology: Topology) -> Tensor:
        return _summed(rows, topology)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Topology], output: Tensor) -> None:
        ctx.topology = inputs[1]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return scatter_dst(ctx.topology, grad), None


def _extremum(topology: Topology, values: Tensor, reduce: str) -> Tensor:
    out = values.new_zeros(topology.num_dst, *values.shape[1:])
    index = columns(topology.edge_dst().long(), values.ndim).expand_as(values)
    return out.scatter_reduce(0, index, values, reduce, include_self=False)


def columns(rows: Tensor, ndim: int) -> Tensor:
    """Append dimensions of size 1 up to ``ndim``, to broadcast against rows of that many dimensions."""
    return rows.reshape(rows.shape + (1,) * (ndim - rows.ndim))
