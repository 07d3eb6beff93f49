from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch

from sagann.errors import InputError
from sagann.runtime.places import device_named
from sagann.train.resources import resolve_device, stop_on_interrupt
from tests.forks import run_fresh
from tests.train import runs
from tests.train.runs import Heard, assert_same_bits, numbers_of, weights_of

pytestmark = pytest.mark.usefixtures("naive")


HEAVY = ("tensorboard", "rich", "pyarrow", "numba", "scipy", "safetensors")


def test_training_is_imported_without_what_is_heavy_and_peak_memory_is_remembered():
    # In a process of its own: here an earlier test may have peaked higher than this one grows.
    code = (
        f"import sys, sagann.train; print([name for name in {HEAVY} if name in sys.modules]); "
        "import torch; from sagann.train.resources import peak_rss_bytes; before = peak_rss_bytes(); "
        "grown = torch.ones(256 * 2**20, dtype=torch.uint8); at_most = peak_rss_bytes(); del grown; "
        "print(before, at_most, peak_rss_bytes())"
    )
    loaded, numbers = run_fresh(code).splitlines()
    assert loaded == "[]"
    before, grown, after = map(int, numbers.split())
    assert before + 200 * 2**20 < grown < 2**40
    assert after > before + 200 * 2**20


def test_devices():
    assert resolve_device("cpu") == torch.device("cpu")
    assert resolve_device("auto").type == ("cuda" if torch.cuda.is_available() else "cpu")
    for name in ("cuda:99", "tpu"):
        with pytest.raises(InputError, match=rf"no such device: '{name}'; PyTorch .*TrainConfig\.device.*cuda:N"):
            resolve_device(name)


def test_an_index_is_not_taken_for_a_smaller_one(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    for name in ("cuda:1", "cuda:256"):
        with pytest.raises(InputError, match=rf"no such device: '{name}'; PyTorch .*TrainConfig\.device"):
            resolve_device(name)
        with pytest.raises(InputError, match=rf"no such device: '{name}'; PyTorch .*stream\.device"):
            device_named(name)
    assert resolve_device("cuda:0") == device_named("cuda:0") == torch.device("cuda", 0)
    assert device_named(torch.device("cuda", 0)) == torch.device("cuda", 0)


def press(times=1):
    for _ in range(times):
        os.kill(os.getpid(), signal.SIGINT)


def trainer_of(run_dir=None, reporter=None):
    return runs.trainer_of(epochs=9, checkpoint_every=5, run_dir=run_dir, reporter=reporter)


@pytest.mark.parametrize("by_thread", [False, True])
def test_a_run_that_is_stopped_saves_and_goes_on_bitwise(tmp_path, by_thread):
    whole = trainer_of(tmp_path / "whole")
    expected = whole.fit()
    before = signal.getsignal(signal.SIGINT)

    def stop():
        thread = threading.Thread(target=trainer.stop)
        thread.start()
        thread.join()

    reporter = Heard(3, call=stop if by_thread else press)
    trainer = trainer_of(tmp_path / "run", reporter)
    result = trainer.fit()
    assert (result.interrupted, result.epochs, result.metrics) == (True, 3, {})
    assert reporter.results == [result]
    said = ["Stopping after this epoch. Press Ctrl-C again to stop at once."]
    assert reporter.messages == ([] if by_thread else said)
    assert signal.getsignal(signal.SIGINT) is before
    assert [path.name for path in (tmp_path / "run" / "checkpoints").iterdir()] == ["epoch-000003.pt"]
    assert not (tmp_path / "run" / "metrics.json").exists()
    resumed = trainer_of(tmp_path / "run")
    result = resumed.fit(resume=True)
    assert not result.interrupted
    assert numbers_of(result) == numbers_of(expected)
    assert_same_bits(weights_of(resumed.model), weights_of(whole.model))


def test_a_second_ctrl_c_stops_at_once(tmp_path):
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        trainer_of(tmp_path, Heard(3, call=lambda: press(2))).fit()
    assert signal.getsignal(signal.SIGINT) is before
    assert trainer_of(tmp_path).fit(resume=True).epochs == 9


def test_ctrl_c_in_the_last_epoch_changes_nothing():
    result = trainer_of(reporter=Heard(9, call=press)).fit()
    assert not result.interrupted
    assert set(result.metrics) == {"train", "val", "test"}


def test_an_ignored_ctrl_c_stays_ignored():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with stop_on_interrupt(pytest.fail, pytest.fail):
            os.kill(os.getpid(), signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)


class PressedWhileWritten(io.RawIOBase):
    """A stream of which the first write is interrupted by Ctrl-C."""

    def __init__(self):
        self.lines = []

    def writable(self):
        return True

    def write(self, data):
        self.lines.append(bytes(data).decode())
        if len(self.lines) == 1:
            os.kill(os.getpid(), signal.SIGINT)
        return len(data)


def test_a_ctrl_c_in_the_midst_of_a_line_is_said_after_the_line():
    raw, stopped = PressedWhileWritten(), []
    stream = io.TextIOWrapper(io.BufferedWriter(raw), write_through=True)

    def say(text):
        print(text, file=stream, flush=True)

    with stop_on_interrupt(lambda: stopped.append(True), say, after="batch"):
        print("epoch 1", file=stream, flush=True)
    assert stopped == [True]
    assert "".join(raw.lines) == "epoch 1\nStopping after this batch. Press Ctrl-C again to stop at once.\n"


TERMINATED = """
import signal, sys
from pathlib import Path
import torch
from sagann.nn import ModelConfig
from sagann.train import TrainConfig, Trainer
from tests.cli.mischief import at_load
from tests.train.runs import community_graph

spill = Path(sys.argv[1])
class Told(BaseException):
    pass

def handle(number, frame):
    raise Told

def terminate():
    assert signal.getsignal(signal.SIGTERM) is handle
    signal.raise_signal(signal.SIGTERM)

signal.signal(signal.SIGTERM, handle)
model = ModelConfig(model="gcn", layers=2, hidden=16)
config = TrainConfig(device="cpu", memory="40kB", spill=str(spill))
try:
    with at_load(20, terminate, later_s=0.2):
        Trainer(model, community_graph(600), config).fit()
except Told:
    print(list(spill.iterdir()), signal.getsignal(signal.SIGTERM) is handle)
"""


def test_the_library_leaves_sigterm_to_the_program_and_raises_what_its_handler_raises(tmp_path):
    ended = subprocess.run(
        [sys.executable, "-c", TERMINATED, tmp_path],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "[] True\n", "")
