"""Files of a dataset that are cut while a command reads them: one message, exit code 2, and nothing is left behind."""

from __future__ import annotations

import os
import shutil
import signal
import time
from pathlib import Path

import pytest

from tests.cli.conftest import Invoke
from tests.cli.test_process import DEADLINE_S
from tests.cli.warm import Warm


@pytest.fixture
def dataset(blocks: Path, tmp_path: Path) -> Path:
    return shutil.copytree(blocks, tmp_path / "blocks")


@pytest.mark.parametrize("name", ["features", "indices", "indptr", "labels", "split_val"])
@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.tries("cut")
def test_in_the_midst_of_a_run(
    invoke: Invoke, warm: Warm, dataset: Path, tmp_path: Path, name: str, streamed: bool
) -> None:
    out, path = tmp_path / "run", dataset / f"{name}.npy"
    options = ("--memory", "14kB") if streamed else ("--dropout", 0)
    # SAGE walks the edges of the dataset as they lie in their files.
    arguments = ("--data", dataset, "--model", "sage", "--hidden", 8, *options, "--checkpoint-every", 1)
    arguments = ("train", *arguments, "--epochs", 10**9, "--out", out)
    with warm.start(*arguments) as process:
        history, limit_s = out / "metrics.jsonl", time.monotonic() + DEADLINE_S
        while not (history.exists() and history.stat().st_size > 0):
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < limit_s
            time.sleep(0.01)
        content = path.read_bytes()
        os.truncate(path, 0)
        out_text, err = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 2, (out_text, err)
    what, where, fix = (line for line in err.splitlines() if line.startswith(("Error:", "  in:", "  fix:")))
    assert what.startswith("Error: array file has become shorter: ")
    assert where == f"  in:  {path}"
    assert "Traceback" not in err
    assert fix
    assert not (out / "spill").exists()
    assert not (out / "metrics.json").exists()
    # The run goes on where the file is whole again.
    path.write_bytes(content)
    epochs = len(history.read_text().splitlines()) + 1
    ended = invoke("train", "--resume", "--out", out, "--epochs", epochs)
    assert ended.code == 0, ended.err


def test_the_signal_still_ends_other_programs(blocks: Path, warm: Warm) -> None:
    with warm.start("train", "--data", blocks, "--epochs", 10**9, "--out", blocks.parent / "signal") as process:
        limit_s = time.monotonic() + DEADLINE_S
        while not (blocks.parent / "signal" / "checkpoints").exists():
            assert time.monotonic() < limit_s
            time.sleep(0.01)
        process.send_signal(signal.SIGBUS)
        process.communicate(timeout=DEADLINE_S)
    assert process.returncode == -signal.SIGBUS
