"""Cost features against a loop over destinations and runs; the cost model finds weights and speeds that measurements were made with."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import example, given, strategies as st

from sagann.graph import Graph, Topology
from sagann.graph.rmat import rmat_edges
from sagann.partition import ACCESS_BYTES, FEATURES, CostFeatures, CostModel, Measurement, count_cost_features
from sagann.storage import open_graph, save_graph
from tests.graphs import odd_topologies, random_topology, topology_of

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


WIDTHS = (4, 64, 100, 2408)


def runs_of(sources: list[int]) -> list[list[int]]:
    """Sources cut where the next one is neither the same nor the following id."""
    runs: list[list[int]] = []
    for source in sources:
        if runs and source - runs[-1][-1] in (0, 1):
            runs[-1].append(source)
        else:
            runs.append([source])
    return runs


def accesses(num_bytes: int, device: str) -> int:
    return -(-num_bytes // ACCESS_BYTES[device])


def naive(topology: Topology, first: int, stop: int, row_bytes: int, device: str) -> list[int]:
    """The features of a part, destination by destination, as the module's docstring defines them."""
    id_bytes = topology.indices.element_size()
    total = [0] * len(FEATURES)
    for v in range(first, stop):
        sources = topology.indices[topology.indptr[v] : topology.indptr[v + 1]].tolist()
        runs = runs_of(sources)
        ids = sum(accesses(len(run) * id_bytes, device) for run in runs)
        rows = sum(accesses(len(set(run)) * row_bytes, device) for run in runs)
        total = [a + b for a, b in zip(total, (1, len(sources), len(runs), ids, rows), strict=True)]
    return total


@pytest.fixture(scope="module")
def power_law() -> Topology:
    src, dst = rmat_edges(3000, 200_000, seed=0, scramble=False)
    return Topology.from_coo(src=src, dst=dst, num_src=3000)


@pytest.mark.parametrize("device", ACCESS_BYTES)
@pytest.mark.parametrize("name", odd_topologies())
def test_every_part_has_the_features_of_its_destinations(name: str, device: str) -> None:
    topology = odd_topologies()[name]
    found = count_cost_features(topology, WIDTHS, device=device)
    assert found.num_vertices == topology.num_dst
    for row_bytes in WIDTHS:
        for first, stop in ((0, topology.num_dst), (0, 0), (1, topology.num_dst), (1, 2)):
            expected = naive(topology, first, stop, row_bytes, device)
            assert found.of_part(first, stop, row_bytes).tolist() == expected


@given(st.lists(st.lists(st.integers(0, 40), max_size=60), max_size=6), st.sampled_from(WIDTHS))
def test_any_order_of_in_edges_is_cut_into_runs(rows: list[list[int]], row_bytes: int) -> None:
    indptr = torch.tensor([0, *np.cumsum([len(row) for row in rows])], dtype=torch.int64)
    indices = torch.tensor([source for row in rows for source in row], dtype=torch.int32)
    topology = Topology(indptr=indptr, indices=indices, num_src=41)
    found = count_cost_features(topology, [row_bytes])
    assert found.of_part(0, len(rows), row_bytes).tolist() == naive(topology, 0, len(rows), row_bytes, "cpu")


def test_the_example_of_the_paper() -> None:
    # ROC, Sec. 4.1: sources 3, 4, 6 and 8 are three runs. Rows of 64 values take two warps each.
    topology = topology_of([(3, 1), (4, 1), (6, 1), (8, 1)], 9)
    features = count_cost_features(topology, [64 * 4], device="cuda").of_part(1, 2, 64 * 4)
    assert dict(zip(FEATURES, features.tolist(), strict=True)) == {
        "vertices": 1,
        "edges": 4,
        "runs": 3,
        "id accesses": 3,
        "row accesses": 4 + 2 + 2,
    }


def test_a_part_of_a_large_graph(power_law: Topology) -> None:
    found = count_cost_features(power_law, WIDTHS)
    assert found.of_part(17, 2000, 100).tolist() == naive(power_law, 17, 2000, 100, "cpu")


def test_wide_ids_take_more_accesses() -> None:
    narrow = random_topology(40, 300)
    wide = Topology(indptr=narrow.indptr, indices=narrow.indices.long(), num_src=40)
    found = count_cost_features(wide, [64]).of_part(0, 40, 64)
    assert found.tolist() == naive(wide, 0, 40, 64, "cpu")


def test_mapped_arrays_are_read_in_place(tmp_path: Path, power_law: Topology) -> None:
    save_graph(Graph(topology=power_law), tmp_path / "graph")
    found = count_cost_features(open_graph(tmp_path / "graph").topology, [100])
    assert np.array_equal(found.sums, count_cost_features(power_law, [100]).sums)
