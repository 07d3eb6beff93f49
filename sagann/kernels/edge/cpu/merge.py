"""Put together the partial results of rows that were cut into several work items, in the items' order."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from sagann.kernels.edge.function import EdgeFunction
from sagann.kernels.edge.work import Work


def merge_slots(function: EdgeFunction, outs: Sequence[Tensor], slots: Sequence[Tensor], work: Work) -> None:
    """Write the rows of ``work.split_rows`` to ``outs``.

    Args:
        function: says how each result is reduced.
        outs: the results, [num_rows, ...] each.
        slots: the partial results, [num_slots, ...] each; those of a row side by side.
        work: the cut.
    """
    bounds = work.split_indptr.tolist()
    for row, first, last in zip(work.split_rows.tolist(), bounds[:-1], bounds[1:], strict=True):
        result = 0
        for output in function.outputs:
            width = 2 if output.reduce in ("max", "min", "softmax") else 1
            if output.reduce not in ("edge", "total"):
                parts = [slot[first:last] for slot in slots[result : result + width]]
                for out, merged in zip(outs[result : result + width], _merge(output.reduce, parts), strict=True):
                    out[row] = merged
            result += width


def _merge(reduce: str, parts: Sequence[Tensor]) -> tuple[Tensor, ...]:
    if reduce == "sum":
        total = parts[0][0].clone()
        for part in parts[0][1:]:
            total += part
        return (total,)
    if reduce in ("max", "min"):
        best, edge = parts[0][0], parts[1][0]
        for value, where in zip(parts[0][1:], parts[1][1:], strict=True):
            beyond = value > best if reduce == "max" else value < best
            beyond |= value.isnan() & ~best.isnan()
            best, edge = torch.where(beyond, value, best), torch.where(beyond, where, edge)
        return best, edge
    means, log_weights = parts
    log_weight = torch.logsumexp(log_weights, 0)
    share = torch.exp(log_weights - log_weight)
    share = share.reshape(*share.shape, *(1,) * (means.ndim - share.ndim))
    # A piece whose scores are all -inf weighs nothing beside others, and its mean is 0 / 0.
    means = torch.where(share == 0, torch.zeros_like(means), means)
    return (means * share).sum(0), log_weight
