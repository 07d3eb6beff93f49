r"""Merge: how partial results of the same rows become one. The only place where this mathematics is written in PyTorch.

A part is what a pass returns for one output, computed from some of the edges. With sums :math:`a`, extrema
:math:`x` at edges :math:`e`, softmax means :math:`m`, largest scores :math:`t` and denominators :math:`w`:

====================  =======================================================================================
``sum``, ``total``    :math:`a = a_1 + a_2`
``max``, ``min``      the better :math:`x`; NaN is better than numbers; among equals the lower :math:`e`
``softmax``           :math:`t = \max(t_1, t_2)`, :math:`v_i = w_i e^{t_i - t}`, :math:`w = v_1 + v_2`,
                      :math:`m = (v_1 m_1 + v_2 m_2) / w`
====================  =======================================================================================

What no edge has reached is neutral: 0 for sums, (0, -1) for extrema, (0, -inf, 0) for softmax, which is also what
a row without edges has in the end. Where all scores are -inf the mean is NaN, the largest score is taken for the least
finite number, and the denominator is 0: such a part weighs nothing beside others. The largest score and the denominator
are never added up as logarithms: scores of 1e9 would round the denominator away.

References:
    Milakov and Gimelshein, Online normalizer calculation for softmax, 2018, Sec. 3.1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType

import torch
from torch import Tensor

NEUTRAL: Mapping[str, tuple[float, ...]] = MappingProxyType(
    {"sum": (0.0,), "total": (0.0,), "max": (0.0, -1), "min": (0.0, -1), "softmax": (0.0, -math.inf, 0.0)}
)
"What each tensor of a part holds before the first edge, by reduction."


def merge(reduce: str, into: Sequence[Tensor], part: Sequence[Tensor]) -> None:
    """Merge a part into another one of the same rows, in place.

    Args:
        reduce: a key of :data:`NEUTRAL`.
        into: [num_rows, ...] each; keep their dtypes.
        part: the same shapes.
    """
    if reduce in ("sum", "total"):
        into[0].add_(part[0])
    elif reduce == "softmax":
        _merge_softmax(*into, *part)
    else:
        _merge_extremum(reduce, *into, *part)


def _merge_extremum(reduce: str, best: Tensor, edge: Tensor, value: Tensor, where: Tensor) -> None:
    beyond = value > best if reduce == "max" else value < best
    equal = value == best
    if value.is_floating_point():
        isnan, known_nan = value.isnan(), best.isnan()
        beyond |= isnan & ~known_nan
        equal |= isnan & known_nan
    taken = (where >= 0) & ((edge < 0) | beyond | (equal & (where < edge)))
    best.copy_(torch.where(taken, value, best))
    edge.copy_(torch.where(taken, where, edge))


def _merge_softmax(mean: Tensor, top: Tensor, weight: Tensor, part: Tensor, peak: Tensor, share: Tensor) -> None:
    highest = torch.maximum(top, peak)
    # Rows without edges have -inf - -inf for an exponent.
    known = torch.where(weight == 0, 0, weight * torch.exp(top - highest))
    more = torch.where(share == 0, 0, share * torch.exp(peak - highest))
    together = known + more

    def weighted(rows: Tensor, weight: Tensor) -> Tensor:
        # What weighs nothing beside others may be 0 / 0.
        weight = _beside(weight, rows)
        return torch.where(weight == 0, 0, rows * weight)

    total = _beside(together, mean)
    mean.copy_(torch.where(total == 0, mean + part, (weighted(mean, known) + weighted(part, more)) / total))
    top.copy_(highest)
    weight.copy_(together)


def _beside(score: Tensor, rows: Tensor) -> Tensor:
    """A tensor of the scores' shape, which begins the rows', so that it broadcasts against them."""
    return score.reshape(*score.shape, *(1,) * (rows.ndim - score.ndim))
