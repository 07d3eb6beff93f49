"""The cost model: seconds of an operation on a part of the graph, learned while training from the seconds of every epoch and worker.

An operation of kind k on a part with features x (:data:`sagann.partition.FEATURES`) takes ``weights[k] @ x / speed`` seconds, where
no weight is negative and the speed is that of the worker. Weights and speeds minimise the sum over all measurements of
(predicted - measured)^2 / measured: a longer measurement counts more, but not by so much that one outlier decides. A measurement
counts less with every later epoch, by a constant factor, and by a smaller one after an epoch that the model predicted badly, by the
measure of how badly it fits those before. So the model follows a machine that changes, and averages noise while the machine stays the same.

Only sums over the measurements are kept, so an update takes the same time after any number of epochs. For given speeds the best
weights are a problem of non-negative least squares for each kind; for given weights the best speed of each worker has a formula. The two
alternate, speeds first.

Doubling all speeds and weights changes no prediction, so the mean speed is 1. A part that took long may have costly features or a slow
worker; parts that move between workers, and several kinds, tell the two apart. A worker without a part is not measured: what was measured
of it counts no longer, and its speed fades towards 1, so it is given a part again after a while. Features may be proportional to one
another on all parts that were measured: a small penalty keeps weights near those of the epoch before, at first 0, in all directions in
which the measurements say nothing.

References:
    Jia et al., ROC, MLSys 2020, Sec. 4.1. We differ in that weights are not negative, that workers have speeds, that older
    measurements count less, and that squared errors are divided by the seconds measured. Fortescue, Kershenbaum and Ydstie,
    Implementation of self-tuning regulators with variable forgetting factors, Automatica 17(6), 1981: forgetting by the error of
    the prediction.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import sqrt
from typing import Any

import numpy as np

from sagann.jit import Array
from sagann.partition.cost_features import FEATURES, CostFeatures

# Size of the penalty relative to the measurements: far below their noise, far above rounding errors.
_PENALTY = 1e-4
# Relative error of an epoch's prediction that halves the factor of forgetting, at least, and in errors of the fit: well above the noise of
# measurements. The fourth power hardly changes the factor for half this error, and forgets nearly everything for three times this error.
_SURPRISE, _SURPRISING_ERRORS = 0.15, 3.0
# Power that the speed of a worker is raised to in an epoch in which it is not measured: of a tenth, a fifth is left after 7 epochs, half after 24.
_FADING = 0.95
# Most alternations in an update, which ends once no speed changes by more than this share. The next update continues where this one ends.
_ALTERNATIONS, _STEADY = 20, 1e-5
# Most seconds that a prediction is taken to be off, so that powers do not overflow.
_MOST_OFF_S = 1e50


@dataclass(frozen=True, kw_only=True, slots=True)
class Measurement:
    """The seconds that an operation took on a worker's part in an epoch."""

    kind: str
    'Name of the kind of operation, for example "gather, layer 0". Each kind has weights of its own.'
    worker: int
    features: Sequence[float]
    "Features of the worker's part (:meth:`sagann.partition.CostFeatures.of_part`)."
    seconds: float
    "Seconds that the operation took, or usually takes (:class:`sagann.partition.RecentEpochs`). A positive number."


@dataclass(frozen=True, kw_only=True, slots=True)
class LearnedKind:
    """What is known of a kind of operation: its weights, and sums over its measurements."""

    weights: Array
    "float64 [5], none negative: seconds for each unit of a feature on a worker of speed 1."
    sums: Array
    "float64 [workers, 6, 6]: sums of outer(z, z) / seconds, for z the features x of a part and, last, its seconds."

    @classmethod
    def unknown(cls) -> LearnedKind:
        """A kind without measurements."""
        size = len(FEATURES)
        return cls(weights=np.zeros(size), sums=np.zeros((0, size + 1, size + 1)))

    @property
    def seconds(self) -> Array:
        """Sums of seconds [workers]."""
        return self.sums[:, -1, -1]

    def updated(self, measurements: Iterable[Measurement], forgetting: Array) -> LearnedKind:
        """The kind with these measurements, after the sums of each worker are multiplied by its ``forgetting`` [workers]. The weights stay."""
        more = len(forgetting) - len(self.sums)
        sums = np.pad(self.sums, [(0, more), (0, 0), (0, 0)]) * forgetting[:, np.newaxis, np.newaxis]
        for measurement in measurements:
            z = np.array([*measurement.features, measurement.seconds], dtype=np.float64)
            sums[measurement.worker] += np.outer(z, z) / measurement.seconds
        return replace(self, sums=sums)

    def best_weights(self, speeds: Array, before: Array) -> Array:
        """The best weights for given speeds, near those before where measurements do not decide."""
        gram = np.einsum("w,wij->ij", speeds**-2, self.sums[:, :-1, :-1])
        diagonal = gram.diagonal()
        # A feature that is 0 in all measurements has no magnitude of its own.
        penalty = _PENALTY * np.where(diagonal > 0, diagonal, 1.0)
        target = self.sums[:, :-1, -1].T @ (1 / speeds) + penalty * before
        return _non_negative_solution(gram + np.diag(penalty), target)

    def predictions(self, weights: Array) -> tuple[Array, Array]:
        """For each worker, the sum of the seconds predicted at speed 1, and that of their squares / seconds measured."""
        squares = np.einsum("i,wij,j->w", weights, self.sums[:, :-1, :-1], weights)
        return self.sums[:, :-1, -1] @ weights, squares


@dataclass(frozen=True, kw_only=True, slots=True)
class CostModel:
    """Weights of kinds of operations and speeds of workers. Frozen: every epoch makes a new one (:meth:`updated`).

    Example:
        >>> model = CostModel()
        >>> for part in ([100, 900, 800, 800, 1600], [300, 700, 650, 650, 1300]):
        ...     seconds = 2e-9 * part[0] + 1e-9 * part[4]
        ...     model = model.updated([Measurement(kind="gather", worker=0, features=part, seconds=seconds)])
        >>> round(1e9 * model.predict("gather", [200, 800, 725, 725, 1450]))
        1850
    """

    forgetting: float = 0.8
    """Factor by which measurements count less with every later epoch that is predicted well, in (0, 1]. The factor is smaller by
    1 / (1 + (error / s)^4) where the prediction of an epoch has that relative error; s is 3 times that of the fit, and at least 0.15."""
    speeds: tuple[float, ...] = ()
    "Speed of each worker that was measured, mean 1; 1 for a worker that was not."
    kinds: Mapping[str, LearnedKind] = field(default_factory=dict)
    "What is known of each kind, by name. Callers must not modify it."

    def updated(self, measurements: Iterable[Measurement]) -> CostModel:
        """The model after an epoch: older measurements count less, and weights and speeds fit all of them."""
        found = [measurement for measurement in measurements if any(measurement.features)]
        if not found:
            return self
        num_workers = max(len(self.speeds), 1 + max(measurement.worker for measurement in found))
        surprise = max(_SURPRISE, _SURPRISING_ERRORS * self.relative_error)
        forgetting = self.forgetting / (1 + (self._error_of(found) / surprise) ** 4)
        is_measured = np.isin(np.arange(num_workers), [measurement.worker for measurement in found])
        kinds = {}
        for name in dict.fromkeys([*self.kinds, *(measurement.kind for measurement in found)]):
            of_kind = [measurement for measurement in found if measurement.kind == name]
            known = self.kinds.get(name) or LearnedKind.unknown()
            kinds[name] = known.updated(of_kind, forgetting * is_measured)
        speeds = np.array(self.speeds_of(num_workers))
        weights, speeds = _fitted(kinds, np.where(is_measured, speeds, speeds**_FADING))
        kinds = {name: replace(kind, weights=weights[name]) for name, kind in kinds.items()}
        return replace(self, speeds=tuple(speeds.tolist()), kinds=kinds)

    def speeds_of(self, num_workers: int) -> tuple[float, ...]:
        """Speed of each of so many workers; 1 for those that were never measured."""
        return (*self.speeds, *[1.0] * num_workers)[:num_workers]

    def with_speeds(self, speeds: Sequence[float]) -> CostModel:
        """The weights of this model, for other workers: nothing of what was measured of these is left."""
        kinds = {name: replace(LearnedKind.unknown(), weights=kind.weights) for name, kind in self.kinds.items()}
        return replace(self, speeds=tuple(speeds), kinds=kinds)

    def predict(self, kind: str, features: Sequence[float], *, speed: float = 1.0) -> float:
        """Seconds of an operation on a part, measured or not, of any graph."""
        return float(self.kinds[kind].weights @ np.asarray(features, dtype=np.float64)) / speed

    def part_costs(self, features: CostFeatures, operations: Mapping[str, int]) -> Array:
        """Cost of the vertices before each vertex: seconds of an epoch's operations together, on a worker of speed 1.

        ``operations`` has the bytes of a source's row in each, 0 for work on vertices alone. Workers that wait for one another take longer than this sum.
        """
        weights = np.zeros(1 + features.sums.shape[1])
        for name, row_bytes in operations.items():
            *common, row_access = self.kinds[name].weights
            if not row_bytes:
                weights[0] += common[0]
                continue
            weights[: len(common)] += common
            weights[1 + features.column(row_bytes)] += row_access
        costs = weights[0] * np.arange(features.num_vertices + 1)
        for column, weight in enumerate(weights[1:]):
            costs += weight * features.sums[:, column]
        return costs

    def seconds_of_parts(
        self, features: CostFeatures, operations: Mapping[str, int], bounds: Sequence[int]
    ) -> tuple[float, ...]:
        """Predicted seconds of computing in an epoch, of each worker with its part."""
        return tuple(
            sum(
                self.predict(name, features.of_part(*part, row_bytes).tolist(), speed=speed)
                for name, row_bytes in operations.items()
            )
            for part, speed in zip(pairwise(bounds), self.speeds_of(len(bounds) - 1), strict=True)
        )

    @property
    def relative_error(self) -> float:
        """Root of the mean squared relative error of the measurements, weighted by their seconds and age; 0 without any."""
        speeds, total, squared = np.array(self.speeds), 0.0, 0.0
        for kind in self.kinds.values():
            predicted, squares = kind.predictions(kind.weights)
            total += kind.seconds.sum()
            squared += (kind.seconds - 2 * predicted / speeds + squares / speeds**2).sum()
        # An exact fit may be below 0 by rounding.
        return sqrt(max(squared, 0.0) / total) if total else 0.0

    def to_plain(self) -> dict[str, Any]:
        """The model as dictionaries, lists and numbers, which JSON writes without loss."""
        kinds = {
            name: {"weights": kind.weights.tolist(), "sums": kind.sums.tolist()}
            for name, kind in self.kinds.items()
        }
        return {"forgetting": self.forgetting, "speeds": list(self.speeds), "kinds": kinds}

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> CostModel:
        """The model that :meth:`to_plain` wrote."""
        unknown = LearnedKind.unknown()
        kinds = {
            name: LearnedKind(
                weights=np.array(kind["weights"]), sums=np.array(kind["sums"]).reshape(-1, *unknown.sums.shape[1:])
            )
            for name, kind in plain["kinds"].items()
        }
        return cls(forgetting=plain["forgetting"], speeds=tuple(plain["speeds"]), kinds=kinds)

    def _error_of(self, measurements: Iterable[Measurement]) -> float:
        """Root of the mean squared relative error of new measurements, weighted by their seconds; 0 where no kind is known."""
        total, squared = 0.0, 0.0
        for found in measurements:
            if found.kind in self.kinds:
                speed = self.speeds_of(found.worker + 1)[found.worker]
                total += found.seconds
                off_s = abs(self.predict(found.kind, found.features, speed=speed) - found.seconds)
                squared += min(off_s, _MOST_OFF_S) ** 2 / found.seconds
        return sqrt(squared / total) if total else 0.0


def _fitted(kinds: Mapping[str, LearnedKind], speeds: Array) -> tuple[dict[str, Array], Array]:
    """Weights by kind and speeds that fit the measurements, from the kinds' weights and the given speeds on."""
    weights, speeds = {name: kind.weights for name, kind in kinds.items()}, speeds.copy()
    for _ in range(_ALTERNATIONS):
        predicted, squared = np.sum([kind.predictions(weights[name]) for name, kind in kinds.items()], axis=0)
        # A worker of which nothing is predicted, as before the first epoch, keeps its speed.
        is_known = predicted > 0
        before = speeds.copy()
        if is_known.any():
            best = squared[is_known] / predicted[is_known]
            speeds[is_known] = best / best.mean()
        weights = {name: kind.best_weights(speeds, kind.weights) for name, kind in kinds.items()}
        if is_known.any() and (abs(speeds - before) <= _STEADY * before).all():
            break
    return weights, speeds


def _non_negative_solution(gram: Array, target: Array) -> Array:
    """Minimise ``w @ gram @ w / 2 - target @ w`` over all w without a negative entry.

    The minimum solves the equations of its positive entries alone, so all 2^n choices of positive entries are solved at once. Not for more
    than ten unknowns.

    Example:
        >>> _non_negative_solution(np.array([[2.0, 1.0], [1.0, 2.0]]), np.array([2.0, -1.0])).tolist()
        [1.0, 0.0]
    """
    size = len(target)
    # Unknowns may have units of any magnitude; with ones on the diagonal the equations are as well conditioned as they can be.
    scale = 1 / np.sqrt(gram.diagonal())
    gram, target = gram * np.outer(scale, scale), target * scale
    chosen = (np.arange(2**size)[:, np.newaxis] >> np.arange(size)) % 2 == 1
    # An unknown that is not chosen has the equation w = 0.
    equations = np.where(chosen[:, :, np.newaxis] & chosen[:, np.newaxis, :], gram, np.eye(size))
    solutions = np.linalg.solve(equations, np.where(chosen, target, 0.0)[:, :, np.newaxis])[:, :, 0]
    # Each solution minimises over its own choice, where its value is -target @ w / 2.
    gains = np.where((solutions >= 0).all(axis=1), solutions @ target, -np.inf)
    return solutions[gains.argmax()] * scale
