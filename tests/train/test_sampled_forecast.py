"""An epoch of mini-batches is foretold from some of its batches, and nothing of the run changes."""

from __future__ import annotations

import random
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from sagann.errors import InputError
from sagann.graph import Graph
from sagann.runtime.loading import MiniBatches
from sagann.runtime.tiered import TieredFeatures
from sagann.storage import load_graph, save_graph
from sagann.train import TrainConfig, Trainer
from tests.stores import ComputedRows
from tests.train.runs import (
    Mean,
    assert_same_bits,
    community_graph,
    numbers_of,
    seeded_model,
    trainer_of,
    weights_of,
)

SAMPLED: dict[str, Any] = {"sample": (4, 3), "batch_size": 8, "epochs": 3, "batches_ahead": 4}


@pytest.mark.parametrize("sample", [(-1, -1), (4, 3)])
def test_bytes_and_edges_are_those_of_the_epochs_that_were_rehearsed(sample: tuple[int, ...]) -> None:
    found = trainer_of(**{**SAMPLED, "sample": sample}).foretell()
    # Five epochs; the first one compiles.
    assert found.num_rehearsed == 20
    assert found.num_batches == 4
    minibatches = MiniBatches(community_graph(), fanouts=sample, batch_size=8, ahead=4)
    num_bytes = num_edges = 0
    for epoch in range(2, 7):
        with minibatches.batches(epoch) as batches:
            num_bytes += sum(array.nbytes for batch in batches for array in batch.feature_arrays)
            num_edges += batches.counters[0].rows
    assert found.num_bytes == pytest.approx(num_bytes / 5, rel=5e-3)
    assert found.num_edges == pytest.approx(num_edges / 5, rel=5e-3)


@pytest.mark.parametrize("cache", ["static", "look-ahead"])
def test_tiers_give_what_they_give_in_an_epoch(cache: str) -> None:
    graph = community_graph()

    def tiered() -> Graph:
        return replace(graph, features=TieredFeatures(graph.features, hot="30%", cache=cache))

    config = TrainConfig(**{**SAMPLED, "memory": "1GiB"}, device="cpu")
    found = Trainer(seeded_model(), tiered(), config).foretell()
    assert list(found.tiers) == ["hot", "cold"]
    other = tiered()
    minibatches = MiniBatches(other, fanouts=config.sample, batch_size=8, ahead=4)
    traffics = [other.features.traffic()]
    for epoch in range(1, 9):
        with minibatches.batches(epoch) as batches:
            assert len(list(batches)) == 4
        traffics.append(other.features.traffic())
    # The epochs vary, and the rehearsal's caches have seen other ones.
    last = traffics[-1] - traffics[2]
    assert found.tiers["hot"].rows / (found.tiers["hot"].rows + found.tiers["cold"].rows) == pytest.approx(
        last.hit_rate, abs=0.15
    )


def test_bytes_are_those_of_the_tier_where_all_rows_lie(tmp_path: Path) -> None:
    graph = community_graph()
    save_graph(graph, tmp_path / "graph")
    mapped = load_graph(tmp_path / "graph")
    computed = replace(graph, features=ComputedRows(90, 8))
    for kind, given, tier in (
        (mapped, {}, "file"),
        (graph, {}, "memory"),
        (mapped, {"memory": "1GiB"}, "hot"),
        (computed, {"memory": "1GiB"}, "hot"),
        (mapped, {"hot": "0%"}, "cold"),
    ):
        found = Trainer(seeded_model(), kind, TrainConfig(**SAMPLED, **given, device="cpu")).foretell()
        assert [name for name, counts in found.tiers.items() if counts.rows] == [tier]
        assert found.num_bytes == pytest.approx(4 * 8 * found.tiers[tier].rows, abs=32)


@pytest.mark.parametrize("hot", [{}, {"memory": "1GiB"}, {"hot": "40%", "cache": "static"}])
def test_nothing_of_the_run_changes(hot: dict[str, Any], tmp_path: Path) -> None:
    save_graph(community_graph(), tmp_path / "graph")
    graph = load_graph(tmp_path / "graph")
    undisturbed = trainer_of(graph=graph, **SAMPLED, **hot)
    expected = numbers_of(undisturbed.fit())
    trainer = trainer_of(graph=graph, **SAMPLED, **hot)
    before, modes = weights_of(trainer.model), [module.training for module in trainer.model.modules()]
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()
    trainer.foretell()
    assert_same_bits(weights_of(trainer.model), before)
    assert all(parameter.grad is None for parameter in trainer.model.parameters())
    assert [module.training for module in trainer.model.modules()] == modes
    assert torch.equal(torch.get_rng_state(), states[0])
    assert (random.getstate(), np.random.get_state()[1].tolist()) == states[1:]
    assert numbers_of(trainer.fit()) == expected
    assert_same_bits(weights_of(trainer.model), weights_of(undisturbed.model))


class Lazy(nn.Module):
    """A layer whose size is known with the first batch."""

    num_hops = 1

    def __init__(self) -> None:
        super().__init__()
        self.layer = Mean(8, 8)
        self.last = nn.LazyLinear(3)

    def forward(self, hops: Any, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.layer(hops[0], x))


def test_lazy_parameters_and_every_optimizer_are_rehearsed() -> None:
    assert trainer_of(Lazy(), **{**SAMPLED, "sample": (4,)}).foretell().seconds > 0
    options = {"scheduler": "StepLR", "scheduler_options": {"step_size": 1}}
    assert trainer_of(**SAMPLED, **options, optimizer="LBFGS", weight_decay=0.0).foretell().seconds > 0


def test_what_cannot_be_foretold_is_refused() -> None:
    with pytest.raises(InputError, match="only epochs of mini-batches of vertices are foretold: sample is None"):
        trainer_of(epochs=1).foretell()
    model = seeded_model()
    model.lock = threading.Lock()
    with pytest.raises(InputError, match=r"the model cannot be copied: cannot pickle '_thread\.lock' object"):
        trainer_of(model, **SAMPLED).foretell()
    with pytest.raises(InputError, match="training diverged"):
        trainer_of(seeded_model(), **SAMPLED, lr=1e30, optimizer="SGD").foretell()
