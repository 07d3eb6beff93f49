r"""Merge: how partial results of the same rows become one. The only place where this mathematics is written in PyTorch.

A part is what a pass returns for one output, computed from some of the edges. With sums :math:`a`, extrema
:math:`x` at edges :math:`e`, softmax means :math:`m` and logarithms of denominators :math:`l`:

====================  =======================================================================================
``sum``, ``total``    :math:`a = a_1 + a_2`
``max``, ``min``      the better :math:`x`; NaN is better than numbers; among equals the lower :math:`e`
``softmax``           :math:`l = \log(e^{l_1} + e^{l_2})`, :math:`m = e^{l_1 - l} m_1 + e^{l_2 - l} m_2`
====================  =======================================================================================

What no edge has reached is neutral: 0 for sums, (0, -1) for extrema, (0, -inf) for softmax, which is also what a
row without edges has in the end. Where all scores are -inf the mean is NaN and weighs nothing beside others.

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
    {"sum": (0.0,), "total": (0.0,), "max": (0.0, -1), "min": (0.0, -1), "softmax": (0.0, -math.inf)}
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


def _merge_softmax(mean: Tensor, log_weight: Tensor, value: Tensor, log_share: Tensor) -> None:
    together = torch.logaddexp(log_weight, log_share)
    none = together == -torch.inf

    def weighted(rows: Tensor, log: Tensor) -> Tensor:
        share = torch.where(none, 1, torch.exp(log - together))
        # What weighs nothing beside others may be 0 / 0; the product of weight 0 and infinity stays NaN.
        absent = _beside((log == -torch.inf) & ~none, rows)
        return torch.where(absent, 0, rows * _beside(share, rows))

    mean.copy_(weighted(mean, log_weight) + weighted(value, log_share))
    log_weight.copy_(together)


def _beside(score: Tensor, rows: Tensor) -> Tensor:
    """A tensor of the scores' shape, which begins the rows', so that it broadcasts against them."""
    return score.reshape(*score.shape, *(1,) * (rows.ndim - score.ndim))
