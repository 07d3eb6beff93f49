from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from sagann.graph import rmat_graph
from sagann.storage import save_graph
from tests.cli.conftest import Invoke, Outcome
from tests.plan.machines import ROUND
from tests.train.runs import written_lines

QUICK = ("--hidden", "8", "--epochs", "3")


def test_its_configuration_does_the_same_run_again(invoke: Invoke, trained: Path, tmp_path: Path) -> None:
    assert invoke("train", "--config", trained / "config.toml", "--out", tmp_path / "again").code == 0
    weights = [(folder / "model.safetensors").read_bytes() for folder in (trained, tmp_path / "again")]
    assert weights[0] == weights[1]
    assert (tmp_path / "again" / "config.toml").read_text() == (trained / "config.toml").read_text()


def test_quiet_leaves_results_only(invoke: Invoke, blocks: Path, tmp_path: Path) -> None:
    outcome = invoke(
        "train", "--data", blocks, *QUICK, "--out", tmp_path / "run", "--split", "random:0.5,0.2", "-q"
    )
    assert outcome.code == 0
    assert outcome.err == ""


def test_the_run_folder_has_a_default(
    invoke: Invoke, blocks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        assert invoke("train", "--data", blocks, *QUICK).code == 0
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == ["blocks-gcn", "blocks-gcn-2"]


def test_a_run_is_not_overwritten_unasked(invoke: Invoke, blocks: Path, tmp_path: Path) -> None:
    arguments = ("train", "--data", blocks, "--hidden", "8", "--out", tmp_path)
    assert invoke(*arguments, "--epochs", "3").code == 0
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
    refused = invoke(*arguments, "--epochs", "2")
    assert refused.code == 2
    assert refused.err.startswith(
        "Error: the run folder holds a run: neither resume nor overwrite was asked for (in "
    )
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()} == before
    assert invoke(*arguments, "--epochs", "2", "--overwrite").code == 0
    assert json.loads((tmp_path / "metrics.json").read_text())["epochs"] == 2


def test_a_manifest_of_another_program_makes_no_dataset(invoke: Invoke, blocks: Path, tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text('{"name": "a site"}')
    assert invoke("train", "--data", blocks, *QUICK, "--out", tmp_path / "run").code == 0


def test_a_start_that_was_interrupted_does_not_occupy_its_folder(
    invoke: Invoke, blocks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "run"

    def interrupted(handle: int) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", interrupted)
        assert invoke("train", "--data", blocks, *QUICK, "--out", folder).code == 130
    assert [path.name for path in folder.iterdir()] == [".tmp-config.toml"]
    assert invoke("train", "--data", blocks, *QUICK, "--out", folder).code == 0
    assert ".tmp-config.toml" not in {path.name for path in folder.iterdir()}


def test_a_run_that_failed_before_its_first_epoch_is_corrected_in_place(
    invoke: Invoke, blocks: Path, tmp_path: Path
) -> None:
    arguments = ("train", "--data", blocks, *QUICK, "--out", tmp_path / "run")
    failed = invoke(*arguments, "--optimizer", "SGD", "--lr", "1e35")
    assert failed.code == 2
    assert (tmp_path / "run" / "config.toml").exists()
    assert invoke(*arguments).code == 0


def test_resume_with_another_engine_is_refused(invoke: Invoke, blocks: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert invoke("train", "--data", blocks, *QUICK, "--out", run, "--engine", "lean").code == 0
    # It computes the same, to the last bit.
    assert invoke("train", "--resume", "--out", run, "--engine", "compiled", "--epochs", "4").code == 0
    outcome = invoke("train", "--resume", "--out", run, "--engine", "naive", "--epochs", "5")
    assert outcome.code == 2
    assert "the run was started differently: engine was CompiledEngine, is NaiveEngine" in outcome.err


def test_a_split_is_drawn_where_there_is_none(invoke: Invoke, tmp_path: Path) -> None:
    graph = rmat_graph(60, 200, num_features=3, num_classes=2, seed=0)
    from dataclasses import replace

    save_graph(replace(graph, splits={}), tmp_path / "data")
    outcome = invoke("train", "--data", tmp_path / "data", *QUICK, "--out", tmp_path / "run")
    assert outcome.code == 0
    notes = [line for line in outcome.err.splitlines() if "no splits" in line]
    assert len(notes) == 1
    assert "60 % of the labelled vertices train, 20 % validate, 20 % test (seed 0)" in notes[0]
    # Evaluation finds the same vertices again.
    assert "no splits" in invoke("evaluate", "--run", tmp_path / "run").err


@pytest.mark.parametrize(
    ("sampled", "place"), [((), "epoch 5"), (("--sample", "5,5", "--batch-size", "16"), "batch 1 of epoch 5")]
)
def test_interrupt_saves_and_tells_how_to_go_on(
    invoke: Invoke,
    blocks: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    sampled: tuple[str, ...],
    place: str,
) -> None:
    from sagann.train.session import TrainSession

    run_epoch = TrainSession.run_epoch

    def interrupted(self: TrainSession, **options: Any) -> object:

        if self.epoch == 4:
            signal.raise_signal(signal.SIGINT)
        return run_epoch(self, **options)

    monkeypatch.setattr(TrainSession, "run_epoch", interrupted)
    folder = tmp_path / "my run"
    outcome = invoke("train", "--data", blocks, "--hidden", "8", "--epochs", "9", *sampled, "--out", folder)
    assert outcome.code == 130
    assert f"Interrupted after {place}, and saved." in outcome.err
    assert f"sagann train --resume --out '{folder}'" in outcome.err
    monkeypatch.undo()
    assert invoke("train", "--resume", "--out", folder).code == 0
    assert json.loads((folder / "metrics.json").read_text())["epochs"] == 9


OWN_MODEL = """
import torch
from torch import nn
import sagann

class Mean(sagann.SagaLayer):
    accumulator = "mean"
    def __init__(self, in_dim, out_dim):
        super().__init__()
        self.linear = nn.Linear(in_dim, out_dim)
    def apply_vertex(self, vertex, accum):
        return self.linear(accum)

class Broken(Mean):
    def apply_vertex(self, vertex, accum):
        return self.linear(accum[:, :1])
"""


def test_the_users_own_layer(invoke: Invoke, blocks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "layers.py").write_text(OWN_MODEL)
    monkeypatch.chdir(tmp_path)
    assert invoke("train", "--data", blocks, "--model", "layers.py:Mean", *QUICK).code == 0
    monkeypatch.chdir(Path("/"))
    run = tmp_path / "runs" / "blocks-Mean"
    refused = invoke("evaluate", "--run", run)
    assert refused.code == 2
    assert "executed only where it is named again" in refused.err
    own = f"{tmp_path}/layers.py:Mean"
    assert invoke("evaluate", "--run", run, "--model", own).code == 0
    assert invoke("predict", "--run", run, "--model", own, "--out", tmp_path / "p.csv").code == 0
    assert invoke("embed", "--run", run, "--model", own, "--out", tmp_path / "e.npy").code == 0
    outcome = invoke(
        "train", "--data", blocks, "--model", f"{tmp_path}/layers.py:Broken", *QUICK, "--out", tmp_path / "b"
    )
    assert outcome.code == 2
    assert "layers.py" in outcome.err


def test_the_users_own_layer_in_two_files_with_options(invoke: Invoke, blocks: Path, tmp_path: Path) -> None:
    parts, layers, run = tmp_path / "parts.py", tmp_path / "layers.py", tmp_path / "run"
    parts.write_text(OWN_MODEL)
    layers.write_text(
        "import torch\nfrom parts import Mean\nclass Scaled(Mean):\n"
        "    def __init__(self, in_dim, out_dim, *, scale=1.0, act='relu'):\n"
        "        super().__init__(in_dim, out_dim)\n        self.scale, self.act = scale, getattr(torch, act)\n"
        "    def apply_vertex(self, vertex, accum):\n        return self.act(super().apply_vertex(vertex, accum)) * self.scale\n"
    )
    own = ("--model", f"{layers}:Scaled")
    options = ("--model-option", "scale=2", "--model-option", "act=tanh")
    assert invoke("train", "--data", blocks, *own, *options, *QUICK, "--out", run).code == 0
    model = json.loads((run / "run.json").read_text())["model"]
    assert model["config"]["model_options"] == {"scale": 2, "act": "tanh"}
    assert invoke("evaluate", "--run", run, *own).code == 0
    resumed = invoke("train", "--resume", "--out", run, *own, "--epochs", "4")
    assert resumed.code == 0, resumed.err
    refused = invoke("train", "--data", blocks, *own, "--model-option", "skale=2", *QUICK, "--out", tmp_path / "x")
    assert refused.code == 2
    assert "Did you mean 'scale'?" in refused.err
    parts.write_text(OWN_MODEL + "# changed\n")
    other = invoke("train", "--resume", "--out", run, *own, "--epochs", "5")
    assert other.code == 2
    assert "model.imports.parts.py was " in other.err
    parts.write_text(OWN_MODEL.replace("return self.linear(accum)", "raise OSError('broken part')"))
    failed = invoke("evaluate", "--run", run, *own)
    assert failed.code == 2
    assert "OSError: broken part" in failed.err
    assert "parts.py" in failed.err


def foreign_run(trained: Path, tmp_path: Path) -> tuple[Path, str]:
    """A run folder that somebody else has sent, whose model is a Python file that leaves a mark where it is executed."""
    run, file = tmp_path / "foreign", tmp_path / "my models" / "evil.py"
    file.parent.mkdir()
    file.write_text(f"import os\nos.mkdir({str(tmp_path / 'executed')!r})\n{OWN_MODEL}")
    shutil.copytree(trained, run)
    config = run / "config.toml"
    config.write_text(config.read_text().replace('model = "gcn"', f'model = "{file}:Mean"'))
    return run, f"{file}:Mean"


def commands_of_a_run(run: Path, tmp_path: Path) -> list[tuple[object, ...]]:
    config, new = run / "config.toml", tmp_path / "new"
    return [
        ("train", "--resume", "--out", run),
        ("train", "--resume", "--config", config, "--out", run),
        ("train", "--config", config, "--out", new),
        ("train", "--config", config, "--out", new, "--memory", "20kB"),
        ("train", "--config", config, "--out", run, "--overwrite"),
        ("plan", "--config", config),
        ("plan", "--config", config, "--memory", "20kB"),
    ]


@pytest.mark.parametrize("number", range(7))
def test_a_model_file_that_only_a_run_folder_names_is_not_executed(
    invoke: Invoke, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    # Measuring a machine takes half a minute.
    monkeypatch.setattr("sagann.cli.plan_run.probe", lambda *_: ROUND)
    run, model = foreign_run(trained, tmp_path)
    command = commands_of_a_run(run, tmp_path)[number]
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    refused = invoke(*command)
    assert refused.code == 2
    assert refused.err == (
        f"Error: a model in a Python file is executed only where it is named again: '{model}' "
        f"(in {run / 'config.toml'})\n"
        f"  hint: If you trust that file, add --model '{model}'; in Python, pass model='{model}'.\n"
    )
    assert not (tmp_path / "executed").exists()
    assert not (tmp_path / "new").exists()
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before
    # What the message says is what to do.
    invoke(*command, "--model", model)
    assert (tmp_path / "executed").exists()


FAILS = """
import os, sys
import torch
import typer
from torch import nn

class Own(BaseException): pass
class Stop(KeyboardInterrupt): pass

def fail(place):
    if place == {place!r}:
        {fails}

class Rows(torch.autograd.Function):
    @staticmethod
    def forward(context, x):
        return x * 1
    @staticmethod
    def backward(context, gradient):
        fail("backward")
        return gradient

fail("import")

class Net(nn.Module):
    def __init__(self, in_dim, out_dim):
        super().__init__()
        self.linear = nn.Linear(in_dim, out_dim)
        fail("init")
    def forward(self, hops, x):
        fail("forward")
        return Rows.apply(self.linear(x))
"""


@pytest.mark.parametrize(
    ("place", "fails", "named"),
    [
        ("import", "sys.exit(0)", "SystemExit"),
        ("init", "sys.exit(3)", "SystemExit: 3"),
        ("forward", "raise typer.Exit(0)", "Exit"),
        ("forward", "raise BrokenPipeError('gone')", "BrokenPipeError: gone"),
        ("forward", "raise Stop('not Ctrl-C')", "Stop: not Ctrl-C"),
        ("backward", "raise Own('of my own')", "Own: of my own"),
    ],
)
def test_a_model_that_ends_the_program_has_failed(
    invoke: Invoke, blocks: Path, tmp_path: Path, place: str, fails: str, named: str
) -> None:
    (tmp_path / "leaves.py").write_text(FAILS.format(place=place, fails=fails))
    arguments = ("--data", blocks, *QUICK, "--out", tmp_path / "run")
    outcome = invoke("train", *arguments, "--model", f"{tmp_path}/leaves.py:Net")
    assert outcome.code == 2
    message, hint = outcome.err.splitlines()[-2:]
    assert message.startswith(("Error: your model failed: ", "Error: model file failed to run: "))
    assert named in message
    assert "leaves.py" in message
    assert hint.startswith("  hint: ")
    assert "Traceback" not in outcome.err


@pytest.mark.parametrize("place", ["import", "backward"])
def test_ctrl_c_in_a_model_stays_ctrl_c(invoke: Invoke, blocks: Path, tmp_path: Path, place: str) -> None:
    (tmp_path / "slow.py").write_text(FAILS.format(place=place, fails="raise KeyboardInterrupt"))
    arguments = ("--data", blocks, *QUICK, "--out", tmp_path / "run")
    outcome = invoke("train", *arguments, "--model", f"{tmp_path}/slow.py:Net")
    assert outcome.code == 130
    assert "your model failed" not in outcome.err
    assert "Traceback" not in outcome.err


def test_an_accelerator_that_simulates_hardware_kernels(invoke: Invoke, blocks: Path, tmp_path: Path) -> None:
    def train(name: str, *options: object) -> Outcome:
        batches = ("--sample", "4,3", "--batch-size", "16", "--devices", "host:1,accelerator:fpga:kernel")
        return invoke("train", "--data", blocks, "--out", tmp_path / name, *QUICK, *batches, *options)

    refused = train("refused", "--model", "gat")
    assert refused.code == 2
    assert "hardware kernels do not compute the model: GNN is no stack of GCN or of SAGE" in refused.err
    assert "hint: Take gcn or sage with --dropout 0" in refused.err
    normed = train("refused", "--model", "sage", "--norm", "batch", "--devices", "host:1,accelerator:1")
    assert "mini-batches are divided among devices" in normed.err
    many = train("refused", "--model", "sage", "--devices", "host:1,accelerator:8000")
    assert "accelerators have more cores than there are" in many.err
    assert not (tmp_path / "refused").exists()
    trained = train("trained", "--model", "sage", "--dropout", "0")
    assert trained.code == 0, trained.err
    lines = written_lines(tmp_path / "trained")
    assert all(line["trainer_s"][1] < line["trainer_simulation_s"][1] for line in lines)
