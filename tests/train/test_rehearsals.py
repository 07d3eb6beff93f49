"""A run of several trainers that begins with the shares that its trainers settle on in a rehearsal."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from sagann.errors import InputError
from sagann.graph import Graph
from sagann.graph.rows import row_arrays
from sagann.hybrid.assignment import HOST
from sagann.hybrid.costs import CostFit, Rates
from sagann.hybrid.forecast import Prediction, predict
from sagann.nn import ModelConfig, build_model
from sagann.runtime.loading import MiniBatches
from sagann.runtime.tiered import TieredFeatures
from sagann.runtime.workers import Workers
from sagann.storage import load_graph, save_graph
from sagann.train import TrainConfig, rehearsals
from sagann.train.hybrid_epochs import HybridEpochs
from sagann.train.rehearsals import with_one_more
from tests.hybrid.message_trainer import MessageTrainer
from tests.hybrid.processes import spawned_by
from tests.hybrid.settings import assignment, job
from tests.runtime.workers.threads import in_threads
from tests.stores import ComputedRows
from tests.train.runs import (
    Mean,
    assert_same_bits,
    community_graph,
    numbers_of,
    predictor_of,
    seeded_model,
    trainer_of,
    weights_of,
)
from tests.train.test_hybrid_epochs import DEVICES, HYBRID

ACCELERATOR = "accelerator0"
MODEL = ModelConfig(model="sage", hidden=8, dropout=0.5)
BEGINS: dict[str, Any] = {**HYBRID, "devices": DEVICES, "sharing": "static", "mapping": "model"}
FOUND = replace(predict(job(), assignment(3, 9, sample=1, load=1, train=1)), iteration_s=0.009)


def foretold(monkeypatch: pytest.MonkeyPatch) -> list[Prediction]:
    """Have every rehearsal end at once with these shares; the list has an entry for each one."""
    found = list[Prediction]()

    @contextmanager
    def rehearsed(*given: object) -> Iterator[tuple[None, Prediction]]:
        found.append(FOUND)
        yield None, FOUND

    monkeypatch.setattr(rehearsals, "_rehearsed_trainers", rehearsed)
    return found


def source_of(**options: Any) -> HybridEpochs:
    graph = community_graph()
    predictor = predictor_of(build_model(MODEL, graph), graph)
    return HybridEpochs(predictor, predictor.prepare(graph), TrainConfig(**{**BEGINS, **options}))


def test_a_run_begins_with_the_shares_of_its_rehearsal(monkeypatch: pytest.MonkeyPatch) -> None:
    foretold(monkeypatch)
    source, said = source_of(), list[str]()
    rehearsals.begin_as_foretold(SimpleNamespace(), source, said.append)  # type: ignore[arg-type]
    assert source.manager.assignment.seeds == {HOST: 3, ACCELERATOR: 9}
    assert said[0] == "Measuring host, accelerator0 to choose their initial shares ..."
    assert said[1].startswith("Of 12 seeds, host gets 3, accelerator0 gets 9: estimated 9 ms per iteration.")


def test_a_batch_with_fewer_seeds_than_trainers_is_not_rehearsed() -> None:
    rehearsals.begin_as_foretold(SimpleNamespace(), source_of(batch_size=1), pytest.fail)  # type: ignore[arg-type]


def test_a_resumed_run_goes_on_with_its_shares_and_without_a_rehearsal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = foretold(monkeypatch)
    monkeypatch.setattr("sagann.train.hybrid_epochs.ProcessTrainer", MessageTrainer)
    whole = trainer_of(MODEL, **BEGINS)
    whole.fit()
    trainer_of(MODEL, run_dir=tmp_path / "run", **{**BEGINS, "epochs": 1}).fit()
    assert len(count) == 2
    again = trainer_of(MODEL, run_dir=tmp_path / "run", **BEGINS)
    found = again.resume()
    assert len(count) == 2
    # Batches of 12, 12 and 6 seeds.
    assert [record.extra["trainer_seeds"] for record in found.history] == [[8, 22]] * 3
    # Bitwise, because the shares are a part of the checkpoint.
    assert_same_bits(weights_of(again.model), weights_of(whole.model))


def test_one_more_accelerator_is_as_fast_as_the_last_and_takes_cores_of_the_processor() -> None:
    source = source_of(devices="host:2,accelerator:1")
    fits = {HOST: CostFit.of(6, 6e-3), ACCELERATOR: CostFit.of(6, 6e-3)}
    rates = Rates(sample=1e-9, load=1e-9, fits=fits)
    source.manager._balance = replace(source.manager._balance, rates=rates)
    split = assignment(6, 6, sample=1, load=1, train=1)
    found = replace(FOUND, assignment=split, times=rates.times(split))
    more = with_one_more(source, found)
    assert more.assignment.seeds == {HOST: 4, ACCELERATOR: 4, "accelerator1": 4}
    assert more.iteration_s == pytest.approx(found.iteration_s * 2 / 3)
    assert with_one_more(source_of(devices="host:1,accelerator:1"), found) is None


def test_a_rehearsal_before_a_run_changes_no_number_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rehearsals, "SHORT_S", 0.0)
    monkeypatch.setattr("sagann.train.hybrid_epochs.ProcessTrainer", MessageTrainer)
    model = ModelConfig(model="sage", hidden=8, dropout=0.0)
    alone = trainer_of(model, **HYBRID).fit()
    result = trainer_of(model, **BEGINS).fit()
    for ours, theirs in zip(result.history, alone.history, strict=True):
        assert ours.loss == pytest.approx(theirs.loss, rel=1e-4)


MEASURED: dict[str, Any] = {"sample": (4, 3), "batch_size": 16, "devices": "host:1,accelerator:1"}


def test_a_rehearsal_with_a_process_changes_nothing_and_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rehearsals, "LONGEST_S", 0.0)
    trainer = trainer_of(MODEL, **MEASURED)
    weights, generator = weights_of(trainer.model), torch.get_rng_state()
    found, _ = rehearsals.foretell_trainers(trainer)
    assert found.assignment.total == 16
    assert 0 < found.times.slowest < found.epoch_s
    assert found.iteration_s > 0
    assert found.peak_bytes > 0
    assert_same_bits(weights_of(trainer.model), weights)
    assert torch.equal(torch.get_rng_state(), generator)
    assert not spawned_by(os.getpid())


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
            num_bytes += sum(array.nbytes for batch in batches for array in row_arrays(batch.features))
            num_edges += batches.counters[0].rows
    assert found.num_bytes == pytest.approx(num_bytes / 5, rel=5e-3)
    assert found.num_edges == pytest.approx(num_edges / 5, rel=5e-3)


@pytest.mark.parametrize("cache", ["static", "look-ahead"])
def test_tiers_give_what_they_give_in_an_epoch(cache: str) -> None:
    graph = community_graph()

    def tiered() -> Graph:
        return replace(graph, features=TieredFeatures(graph.features, hot="30%", cache=cache))

    found = trainer_of(graph=tiered(), **SAMPLED, memory="1GiB").foretell()
    assert list(found.tiers) == ["hot", "cold"]
    other = tiered()
    minibatches = MiniBatches(other, fanouts=SAMPLED["sample"], batch_size=8, ahead=4)
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
        found = trainer_of(graph=kind, **SAMPLED, **given).foretell()
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
    with pytest.raises(InputError, match="only epochs of vertex mini-batches can be estimated: sample is None"):
        trainer_of(epochs=1).foretell()
    model = seeded_model()
    model.lock = threading.Lock()
    with pytest.raises(InputError, match=r"the model cannot be copied: cannot pickle '_thread\.lock' object"):
        trainer_of(model, **SAMPLED).foretell()
    with pytest.raises(InputError, match="training diverged"):
        trainer_of(seeded_model(), **SAMPLED, lr=1e30, optimizer="SGD").foretell()


def test_workers_foretell_nothing() -> None:
    # Threads that seed at the same time draw each other's numbers.
    models = [seeded_model() for _ in range(2)]

    def refused(workers: Workers) -> str:
        with pytest.raises(InputError) as caught:
            trainer_of(models[workers.rank], **SAMPLED, workers=workers).foretell()
        return str(caught.value)

    for text in in_threads(refused, 2):
        assert text.startswith("only epochs of a single process can be estimated: 2 workers train")
