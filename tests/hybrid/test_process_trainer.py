"""A trainer in a process of its own: its gradient, and every way in which it may fail."""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Iterator

import pytest
from torch import nn

from sagann.errors import InputError, TrainerError
from sagann.hybrid.process_trainer import ProcessTrainer, pickled
from sagann.hybrid.trainer import Found, Share
from tests.hybrid.processes import is_running
from tests.hybrid.replicas import Replica, published, shares_of

PARAMETERS = tuple(Replica()()[0].parameters())


@pytest.fixture(scope="module")
def trainer() -> Iterator[ProcessTrainer]:
    """A trainer whose masks are dropped, on one core. Ctrl-C, which a terminal sends to all processes, does not end its start."""
    cores = sorted(os.sched_getaffinity(0))[:1] if hasattr(os, "sched_getaffinity") else ()
    found = ProcessTrainer("accelerator0", Replica(dropout=0.5), PARAMETERS, cores=cores)
    os.kill(found.pid, signal.SIGINT)
    found.open()
    assert signal.getsignal(signal.SIGINT) is not signal.SIG_IGN
    yield found
    found.close()
    assert not is_running(found.pid)


@pytest.fixture
def doomed() -> Iterator[ProcessTrainer]:
    """A trainer that does not survive its test."""
    found = ProcessTrainer("accelerator0", Replica(), PARAMETERS)
    found.open()
    yield found
    found.close()
    assert not is_running(found.pid)


def train(trainer: ProcessTrainer, share: Share) -> Found:
    sent = trainer.send(share)
    trainer.launch(sent, published(PARAMETERS))
    found = trainer.finish()
    trainer.release(sent)
    return found


def test_masks_depend_on_the_seed_of_the_share_alone(trainer: ProcessTrainer) -> None:
    losses = [train(trainer, shares_of(20, seed=seed)[0]).numbers[0].item() for seed in (1, 2, 1)]
    assert losses[0] == losses[2] != losses[1]


def test_an_error_of_the_process_is_told(trainer: ProcessTrainer) -> None:
    with pytest.raises(
        TrainerError, match=r"'accelerator0' has failed while propagating epoch 0, batch 0.*no such number"
    ):
        train(trainer, shares_of(1, 19)[0])


def test_full_shared_memory_is_refused_before_it_is_touched(
    trainer: ProcessTrainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    monkeypatch.setattr(trainer, "_free", [])
    with pytest.raises(InputError, match=r"memory that processes share is full.*No space left.*'accelerator0'"):
        trainer.send(shares_of(20)[0])


def test_a_process_that_exits_is_named_with_what_it_did(doomed: ProcessTrainer) -> None:
    with pytest.raises(TrainerError, match=r"is gone.*exit code 3 while propagating epoch 0, batch 0"):
        train(doomed, shares_of(2, 18)[0])


def test_a_process_that_is_stopped_is_no_hang_and_one_that_is_killed_is_named(doomed: ProcessTrainer) -> None:
    slow, share = shares_of(3, 17)
    os.kill(doomed.pid, signal.SIGSTOP)
    doomed._most_wait_s = 0.5
    with pytest.raises(TrainerError, match=r"does not answer.*within 0.5 s while propagating epoch 0, batch 0"):
        train(doomed, slow)
    doomed._most_wait_s = 60
    doomed.launch(doomed.send(slow), published(PARAMETERS))
    os.kill(doomed.pid, signal.SIGKILL)
    with pytest.raises(TrainerError, match=r"is gone.*ended by SIGKILL while propagating epoch 0, batch 0"):
        doomed.finish()
    with pytest.raises(TrainerError, match="is gone"):
        train(doomed, share)


def test_a_model_that_cannot_be_made_there_is_an_error_of_the_start() -> None:
    trainer = ProcessTrainer("accelerator0", Replica(starts=False), PARAMETERS)
    with pytest.raises(TrainerError, match=r"has failed while starting.*there is no such model"):
        trainer.open()
    trainer.close()


def test_a_model_that_cannot_be_pickled_is_refused() -> None:
    model = nn.Linear(1, 1)
    model.register_forward_hook(lambda *given: None)
    with pytest.raises(InputError, match="cannot be sent to another process"):
        pickled(model)
