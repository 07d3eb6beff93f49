"""A rehearsal measures every trainer of a run on shares of several sizes, and leaves the run as it was."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from typing import Any

import pytest
import torch

from sagann.errors import InputError
from sagann.hybrid.trainer import Found, HostTrainer, Share
from sagann.nn import ModelConfig, build_model
from sagann.plan.hybrid.assignment import HOST
from sagann.plan.hybrid.rehearsed import RehearsedJob
from sagann.train import TrainConfig, rehearsed_trainers
from sagann.train.predictor import Predictor
from sagann.train.rehearsed_trainers import RehearsedTrainers
from tests.hybrid.processes import spawned_by
from tests.train.runs import assert_same_bits, community_graph, predictor_of, trainer_of, weights_of
from tests.train.test_hybrid_epochs import ParcelTrainer

ACCELERATOR = "accelerator0"
MODEL = ModelConfig(model="sage", hidden=8, dropout=0.0)
CONFIG: dict[str, Any] = {"sample": (4, 3), "batch_size": 16, "devices": "host:1,accelerator:1"}
WAITS_S = 0.05
CLAIMS_S = 100.0


class WaitingTrainer(ParcelTrainer):
    """An accelerator behind a slow link, which claims to propagate slowly."""

    def send(self, share: Share) -> Any:
        time.sleep(WAITS_S)
        return super().send(share)

    def finish(self) -> Found:
        found = super().finish()
        return replace(found, seconds=found.seconds + CLAIMS_S)


def model_predictor() -> Predictor:
    torch.manual_seed(0)
    return predictor_of(build_model(MODEL, community_graph()), community_graph())


def rehearsed(**options: Any) -> RehearsedJob:
    """A rehearsal whose accelerators are in this process."""
    predictor = model_predictor()
    config = TrainConfig(**(CONFIG | options))
    source = RehearsedTrainers(predictor, predictor.prepare(community_graph()), config)
    source.trainers = {
        **(
            {HOST: HostTrainer(predictor.loss_of_batch, list(predictor.model.parameters()))}
            if source.devices.uses_host
            else {}
        ),
        **{name: WaitingTrainer(predictor) for name in source.devices.names},
    }
    return source.rehearse(torch.optim.SGD(predictor.model.parameters(), lr=0.1))


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rehearsed_trainers, "LONGEST_S", 0.0)


def test_every_size_of_a_share_and_every_stage() -> None:
    found = rehearsed()
    assert list(found.shares) == [HOST, ACCELERATOR]
    for shares in found.shares.values():
        assert [each.seeds for each in shares] == [2, 4, 8, 16]
        for each in shares:
            assert min(each.sample_s, each.load_s, each.train_s) > 0
            # Four in-edges of a seed, three of each vertex after that; rows of 32 bytes.
            assert each.seeds < each.edges <= each.seeds * (4 + 5 * 3)
            assert 32 * each.seeds < each.loaded_bytes <= 32 * 90
        assert shares[0].edges < shares[-1].edges
    assert found.synchronise_s > 0
    assert found.model_bytes == sum(each.nbytes for each in model_predictor().model.parameters())
    assert (found.num_train, found.threads) == (30, 1)


def test_copies_and_propagation_are_each_trainers_own() -> None:
    found = rehearsed()
    for host, other in zip(found.shares[HOST], found.shares[ACCELERATOR], strict=True):
        assert host.copied_bytes == host.copy_s == host.copy_core_s == 0
        # Edges travel, too.
        assert other.copied_bytes > other.loaded_bytes
        # A slow link keeps no core busy.
        assert 0 < other.copy_core_s <= other.copy_s - WAITS_S / 2
        assert host.train_s < CLAIMS_S < other.train_s


def test_a_rehearsal_with_a_process_changes_nothing_and_leaves_nothing() -> None:
    trainer = trainer_of(MODEL, **CONFIG)
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


def test_an_optimizer_that_asks_for_the_loss_is_rehearsed() -> None:
    trainer = trainer_of(MODEL, community_graph(), **CONFIG, optimizer="LBFGS")
    assert trainer.rehearse_trainers().synchronise_s > 0
