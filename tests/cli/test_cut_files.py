"""Files of a dataset that are cut while a command reads them: one message, exit code 2, and nothing is left behind."""

from __future__ import annotations

import importlib
import os
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Invoke
from tests.cli.test_launch import wait_for_epochs
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


CUTTING_MODEL = """
import os
import torch
from torch import nn

class Cutting(nn.Module):
    "Cuts a file whenever it computes, if the environment names one."
    num_hops = 1
    def __init__(self, in_dim, out_dim):
        super().__init__()
        self.linear = nn.Linear(in_dim, out_dim)
    def forward(self, hops, x):
        if "CUT" in os.environ:
            os.truncate(os.environ["CUT"], 0)
        return self.linear(x)
"""


@pytest.mark.parametrize("command", ["evaluate", "predict"])
@pytest.mark.parametrize("name", ["features", "indices"])
@pytest.mark.tries("cut")
def test_in_the_midst_of_the_use_of_a_model(
    invoke: Invoke, dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, name: str
) -> None:
    (tmp_path / "cutting.py").write_text(CUTTING_MODEL)
    model = ("--model", f"{tmp_path / 'cutting.py'}:Cutting")
    trained = invoke("train", "--data", dataset, *model, "--epochs", 1, "--out", tmp_path / "run")
    assert trained.code == 0, trained.err
    path, out = dataset / f"{name}.npy", tmp_path / "out.csv"
    monkeypatch.setenv("CUT", str(path))
    options = ("--out", out) if command == "predict" else ()
    ended = invoke(command, "--run", tmp_path / "run", *model, *options)
    assert ended.code == 2, ended.err
    assert "Error: array file has become shorter: " in ended.err
    assert f"  in:  {path}\n" in ended.err
    assert not out.exists()


@pytest.mark.parametrize(
    ("command", "function"),
    [
        (("data", "reorder", "DATA", "OUT"), "sagann.partition.vertex_order"),
        (("data", "score", "DATA", "--fanouts", "2,2"), "sagann.cli.score_run.measured_accesses"),
        (("data", "check", "DATA"), "sagann.storage.dataset.validate_graph"),
    ],
    ids=["reorder", "score", "check"],
)
@pytest.mark.tries("cut")
def test_in_the_midst_of_work_on_a_dataset(
    invoke: Invoke,
    dataset: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    command: tuple[str, ...],
    function: str,
) -> None:
    path = dataset / "indices.npy"
    module, name = function.rsplit(".", 1)
    works = getattr(importlib.import_module(module), name)

    def cut(*arguments: Any, **options: Any) -> Any:
        os.truncate(path, 0)
        return works(*arguments, **options)

    monkeypatch.setattr(function, cut)
    names = {"DATA": dataset, "OUT": tmp_path / "out"}
    ended = invoke(*(names.get(each, each) for each in command))
    assert ended.code == 2, ended.err
    assert "Error: array file has become shorter: " in ended.err
    assert f"  in:  {path}\n" in ended.err
    assert ended.out == ""
    assert not (tmp_path / "out").exists()
    assert sorted(each.name for each in tmp_path.iterdir()) == ["blocks"]


@pytest.mark.distributed
@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [("--workers", 2), ("--sample", "5,5", "--batch-size", 64, "--devices", "host:1,accelerator:1")],
    ids=["workers", "trainers"],
)
@pytest.mark.tries("cut")
def test_in_the_midst_of_a_run_of_several_processes(
    dataset: Path, tmp_path: Path, warm: Warm, options: tuple[object, ...]
) -> None:
    folder, path = tmp_path / "run", dataset / "indices.npy"
    arguments = ("train", "--data", dataset, "--model", "sage", "--hidden", 8, "--epochs", 10**6, "--out", folder)
    with warm.start(*arguments, *options, env={"OMP_NUM_THREADS": "1"}) as process:
        wait_for_epochs(folder, 2, process)
        os.truncate(path, 0)
        out, err = process.communicate(timeout=DEADLINE_S)
    assert (process.returncode, out) == (2, ""), err
    assert "Error: array file has become shorter: " in err
    assert f"  in:  {path}\n" in err
    assert "Traceback" not in err
    assert not (folder / "metrics.json").exists()
