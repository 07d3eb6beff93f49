"""`sagann train --workers` on CUDA devices, where a machine has them: the losses of one process, and a worker that is lost."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
import torch

from tests.cli.test_launch import wait_for_epochs, workers_of
from tests.cli.test_process import DEADLINE_S, run, start
from tests.train.runs import lines_of

NUM_DEVICES = torch.cuda.device_count() if torch.cuda.is_available() else 0
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.distributed,
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(NUM_DEVICES == 0, reason="needs a CUDA device"),
]
two_devices = pytest.mark.skipif(NUM_DEVICES < 2, reason=f"needs two CUDA devices, and there are {NUM_DEVICES}")
EPOCHS = 4
RELATIVE = 1e-5
TIMEOUT_S = 5
OPTIONS = ("--hidden", 16, "--checkpoint-every", 2, "--epochs", EPOCHS, "--device", "cuda")


def losses(folder: Path) -> list[float]:
    return [line["loss"] for line in lines_of(folder)]


@two_devices
@pytest.mark.parametrize("model", ["gcn", "gat", "sage"])
def test_two_workers_on_two_devices_train_what_one_process_trains(model: str, blocks: Path, tmp_path: Path) -> None:
    found = {}
    for name, workers in (("alone", 1), ("together", 2), ("again", 2)):
        options = (*OPTIONS, "--model", model, "--dropout", 0.0, "--workers", workers, "--out", tmp_path / name)
        code, _, err = run("train", "--data", blocks, *options)
        assert code == 0, err
        found[name] = losses(tmp_path / name)
    assert len(found["alone"]) == EPOCHS
    assert found["together"] == pytest.approx(found["alone"], rel=RELATIVE)
    assert found["again"] == found["together"], "the same number of workers gives the same bits"


@two_devices
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_lost_worker_ends_the_others(number: signal.Signals, blocks: Path, tmp_path: Path) -> None:
    folder = tmp_path / "lost"
    options = (*OPTIONS, "--model", "gcn", "--workers", 2, "--worker-timeout", TIMEOUT_S, "--out", folder)
    with start("train", "--data", blocks, *options, "--epochs", 100000) as process:
        wait_for_epochs(folder, 4, process)
        lost = workers_of(process)[1]
        os.kill(lost, number)
        since_s = time.monotonic()
        _, err = process.communicate(timeout=DEADLINE_S)
    # The launcher waits for half a minute before it kills a worker that is stopped.
    assert time.monotonic() - since_s < TIMEOUT_S + 45
    assert process.returncode == 2
    if number is signal.SIGSTOP:
        assert f"worker 1 is gone: no answer within {TIMEOUT_S} s" in err
    else:
        assert "worker 1" in err
