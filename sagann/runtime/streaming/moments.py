"""Moments: means and variances of rows that come interval by interval, as a BatchNorm computes them of all rows at once."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sagann.kernels.edge.builder import arithmetic_dtype


class Moments:
    """Means and variances by channel, the second dimension.

    References:
        Chan, Golub, LeVeque, Updating Formulae and a Pairwise Algorithm for Computing Sample Variances, 1979.

    Example:
        >>> rows = torch.arange(8.0).reshape(4, 2)
        >>> moments = Moments(eps=0.0)
        >>> moments.add(rows[:3])
        >>> moments.add(rows[3:])
        >>> torch.allclose((rows - moments.shared()[0]) * moments.shared()[1], torch.nn.BatchNorm1d(2, eps=0.0)(rows))
        True
    """

    def __init__(self, eps: float) -> None:
        self.eps = eps
        self.count = 0
        "Numbers of each channel so far."
        self._mean: Any = 0.0
        self._squares: Any = 0.0
        "Sum of squared differences to the mean."

    def add(self, rows: Tensor) -> None:
        """Add the rows of an interval, [n, C, ...]."""
        wide = rows.to(arithmetic_dtype(rows.dtype))
        variance, mean = torch.var_mean(wide, _others(rows), correction=0)
        added = rows.numel() // rows.shape[1]
        total = self.count + added
        difference = mean.double() - self._mean
        self._squares = self._squares + variance.double() * added + difference**2 * (self.count * added / total)
        self._mean = self._mean + difference * (added / total)
        self.count = total
        self._dtype = wide.dtype

    def shared(self) -> Tensor:
        """The means, and the reciprocals of the standard deviations, [2, C], as stages read them."""
        return torch.stack([self._mean, self._deviations()]).to(self._dtype)

    def _deviations(self) -> Tensor:
        found: Tensor = (self._squares / self.count + self.eps).rsqrt()
        return found

    def gradient(self, rows: Tensor, of_shared: Tensor) -> Tensor:
        """The gradient of the rows through the means, from that of :meth:`shared`."""
        of_mean, of_deviation = of_shared.double()
        of_squares = -(self._deviations() ** 3) * of_deviation / self.count
        shape = [rows.shape[1]] + [1] * (rows.ndim - 2)
        mean, factor, added = (
            each.to(self._dtype).view(shape) for each in (self._mean, of_squares, of_mean / self.count)
        )
        return torch.addcmul(added, rows.to(self._dtype) - mean, factor)

    def update(self, norm: Any) -> None:
        """Move a BatchNorm's running means towards these, as its forward in training does."""
        if norm.num_batches_tracked is not None:
            norm.num_batches_tracked.add_(1)
        if norm.running_mean is None:
            return
        weight = norm.momentum if norm.momentum is not None else 1.0 / float(norm.num_batches_tracked)
        unbiased = self._squares / (self.count - 1)
        for running, found in ((norm.running_mean, self._mean), (norm.running_var, unbiased)):
            running.lerp_(found.to(running.dtype), weight)


def _others(rows: Tensor) -> list[int]:
    """The dimensions over which means are computed."""
    return [0, *range(2, rows.ndim)]
