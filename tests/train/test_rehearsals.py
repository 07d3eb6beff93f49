"""A run of several trainers that begins with the shares that its performance model finds best."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from sagann.errors import InputError
from sagann.nn import ModelConfig, build_model
from sagann.plan.hybrid.assignment import HOST
from sagann.plan.hybrid.rehearsed import RehearsedJob, RehearsedShare
from sagann.train import TrainConfig, rehearsals, rehearsed_trainers
from sagann.train.hybrid_epochs import HybridEpochs
from tests.hybrid.processes import spawned_by
from tests.train.runs import assert_same_bits, community_graph, predictor_of, trainer_of, weights_of
from tests.train.test_hybrid_epochs import DEVICES, HYBRID

ACCELERATOR = "accelerator0"
MODEL = ModelConfig(model="sage", hidden=8, dropout=0.5)
BEGINS: dict[str, Any] = {**HYBRID, "devices": DEVICES, "sharing": "static", "mapping": "model"}


def share_of(seeds: int, seed_s: float, *, is_sent: bool) -> RehearsedShare:
    return RehearsedShare(
        seeds=seeds,
        edges=10 * seeds,
        loaded_bytes=100 * seeds,
        copied_bytes=100 * seeds * is_sent,
        sample_s=1e-6,
        load_s=1e-6,
        copy_s=1e-6 * is_sent,
        copy_core_s=1e-6 * is_sent,
        train_s=seed_s * seeds,
    )


def job_of(**seed_s: float) -> RehearsedJob:
    """A rehearsal whose trainers take so long for a seed."""
    return RehearsedJob(
        num_train=30,
        shares={
            name: tuple(share_of(seeds, each_s, is_sent=name != HOST) for seeds in (3, 6, 12))
            for name, each_s in seed_s.items()
        },
        threads=1,
        model_bytes=100,
        synchronise_s=1e-6,
    )


def rehearsed(monkeypatch: pytest.MonkeyPatch, job: RehearsedJob) -> list[RehearsedJob]:
    """Have every rehearsal end at once with these seconds; the list has an entry for each one."""
    found = list[RehearsedJob]()

    def rehearse(parts: object, *, longest_s: float) -> RehearsedJob:
        found.append(job)
        return job

    monkeypatch.setattr(rehearsals, "rehearse_trainers", rehearse)
    return found


def begun(job: RehearsedJob, monkeypatch: pytest.MonkeyPatch, **options: Any) -> tuple[HybridEpochs, list[str]]:
    """The source of a run that begins as foretold, with what it says."""
    count, said, graph = rehearsed(monkeypatch, job), list[str](), community_graph()
    predictor = predictor_of(build_model(MODEL, graph), graph)
    config = TrainConfig(**{**BEGINS, **options})
    source = HybridEpochs(predictor, predictor.prepare(graph), config)
    rehearsals.begin_as_foretold(SimpleNamespace(say=said.append), source)  # type: ignore[arg-type]
    assert len(count) == len(said) // 2
    return source, said


def test_a_run_begins_with_the_shares_that_its_model_finds_best(monkeypatch: pytest.MonkeyPatch) -> None:
    source, said = begun(job_of(host=3e-3, accelerator0=1e-3), monkeypatch)
    assert source.manager.assignment.seeds == {HOST: 3, ACCELERATOR: 9}
    assert said[0] == "Rehearsing host, accelerator0, to begin with the best shares ..."
    assert said[1].startswith("Of 12 seeds, host gets 3, accelerator0 gets 9: an iteration is expected at 9.01 ms.")


def test_a_batch_with_fewer_seeds_than_trainers_is_not_rehearsed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert begun(job_of(host=1e-3, accelerator0=1e-3), monkeypatch, batch_size=1)[1] == []


def test_a_resumed_run_goes_on_with_its_shares_and_without_a_rehearsal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = rehearsed(monkeypatch, job_of(host=3e-3, accelerator0=1e-3))
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


def test_a_rehearsal_before_a_run_changes_no_number_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rehearsals, "SHORT_S", 0.0)
    model = ModelConfig(model="sage", hidden=8, dropout=0.0)
    alone = trainer_of(model, **HYBRID).fit()
    result = trainer_of(model, **BEGINS).fit()
    for ours, theirs in zip(result.history, alone.history, strict=True):
        assert ours.loss == pytest.approx(theirs.loss, rel=1e-4)


MEASURED: dict[str, Any] = {"sample": (4, 3), "batch_size": 16, "devices": "host:1,accelerator:1"}


def test_a_rehearsal_with_a_process_changes_nothing_and_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rehearsed_trainers, "LONGEST_S", 0.0)
    trainer = trainer_of(MODEL, **MEASURED)
    weights, generator = weights_of(trainer.model), torch.get_rng_state()
    found = trainer.rehearse_trainers()
    assert found.shares[ACCELERATOR][-1].train_s > 0
    assert found.shares[ACCELERATOR][-1].copy_s > 0
    assert_same_bits(weights_of(trainer.model), weights)
    assert torch.equal(torch.get_rng_state(), generator)
    assert not spawned_by(os.getpid())


@pytest.mark.parametrize("options", [{"sample": (4, 3)}, {}])
def test_without_devices_nothing_is_rehearsed(options: dict[str, Any]) -> None:
    trainer = trainer_of(MODEL, **options)
    with pytest.raises(InputError, match="only trainers that share mini-batches are rehearsed: sample is"):
        trainer.rehearse_trainers()
