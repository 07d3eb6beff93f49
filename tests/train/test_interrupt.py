from __future__ import annotations

import os
import signal
import threading

import pytest

from sagann.train import TrainConfig, Trainer
from sagann.train.interrupt import stop_on_interrupt
from tests.train.runs import assert_same_bits, community_graph, numbers_of, seeded_model, weights_of


class PressCtrlC:
    def __init__(self, *epochs):
        self.epochs = epochs
        self.messages = []

    def on_start(self, info):
        pass

    def on_epoch(self, record):
        for epoch in self.epochs:
            if record.epoch == epoch:
                os.kill(os.getpid(), signal.SIGINT)

    def on_end(self, result):
        self.result = result

    def on_message(self, text):
        self.messages.append(text)


def trainer_of(run_dir=None, reporter=None):
    config = TrainConfig(epochs=9, checkpoint_every=5, device="cpu")
    return Trainer(seeded_model(), community_graph(), config, run_dir=run_dir, reporter=reporter)


def test_ctrl_c_stops_with_a_checkpoint_and_the_run_goes_on_bitwise(tmp_path):
    whole = trainer_of(tmp_path / "whole")
    expected = whole.fit()
    before = signal.getsignal(signal.SIGINT)
    reporter = PressCtrlC(3)
    result = trainer_of(tmp_path / "run", reporter).fit()
    assert (result.interrupted, result.epochs, result.metrics) == (True, 3, {})
    assert reporter.result is result
    assert reporter.messages == ["Stopping after this epoch. Press Ctrl-C again to stop at once."]
    assert signal.getsignal(signal.SIGINT) is before
    assert [path.name for path in (tmp_path / "run" / "checkpoints").iterdir()] == ["epoch-000003"]
    assert not (tmp_path / "run" / "metrics.json").exists()

    resumed = trainer_of(tmp_path / "run")
    result = resumed.fit(resume=True)
    assert not result.interrupted
    assert numbers_of(result) == numbers_of(expected)
    assert_same_bits(weights_of(resumed.model), weights_of(whole.model))


def test_a_second_ctrl_c_stops_at_once(tmp_path):
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        trainer_of(tmp_path, PressCtrlC(3, 3)).fit()
    assert signal.getsignal(signal.SIGINT) is before
    assert trainer_of(tmp_path).fit(resume=True).epochs == 9


def test_without_a_run_folder_ctrl_c_stops_too():
    assert trainer_of(reporter=PressCtrlC(2)).fit().epochs == 2


def test_ctrl_c_in_the_last_epoch_changes_nothing():
    result = trainer_of(reporter=PressCtrlC(9)).fit()
    assert not result.interrupted
    assert set(result.metrics) == {"train", "val", "test"}


def test_outside_the_main_thread_signals_are_left_alone():
    seen = []

    def work():
        with stop_on_interrupt(seen.append) as stop:
            seen.append(stop.is_set())

    before = signal.getsignal(signal.SIGINT)
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [False]
    assert signal.getsignal(signal.SIGINT) is before


def test_an_ignored_ctrl_c_stays_ignored():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with stop_on_interrupt(pytest.fail) as stop:
            os.kill(os.getpid(), signal.SIGINT)
        assert not stop.is_set()
    finally:
        signal.signal(signal.SIGINT, before)
