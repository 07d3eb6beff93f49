"""A rehearsal measures every trainer of a run on shares of several sizes, and leaves the run as it was."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch

from sagann.errors import InputError
from sagann.hybrid.trainer import HostTrainer
from sagann.nn import ModelConfig, build_model
from sagann.plan.hybrid.assignment import HOST
from sagann.train import TrainConfig, rehearsed_trainers
from sagann.train.predictor import Predictor
from sagann.train.rehearsed_trainers import RehearsedTrainers
from tests.hybrid.processes import spawned_by
from tests.train.runs import assert_same_bits, community_graph, predictor_of, trainer_of, weights_of
from tests.train.test_hybrid_epochs import ParcelTrainer

ACCELERATOR = "accelerator0"
MODEL = ModelConfig(model="sage", hidden=8, dropout=0.0)
CONFIG: dict[str, Any] = {"sample": (4, 3), "batch_size": 16, "devices": "host:1,accelerator:1"}


def model_predictor() -> Predictor:
    torch.manual_seed(0)
    return predictor_of(build_model(MODEL, community_graph()), community_graph())


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rehearsed_trainers, "LONGEST_S", 0.0)


def test_every_size_of_a_share_and_every_stage() -> None:
    # Its accelerator is in this process.
    predictor = model_predictor()
    source = RehearsedTrainers(predictor, predictor.prepare(community_graph()), TrainConfig(**CONFIG))
    host = HostTrainer(predictor.loss_of_batch, list(predictor.model.parameters()))
    source.trainers = {HOST: host, ACCELERATOR: ParcelTrainer(predictor)}
    found = source.rehearse(torch.optim.SGD(predictor.model.parameters(), lr=0.1))
    assert list(found.shares) == [HOST, ACCELERATOR]
    for shares in found.shares.values():
        assert [each.seeds for each in shares] == [2, 4, 8, 16]
        for each in shares:
            assert min(each.sample_s, each.load_s, each.train_s) > 0
            # Four in-edges of a seed, three of each vertex after that; rows of 32 bytes.
            assert each.seeds < each.edges <= each.seeds * (4 + 5 * 3)
            assert 32 * each.seeds < each.loaded_bytes <= 32 * 90
        assert shares[0].edges < shares[-1].edges
    for host_share, other in zip(found.shares[HOST], found.shares[ACCELERATOR], strict=True):
        assert host_share.copied_bytes == host_share.copy_s == host_share.copy_core_s == 0
        # Edges travel, too.
        assert other.copied_bytes > other.loaded_bytes
    assert found.synchronise_s > 0
    assert found.model_bytes == sum(each.nbytes for each in predictor.model.parameters())
    assert (found.num_train, found.threads) == (30, 1)


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
