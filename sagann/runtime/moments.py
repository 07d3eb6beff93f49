"""Moments: means and variances of rows that come interval by interval, or lie with several workers, as a BatchNorm computes them of all rows.

Rows of edges do not come themselves. Each vertex has gathered the moments of its in-edges: the sum of their rows and their spread (the sum
of their squared deviations from their mean), and their number (:data:`sagann.kernels.accumulators.MOMENTS`). Moments of groups merge
exactly, so the means are those of the edges' rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from sagann.kernels.edge.builder import arithmetic_dtype

AddUp = Callable[[Tensor], Tensor]
"Gives the sum of one tensor [n] of each worker."


@dataclass(frozen=True, kw_only=True, slots=True)
class Groups:
    """Groups of rows, as vertices have gathered their in-edges'."""

    rows: Tensor
    "What each group has gathered, [n, F]: sums and spreads of rows, then the number of rows."
    shape: tuple[int, ...]
    "Shape of one row of a group: channels first."

    @property
    def sums(self) -> Tensor:
        """The sums of the rows, [n, *shape], in the memory of ``rows``."""
        return self._halves()[0]

    @property
    def spreads(self) -> Tensor:
        """The sums of the rows' squared deviations from their mean, [n, *shape], in the memory of ``rows``."""
        return self._halves()[1]

    @property
    def counts(self) -> Tensor:
        return self.rows[:, -1].view(-1, *[1] * len(self.shape))

    def means(self) -> Tensor:
        return self.sums / self.counts.clamp(min=1)

    def _halves(self) -> tuple[Tensor, ...]:
        return self.rows[:, :-1].unflatten(1, (*self.shape[:-1], 2 * self.shape[-1])).chunk(2, -1)


class Moments:
    """Means and variances by channel, the second dimension of rows.

    Args:
        like: rows of the form that is added; none of them is read.
        eps: number that is added to the variances, so that no standard deviation is 0.

    References:
        Chan, Golub, LeVeque, Updating Formulae and a Pairwise Algorithm for Computing Sample Variances, 1979.

    Example:
        >>> rows = torch.arange(8.0).reshape(4, 2)
        >>> moments = Moments(rows, eps=1e-5)
        >>> moments.add(rows[:3])
        >>> moments.add(rows[3:])
        >>> torch.allclose((rows - moments.shared()[0]) * moments.shared()[1], torch.nn.BatchNorm1d(2)(rows))
        True
    """

    def __init__(self, like: Tensor, eps: float) -> None:
        self.eps = eps
        self.count = 0
        "Numbers of each channel so far."
        self._dtype = arithmetic_dtype(like.dtype)
        self._mean = torch.zeros(like.shape[1], dtype=torch.float64, device=like.device)
        self._squares = torch.zeros_like(self._mean)
        "Sum of squared differences to the mean."

    def add(self, rows: Tensor) -> None:
        if not len(rows):
            return
        wide, others = rows.to(self._dtype), _others(rows)
        added = rows.numel() // rows.shape[1]
        # In this way five times as fast as by torch.var_mean. What the rounding of the first mean leaves is added to it.
        first = wide.mean(others)
        centred = wide - first.view(_channels(rows))
        left = centred.mean(others).double()
        self._merge(first.double() + left, centred.square_().sum(others).double() - added * left**2, added)

    def add_groups(self, groups: Groups) -> None:
        """Add the rows of groups, of which the moments are known."""
        others, sums = _others(groups.sums), groups.sums
        added = round(float(groups.counts.double().sum())) * sums[:1, 0].numel()
        if not added:
            return
        first = sums.sum(others) / added
        centred = groups.means().sub_(first.view(_channels(sums)))
        weighted = centred * groups.counts
        left = weighted.sum(others).double() / added
        squares = weighted.mul_(centred).add_(groups.spreads).sum(others).double() - added * left**2
        self._merge(first.double() + left, squares, added)

    def _merge(self, mean: Tensor, squares: Tensor, added: int) -> None:
        """Add rows by their mean, the sum of their squared differences to it, and the numbers of each channel."""
        total = self.count + added
        difference = mean - self._mean
        self._squares = self._squares + squares + difference**2 * (self.count * added / total)
        self._mean = self._mean + difference * (added / total)
        self.count = total

    def tensors(self) -> dict[str, Tensor]:
        return {"mean": self._mean, "squares": self._squares}

    def of(self, tensors: Mapping[str, Tensor]) -> Moments:
        """The moments with other tensors."""
        found = copy(self)
        found._mean, found._squares = tensors["mean"], tensors["squares"]
        return found

    def add_moments(self, other: Moments) -> None:
        """Add the rows of others, on the same device."""
        if other.count:
            self._merge(other._mean, other._squares, other.count)

    def merge(self, add_up: AddUp) -> None:
        """Add the rows of all workers, each of which calls this at the same time."""
        counted = add_up(torch.cat([self._mean.new_tensor([self.count]), self.count * self._mean]))
        mean = counted[1:] / counted[0].clamp(min=1)
        self._squares = add_up(self._squares + self.count * (self._mean - mean) ** 2)
        self._mean, self.count = mean, int(counted[0])

    def shared(self) -> Tensor:
        """The means, and the reciprocals of the standard deviations, [2, C]."""
        return torch.stack([self._mean, self._deviations()]).to(self._dtype)

    def _deviations(self) -> Tensor:
        found: Tensor = (self._squares / max(self.count, 1) + self.eps).rsqrt()
        return found

    def gradient(self, rows: Tensor, of_shared: Tensor) -> Tensor:
        """The gradient of the rows through the means, from that of :meth:`shared`."""
        of_mean, of_deviation = of_shared.double()
        mean, factor, added = (
            each.to(self._dtype).view(_channels(rows))
            for each in (self._mean, self._of_squares(of_deviation), of_mean / max(self.count, 1))
        )
        return (rows.to(self._dtype) - mean).mul_(factor).add_(added)

    def gradient_of_groups(self, groups: Groups, of_shared: Tensor) -> Tensor:
        """The gradient of what the groups have gathered, likewise: that of the sums is the gradient of a row that is their mean."""
        grad = torch.zeros_like(groups.rows)
        parts = replace(groups, rows=grad)
        parts.sums.copy_(self.gradient(groups.means(), of_shared))
        parts.spreads.copy_((self._of_squares(of_shared[1]) / 2).to(self._dtype).view(_channels(parts.sums)))
        return grad

    def _of_squares(self, of_deviation: Tensor) -> Tensor:
        """Twice the gradient of the sum of squared differences, from that of the reciprocals of the standard deviations."""
        return -(self._deviations() ** 3) * of_deviation.double() / max(self.count, 1)

    def update(self, norm: Any) -> None:
        """Move a BatchNorm's running means towards these, as its forward in training does."""
        if norm.num_batches_tracked is not None:
            norm.num_batches_tracked.add_(1)
        if norm.running_mean is None or not self.count:
            return
        weight = norm.momentum if norm.momentum is not None else 1.0 / float(norm.num_batches_tracked)
        unbiased = self._squares / (self.count - 1)
        for running, found in ((norm.running_mean, self._mean), (norm.running_var, unbiased)):
            running.lerp_(found.to(running.dtype), weight)


def _others(rows: Tensor) -> list[int]:
    """The dimensions over which means are computed."""
    return [0, *range(2, rows.ndim)]


def _channels(rows: Tensor) -> list[int]:
    return [rows.shape[1]] + [1] * (rows.ndim - 2)
