"""A run of several trainers that begins with the shares that its trainers settle on in a rehearsal."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from sagann.errors import InputError
from sagann.hybrid.assignment import HOST
from sagann.hybrid.costs import CostFit, Rates
from sagann.hybrid.forecast import Prediction, predict
from sagann.nn import ModelConfig, build_model
from sagann.train import TrainConfig, rehearsals
from sagann.train.hybrid_epochs import HybridEpochs
from sagann.train.sampled_forecast import with_one_more
from tests.hybrid.message_trainer import MessageTrainer
from tests.hybrid.processes import spawned_by
from tests.hybrid.settings import assignment, job
from tests.train.runs import assert_same_bits, community_graph, predictor_of, trainer_of, weights_of
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
    rehearsals.begin_as_foretold(SimpleNamespace(), source, pytest.fail, said.append)  # type: ignore[arg-type]
    assert source.manager.assignment.seeds == {HOST: 3, ACCELERATOR: 9}
    assert said[0] == "Rehearsing host, accelerator0, to begin with the best shares ..."
    assert said[1].startswith("Of 12 seeds, host gets 3, accelerator0 gets 9: an iteration is expected at 9 ms.")


def test_a_batch_with_fewer_seeds_than_trainers_is_not_rehearsed() -> None:
    rehearsals.begin_as_foretold(SimpleNamespace(), source_of(batch_size=1), pytest.fail, pytest.fail)  # type: ignore[arg-type]


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
    assert more is not None
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
    found, _ = trainer.foretell_trainers()
    assert found.assignment.total == 16
    assert 0 < found.times.slowest < found.epoch_s
    assert found.iteration_s > 0
    assert found.peak_bytes > 0
    assert_same_bits(weights_of(trainer.model), weights)
    assert torch.equal(torch.get_rng_state(), generator)
    assert not spawned_by(os.getpid())


@pytest.mark.parametrize("options", [{"sample": (4, 3)}, {}])
def test_without_devices_there_are_no_trainers_to_foretell(options: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="only trainers that share mini-batches are foretold: sample is"):
        trainer_of(MODEL, **options).foretell_trainers()
