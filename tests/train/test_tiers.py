"""Tiers of a sampled run: what is hot, how a budget is divided, what a mini-batch takes of it, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, strategies as st

from sagann.byte_size import with_exact
from sagann.errors import InputError
from sagann.free_space import Room
from sagann.graph.feature_store import Features
from sagann.plan.residency import BudgetError
from sagann.runtime.loading import MiniBatches
from sagann.runtime.tiered import DeviceFeatures, TieredFeatures
from sagann.runtime.tiered.features import hot_tier_bytes
from sagann.tiering import hottest, score_vertices
from sagann.train import TrainConfig
from sagann.train.tiers import (
    MARGIN,
    BatchMemory,
    TierPlan,
    hottest_rows,
    measure_batches,
    plan_tiers,
    with_hot_tier,
)
from tests.runtime.device.drivers import SimulatedDevices
from tests.stores import ComputedRows
from tests.train.runs import Plain, community_graph, predictor_of

KIB = 1 << 10
BATCHES = BatchMemory(batch_bytes=10 * KIB, step_bytes=20 * KIB, thread_bytes=5 * KIB)
"A step takes 35 KiB, and 10 KiB for each batch ahead."
STORE = ComputedRows(4000, 8)
"125 KiB of features."


def config_of(**options: Any) -> TrainConfig:
    return TrainConfig(**{"sample": (4, 3), "cache": "static", **options})


def planned(features: Features, budget_kib: int, **options: Any) -> TierPlan:
    ahead = options.pop("ahead", 4)
    config = config_of(memory=f"{budget_kib}KiB", **options)
    return plan_tiers(features, config, ahead=ahead, budget_bytes=budget_kib * KIB, measure=lambda: BATCHES)


@pytest.mark.parametrize(
    ("budget_kib", "ahead", "expected"),
    [
        # Half of it has room for the whole queue.
        (200, 4, TierPlan(hot=100 * KIB, ahead=4)),
        # A shorter queue.
        (149, 4, TierPlan(hot=149 * KIB // 2, ahead=3)),
        # The hot tier gives up room for one batch ahead, and then that batch.
        (89, 4, TierPlan(hot=44 * KIB, ahead=1)),
        (70, 4, TierPlan(hot=25 * KIB, ahead=1)),
        # The tables of static take 4 bytes a row.
        (60, 4, TierPlan(hot=None, ahead=2)),
        (35, 4, TierPlan(hot=None, ahead=0)),
        (60, 0, TierPlan(hot=25 * KIB, ahead=0)),
    ],
)
def test_a_budget_is_divided(budget_kib: int, ahead: int, expected: TierPlan) -> None:
    assert planned(STORE, budget_kib, ahead=ahead) == expected


@given(st.integers(35, 400), st.integers(0, 9), st.sampled_from(["static", "look-ahead"]))
def test_hot_tier_and_batches_never_exceed_the_budget(budget_kib: int, ahead: int, cache: str) -> None:
    found = planned(STORE, budget_kib, ahead=ahead, cache=cache)
    hot_bytes = 0 if found.hot is None else hot_tier_bytes(STORE, found.hot, cache=cache)
    assert hot_bytes + BATCHES.needed_bytes(found.ahead) <= budget_kib * KIB
    assert hot_bytes <= budget_kib * KIB // 2
    assert 0 <= found.ahead <= ahead


def test_a_stated_hot_tier_shortens_the_queue() -> None:
    # 800 rows of 32 bytes, and the tables.
    hot_bytes = hot_tier_bytes(STORE, "20%", cache="static")
    assert 800 * 32 < hot_bytes < 48 * KIB
    assert planned(STORE, 200, hot="20%") == TierPlan(hot="20%", ahead=4)
    assert planned(STORE, 96, hot="20%") == TierPlan(hot="20%", ahead=1)


def test_a_hot_tier_beyond_its_half_is_refused() -> None:
    hot_bytes = hot_tier_bytes(STORE, "80%", cache="static")
    with pytest.raises(InputError) as caught:
        planned(STORE, 200, hot="80%")
    assert f"hot '80%' takes {hot_bytes / KIB:.1f} KiB with its tables, half of the budget is 100.0 KiB" in str(
        caught.value
    )
    assert f"(--memory) to {with_exact(2 * hot_bytes)} or more." in caught.value.hint
    assert planned(STORE, -(-2 * hot_bytes // KIB), hot="80%").hot == "80%"


@pytest.mark.parametrize(("features", "offered_kib"), [(STORE, 150), (torch.zeros(4000, 8), 75)])
def test_the_least_budget_is_named_and_is_one(features: Features, offered_kib: int) -> None:
    with pytest.raises(BudgetError) as caught:
        planned(features, 34)
    assert f"{with_exact(34 * KIB)}, at least {with_exact(35 * KIB)} are needed: a training step" in str(
        caught.value
    )
    assert f"{with_exact(offered_kib * KIB)} have room for 4 batches ahead as well." in str(caught.value)
    with pytest.raises(BudgetError, match=r"or lower batch_size or the fanouts\.$"):
        planned(features, 34, ahead=0)
    assert planned(features, caught.value.needed_bytes // KIB).ahead == 0
    assert planned(features, caught.value.offered_bytes // KIB).ahead == 4


@pytest.mark.parametrize(("free_kib", "hot"), [(200, 100 * KIB), (117, 17 * KIB), (115, None), (10, None)])
def test_a_budget_beyond_the_free_memory_makes_the_hot_tier_smaller(
    monkeypatch: pytest.MonkeyPatch, free_kib: int, hot: int | None
) -> None:
    room = Room(name="memory", total_bytes=None, free_bytes=free_kib * KIB)
    monkeypatch.setattr("sagann.train.tiers.host_room", lambda: room)
    assert planned(STORE, 200).hot == hot


@pytest.mark.parametrize("is_on_device", [False, True])
@pytest.mark.parametrize("score", ["degree", "vip"])
def test_the_hottest_by_the_score_are_hot(score: str, is_on_device: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sagann.train.tiers._beside_budget", lambda device, config: SimulatedDevices())
    graph = community_graph()
    config = config_of(hot="20%", score=score, batch_size=16)
    devices, order = [torch.device("cpu")] * is_on_device, hottest_rows(graph, config)
    store: Any = with_hot_tier(graph, "20%", config, order, say=lambda text: None, devices=devices).features
    assert isinstance(store, DeviceFeatures if is_on_device else TieredFeatures)
    store.rows(hottest(score_vertices(graph, score, fanouts=(4, 3), batch_size=16))[:18])
    assert (store.num_hot_rows, store.traffic().cold.rows) == (18, 0)


def test_a_hot_tier_on_the_device_leaves_room_for_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sagann.runtime.device.cuda_devices.find_spec", lambda name: object())
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (300 << 20, 1 << 30))
    config = config_of(hot="2KiB", memory="299MiB", batch_size=16)
    graph = replace(community_graph(), features=torch.zeros(90, 8000))
    with pytest.raises(InputError, match=r"the work does not fit the memory of cuda:0: .*, 1.0 MiB are free"):
        with_hot_tier(graph, "2MiB", config, torch.arange(90), say=print, devices=[torch.device("cuda", 0)])


def batches_of(batch_size: int, threads: int = 1) -> MiniBatches:
    return MiniBatches(community_graph(), fanouts=[4, 3], batch_size=batch_size, threads=threads, ahead=0)


def test_a_batch_takes_its_blocks_and_features() -> None:
    batches = batches_of(1000)
    (batch,) = batches.batches(1)
    found = measure_batches(predictor_of(), batches)
    # Float32 features, and int64 or int32 ids of edges in both orders.
    least = batch.features.nbytes + sum(4 * 4 * block.num_edges for block in batch.blocks)
    assert least < found.batch_bytes < 3 * MARGIN * least


def test_a_step_is_measured_as_it_trains_with_dropout() -> None:
    model = torch.nn.Sequential(
        torch.nn.Linear(8, 64), torch.nn.BatchNorm1d(64), torch.nn.Dropout(0.5), torch.nn.Linear(64, 3)
    )

    class Dropping(Plain):
        def __init__(self) -> None:
            super().__init__()
            self.layers = model

        def forward(self, hops: object, x: torch.Tensor) -> torch.Tensor:
            return self.layers(x[:30])

    model.eval()
    predictor = predictor_of(Dropping())
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    found = measure_batches(predictor, batches_of(1000))
    # Rows before the norm, the dropped rows and what dropout multiplied by; twice the largest for gradients.
    assert found.step_bytes > MARGIN * (3 + 2) * 4 * 30 * 64
    assert all(torch.equal(buffer, before[name]) for name, buffer in model.named_buffers())
    assert not any(module.training for module in model.modules())


def test_lazy_parameters_are_no_memory_of_a_step() -> None:
    class Lazy(Plain):
        def __init__(self) -> None:
            super().__init__()
            self.layers = torch.nn.Sequential(torch.nn.LazyLinear(10_000), torch.nn.Linear(10_000, 3))

        def forward(self, hops: object, x: torch.Tensor) -> torch.Tensor:
            return self.layers(x[:30])

    found = measure_batches(predictor_of(Lazy()), batches_of(1000))
    # The hidden rows and gradients of as many, but not the first weight, of 320 KB.
    assert found.step_bytes <= MARGIN * (3 * 4 * 30 * 10_000 + 50_000)
