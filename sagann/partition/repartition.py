"""Repartition: whether other parts, balanced by what has been learned, are worth moving rows and edges between the workers.

Other parts pay when the seconds that they save in the epochs to come exceed the seconds of the move, and when the share of an epoch that
they save exceeds both a stated share and twice its error, so that noise does not move parts to and fro. The share saved is
1 - (total cost / total speed) / (seconds of the slowest worker). So an error of a worker's seconds counts by the worker's share of all
speeds, and that of the slowest worker by the share of the others.

Parts of equal seconds are corrected twice. Noise decides which worker ends an epoch, and a vertex costs a slow worker more seconds than it
saves a fast one: if seconds deviate by a Gumbel distribution of relative scale g, the expected longest time is least where a worker's
seconds are in proportion to 1 + g log(speed), nearly speed^g. And if another worker is the slowest since the last move, that move went too
far, so the next one goes half the way.

Other programs, and a quota that cuts one operation or another, make single epochs much longer. So the usual seconds are a median, and
errors come from the median of the deviations: they stay as they are while fewer than half of the epochs are unusual.

References:
    Jia et al., ROC, MLSys 2020, Sec. 4: parts are computed anew in every epoch. We differ in that they stay where a move does not pay.
    McFadden, Conditional logit analysis of qualitative choice behavior, 1974: the largest of numbers with Gumbel deviations.
    Rousseeuw and Croux, Alternatives to the median absolute deviation, Journal of the American Statistical Association 88, 1993:
    1.4826 times the median absolute deviation is the standard deviation of normal numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import pi, sqrt

import numpy as np

from sagann.jit import Array
from sagann.partition.balance import balanced_bounds
from sagann.partition.cost_features import CostFeatures
from sagann.partition.cost_model import CostModel

# Number of epochs that are kept. A machine that changes is seen after four of them.
_KEPT = 7
# Standard deviation of normal numbers in median absolute deviations, and error of a median in errors of a mean.
_DEVIATIONS, _MEDIAN = 1.4826, sqrt(pi / 2)
# Errors count one epoch more than were measured, with this relative deviation, because two epochs may be equal by chance.
_ASSUMED = 0.1
# A gain that noise alone predicts is seldom as large as so many of its errors.
_ERRORS = 2.0
# Fewest epochs with the present parts that a decision to move is based on.
_FEWEST_EPOCHS = 2
# Scale of a Gumbel distribution in its standard deviations.
_GUMBEL = sqrt(6) / pi


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
    "float64 [epochs, workers] by kind of operation: seconds of each of the last epochs, at most 7."

    @property
    def count(self) -> int:
        """Number of epochs that are kept."""
        return len(next(iter(self.seconds.values()), ()))

    def followed_by(self, seconds: Mapping[str, Sequence[float]]) -> RecentEpochs:
        """The epochs with one more, and without the oldest one if that is too many. Other kinds of operations begin anew."""
        known = self.seconds if self.seconds.keys() == seconds.keys() else {}
        none = np.empty((0, len(next(iter(seconds.values()), ()))))
        rows = {kind: np.vstack([known.get(kind, none), found])[-_KEPT:] for kind, found in seconds.items()}
        return RecentEpochs(seconds=rows)

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


@dataclass(frozen=True, kw_only=True, slots=True)
class MoveCosts:
    """What it takes to move vertices between workers, and when that may pay."""

    vertex_bytes: int
    "Bytes that move with a vertex: its rows of features, labels and offsets."
    edge_bytes: int
    "Bytes that move with each in-edge of a vertex: its id and its edge data."
    bytes_per_s: float
    "Bytes per second that each worker sends, and receives at the same time."
    horizon_epochs: int
    "Number of epochs within which a move has to pay: at most those left in the run."
    fixed_s: float = 0.0
    "Seconds that any move takes, however little moves: parts are made anew, and the first epoch computes what earlier epochs had kept."
    least_gain: float = 0.02
    "Least share of an epoch's seconds that a move has to save, in [0, 1)."


@dataclass(frozen=True, kw_only=True, slots=True)
class Repartition:
    """A decision between the parts that workers have and balanced ones, with the numbers that decide."""

    moves: bool
    "Whether vertices move, because balanced parts pay. If not, workers keep their parts."
    bounds: tuple[int, ...]
    "Bounds of the balanced parts, or of parts half the way there, whether or not vertices move."
    slowest: int
    "Index of the worker that is predicted to be the slowest with the parts that workers have."
    epoch_s: float
    "Predicted seconds of an epoch with the parts that workers have: those of the slowest worker."
    new_epoch_s: float
    "Predicted seconds of an epoch with the parts of ``bounds``."
    needed_gain: float
    "Share of an epoch's seconds that the move has to save, so that noise moves nothing."
    moved_bytes: int
    "Bytes that all workers together send to others."
    move_s: float
    "Seconds of the move: those of the worker that sends or receives most, and those that any move takes."
    horizon_epochs: int
    "Number of epochs within which the move has to pay."

    @property
    def gain(self) -> float:
        """Share of an epoch's seconds that the new parts save."""
        return 1 - self.new_epoch_s / self.epoch_s if self.epoch_s else 0.0

    def __str__(self) -> str:
        """The decision in words, with its numbers."""
        saved_s = self.horizon_epochs * (self.epoch_s - self.new_epoch_s)
        return (
            f"{'move' if self.moves else 'stay'}: new parts take {self.new_epoch_s:.4g} s per epoch instead of "
            f"{self.epoch_s:.4g} s, which saves {self.gain:.1%} (more than {self.needed_gain:.1%} is needed) and {saved_s:.4g} s in "
            f"{self.horizon_epochs} epochs; moving {self.moved_bytes / 1e6:.4g} MB takes {self.move_s:.4g} s"
        )


def decide_repartition(
    bounds: Sequence[int],
    features: CostFeatures,
    operations: Mapping[str, int],
    model: CostModel,
    costs: MoveCosts,
    recent: RecentEpochs,
    *,
    before: Repartition | None = None,
) -> Repartition:
    """Decide after an epoch whether workers, which have the parts of ``bounds``, should move to balanced parts.

    ``recent`` has at least one epoch with these parts. ``before`` is the decision to move to them; None if workers began with them.
    """
    costs_before = model.part_costs(features, operations)
    speeds = np.array(model.speeds_of(len(bounds) - 1))
    balanced = balanced_bounds(costs_before, (speeds ** (1 + _GUMBEL * recent.spread)).tolist())
    seconds = np.diff(costs_before[list(bounds)]) / speeds
    slowest = int(seconds.argmax())
    if before is not None and before.slowest != slowest:
        balanced = tuple((now + then) // 2 for now, then in zip(bounds, balanced, strict=True))
    epoch_s, new_epoch_s = float(seconds.max()), float((np.diff(costs_before[list(balanced)]) / speeds).max())
    moved_bytes, most_bytes = _bytes_to_move(bounds, balanced, features, costs)
    # Of a worker without a part no seconds were measured.
    errors = recent.errors * (np.diff(bounds) > 0)
    needed_gain = max(costs.least_gain, _ERRORS * _error_of_gain(errors, speeds, slowest))
    move_s = costs.fixed_s + most_bytes / costs.bytes_per_s
    saved_s = epoch_s - new_epoch_s
    pays = saved_s > needed_gain * epoch_s and costs.horizon_epochs * saved_s > move_s
    return Repartition(
        moves=pays and recent.count >= _FEWEST_EPOCHS,
        bounds=balanced,
        slowest=slowest,
        epoch_s=epoch_s,
        new_epoch_s=new_epoch_s,
        needed_gain=needed_gain,
        moved_bytes=moved_bytes,
        move_s=move_s,
        horizon_epochs=costs.horizon_epochs,
    )


def _error_of_gain(errors: Array, speeds: Array, slowest: int) -> float:
    """Error of the share of an epoch that balanced parts save, at most, from the relative errors of the workers' seconds [workers]."""
    counts = speeds / speeds.sum()
    counts[slowest] -= 1
    return float(np.linalg.norm(counts * errors))


def _bytes_to_move(
    before: Sequence[int], after: Sequence[int], features: CostFeatures, costs: MoveCosts
) -> tuple[int, int]:
    """Bytes that all workers send together, and the most that one worker sends or receives."""
    edges = features.sums[:, 0]
    old, new = (
        np.array(bounds) * costs.vertex_bytes + edges[list(bounds)] * costs.edge_bytes for bounds in (before, after)
    )
    kept = (np.minimum(old[1:], new[1:]) - np.maximum(old[:-1], new[:-1])).clip(min=0)
    sent, received = np.diff(old) - kept, np.diff(new) - kept
    return int(sent.sum()), int(max(sent.max(), received.max()))
