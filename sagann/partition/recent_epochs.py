"""Recent epochs: what an epoch with the present parts usually takes each worker, and how sure that is.

Other programs, and a quota that cuts one operation or another, make single epochs much longer, and hardly ever shorter. A mean follows each
such epoch, and its error does so even more, because it squares what is unusual. So the usual seconds are a median, and errors are computed from the
median of the deviations: they stay as they are while fewer than half of the epochs are unusual.

References:
    Rousseeuw and Croux, Alternatives to the median absolute deviation, Journal of the American Statistical Association 88, 1993:
    1.4826 times the median absolute deviation is the standard deviation of normal numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import pi, sqrt

import numpy as np

from sagann.graph.counting_sort import Array

# Number of epochs that are kept. A machine that changes is seen after four of them.
_KEPT = 7
# Standard deviation of normal numbers in median absolute deviations, and error of a median in errors of a mean.
_DEVIATIONS, _MEDIAN = 1.4826, sqrt(pi / 2)
# Errors count one epoch more than were measured, with this relative deviation, because two epochs may be equal by chance.
_ASSUMED = 0.1


@dataclass(frozen=True, kw_only=True, slots=True)
class RecentEpochs:
    """Seconds of the last epochs with the same parts. Frozen: every epoch makes a new one (:meth:`followed_by`).

    Example:
        >>> recent = RecentEpochs()
        >>> for seconds in (1.0, 3.0, 1.1):
        ...     recent = recent.followed_by({"gather": [seconds, 2.0]})
        >>> recent.count, recent.usual["gather"].tolist()
        (3, [1.1, 2.0])
    """

    seconds: Mapping[str, Array] = field(default_factory=dict)
    "float64 [epochs, workers] by kind of operation: seconds of each of the last epochs, at most 7. Callers must not modify it."

    @property
    def count(self) -> int:
        """Number of epochs that are kept."""
        return len(next(iter(self.seconds.values()), ()))

    def followed_by(self, seconds: Mapping[str, Sequence[float]]) -> RecentEpochs:
        """The epochs with one more, and without the oldest one if that is too many. Other kinds of operations begin anew.

        Args:
            seconds: seconds of each worker in the epoch, by kind of operation.
        """
        known = self.seconds if self.seconds.keys() == seconds.keys() else {}
        rows = {kind: np.array([found], dtype=np.float64) for kind, found in seconds.items()}
        return RecentEpochs(
            seconds={
                kind: np.concatenate([known[kind], row])[-_KEPT:] if known else row for kind, row in rows.items()
            }
        )

    @property
    def usual(self) -> dict[str, Array]:
        """Seconds that each kind of operation usually takes each worker [workers]: the median, of an even number the lower one of the middle."""
        return {kind: _median(found) for kind, found in self.seconds.items()}

    @property
    def errors(self) -> Array:
        """Relative error of the usual seconds of each worker's epoch, float64 [workers]. Errors of an epoch's pieces partly cancel."""
        deviations = _deviations(np.sum(list(self.seconds.values()), axis=0))
        count = self.count
        assumed = np.sqrt((count * deviations**2 + _ASSUMED**2) / (count + 1))
        return np.asarray(_MEDIAN * assumed / sqrt(count))

    @property
    def spread(self) -> float:
        """Standard deviation of the pieces between two exchanges, relative to their seconds: those of all kinds and workers together."""
        usual = np.stack(list(self.usual.values()))
        deviations = np.stack([_deviations(found) for found in self.seconds.values()])
        return float((deviations * usual).sum() / usual.sum()) if usual.any() else 0.0


def _median(seconds: Array) -> Array:
    return np.asarray(np.sort(seconds, axis=0)[(len(seconds) - 1) // 2])


def _deviations(seconds: Array) -> Array:
    """Relative standard deviation of each column, from the median of the deviations; 0 for a worker that does nothing."""
    usual = _median(seconds)
    absolute = _DEVIATIONS * np.median(abs(seconds - usual), axis=0)
    return np.divide(absolute, usual, out=np.zeros_like(usual), where=usual > 0)
