"""The cost model finds weights and speeds that measurements were made with, and keeps them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import example, given, strategies as st

from sagann.graph import Topology
from sagann.graph.rmat import rmat_edges
from sagann.partition import CostFeatures, CostModel, Measurement, count_cost_features

OPERATIONS = {"gather 64": 64, "gather 400": 400}
"Kinds of operations, and the bytes of a source's row in each."
TRUTH = {"gather 64": [3e-9, 1e-9, 0.0, 4e-9, 2e-9], "gather 400": [2e-8, 0.0, 3e-9, 0.0, 3e-9]}
"Weights with which measurements are made: seconds for each unit of a feature."


@pytest.fixture(scope="module")
def features() -> CostFeatures:
    src, dst = rmat_edges(4000, 60_000, seed=0, scramble=False)
    return count_cost_features(Topology.from_coo(src=src, dst=dst, num_src=4000), OPERATIONS.values())


def measured(
    features: CostFeatures,
    bounds: Sequence[int],
    speeds: Sequence[float],
    *,
    noise: float = 0.0,
    seed: int = 0,
    truth: Mapping[str, Sequence[float]] = TRUTH,
) -> list[Measurement]:
    """The measurements of an epoch in which each worker has a part."""
    random = np.random.default_rng(seed)
    found = []
    for worker, (first, stop) in enumerate(pairwise(bounds)):
        for kind, row_bytes in OPERATIONS.items():
            x = features.of_part(first, stop, row_bytes)
            seconds = float(x @ np.array(truth[kind])) / speeds[worker] * float(np.exp(noise * random.normal()))
            if seconds > 0:
                found.append(Measurement(kind=kind, worker=worker, features=x.tolist(), seconds=seconds))
    return found


def trained(features: CostFeatures, epochs: int, *, noise: float = 0.0, seed: int = 0) -> CostModel:
    """A model of three workers of unlike speeds whose parts change from epoch to epoch."""
    random, model = np.random.default_rng(seed), CostModel()
    for epoch in range(epochs):
        cuts = sorted(random.integers(200, 3800, 2).tolist())
        bounds = (0, *cuts, 4000)
        model = model.updated(measured(features, bounds, [1.2, 0.6, 1.2], noise=noise, seed=1000 * seed + epoch))
    return model


def errors(model: CostModel, features: CostFeatures, truth: Mapping[str, Sequence[float]] = TRUTH) -> list[float]:
    """Relative errors on parts of a size that was not measured."""
    found = []
    for kind, row_bytes in OPERATIONS.items():
        for first in range(0, 4000, 500):
            x = features.of_part(first, first + 500, row_bytes)
            found.append(abs(model.predict(kind, x.tolist()) / float(x @ np.array(truth[kind])) - 1))
    return found


def test_weights_and_speeds_are_found(features: CostFeatures) -> None:
    model = trained(features, 20)
    assert model.speeds == pytest.approx((1.2, 0.6, 1.2), rel=0.01)
    assert max(errors(model, features)) < 0.02
    assert model.relative_error < 0.01
    assert all((kind.weights >= 0).all() for kind in model.kinds.values())


def test_noise_is_averaged(features: CostFeatures) -> None:
    model = trained(features, 40, noise=0.05)
    assert model.speeds == pytest.approx((1.2, 0.6, 1.2), rel=0.04)
    assert max(errors(model, features)) < 0.1
    assert 0.02 < model.relative_error < 0.1


def test_a_machine_that_changes_is_followed(features: CostFeatures) -> None:
    model, bounds = trained(features, 20), (0, 500, 1500, 4000)
    for epoch in range(3):
        model = model.updated(measured(features, bounds, [0.5, 1.25, 1.25], seed=epoch))
    # On parts that stay, a slow worker and costly features look alike: its speed is found only roughly, its seconds well.
    assert model.speeds == pytest.approx((0.5, 1.25, 1.25), rel=0.2)
    for worker, (first, stop) in enumerate(pairwise(bounds)):
        x = features.of_part(first, stop, 400).tolist()
        expected = float(np.array(x) @ TRUTH["gather 400"]) / [0.5, 1.25, 1.25][worker]
        assert model.predict("gather 400", x, speed=model.speeds[worker]) == pytest.approx(expected, rel=0.1)


def test_what_was_learned_is_kept_while_parts_stay(features: CostFeatures) -> None:
    model = trained(features, 20, noise=0.02)
    before = max(errors(model, features))
    for epoch in range(60):
        model = model.updated(measured(features, (0, 500, 1500, 4000), [1.2, 0.6, 1.2], noise=0.02, seed=epoch))
    # The measurements of other parts weigh less than 0.8^60 by now.
    assert max(errors(model, features)) < before + 0.05


@example(490781)
@given(st.integers(0, 2**32))
def test_any_measurements_give_finite_weights_and_speeds(seed: int) -> None:
    random, model = np.random.default_rng(seed), CostModel(forgetting=float(random_factor(seed)))
    for _ in range(4):
        x = random.integers(0, 4, (3, 5)) * 10.0 ** random.integers(0, 9, (3, 5))
        seconds = 10.0 ** random.uniform(-7, 3, 3)
        workers = random.integers(0, 3, 3).tolist()
        given_ = zip(x.tolist(), workers, seconds.tolist(), strict=True)
        model = model.updated([Measurement(kind="k", worker=w, features=f, seconds=s) for f, w, s in given_])
    for kind in model.kinds.values():
        assert np.isfinite(kind.weights).all()
        assert (kind.weights >= 0).all()
    assert all(np.isfinite(speed) and speed > 0 for speed in model.speeds)
    assert np.isfinite(model.relative_error)


def random_factor(seed: int) -> float:
    return [0.5, 0.9, 1.0][seed % 3]


def test_a_model_is_saved_without_loss(features: CostFeatures) -> None:
    model = trained(features, 5, noise=0.05)
    loaded = CostModel.from_plain(json.loads(json.dumps(model.to_plain())))
    assert loaded.to_plain() == model.to_plain()
    measurements = measured(features, (0, 500, 1500, 4000), [1.0, 1.0, 2.0])
    assert loaded.updated(measurements).to_plain() == model.updated(measurements).to_plain()
    assert CostModel.from_plain(CostModel().to_plain()).to_plain() == CostModel().to_plain()


def test_work_on_vertices_alone_has_no_other_feature(features: CostFeatures) -> None:
    assert features.of_part(3, 10, 0).tolist() == [7.0, 0.0, 0.0, 0.0, 0.0]
    operations = {"map": 0, "gather": 64}
    model = CostModel().updated(
        Measurement(kind=kind, worker=0, features=features.of_part(first, stop, width).tolist(), seconds=seconds)
        for first, stop in ((0, 100), (100, 4000))
        for kind, width, seconds in (
            ("map", 0, 1e-6 * (stop - first)),
            ("gather", 64, 1e-8 * features.of_part(first, stop, 64)[1]),
        )
    )
    costs = model.part_costs(features, operations)
    for first, stop in ((0, 4000), (17, 500)):
        expected = sum(
            model.predict(kind, features.of_part(first, stop, width).tolist()) for kind, width in operations.items()
        )
        assert costs[stop] - costs[first] == pytest.approx(expected, rel=1e-12)
    found = model.seconds_of_parts(features, operations, (0, 500, 4000))
    assert found == pytest.approx((costs[500], costs[4000] - costs[500]))
    half = model.with_speeds((0.5, 2.0)).seconds_of_parts(features, operations, (0, 500, 4000))
    assert half == pytest.approx((2 * found[0], found[1] / 2))
