from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch

from sagann.errors import InputError
from sagann.graph import random_split, rmat_graph
from sagann.graph.large_arrays import empty_array
from sagann.runtime.blocks.spill import Scratch
from sagann.storage import load_graph, save_graph
from tests.cli.conftest import Invoke

QUICK = ("--hidden", "8", "--epochs", "3")


def test_a_run_leaves_metrics_and_configuration(trained: Path, blocks: Path) -> None:
    metrics = json.loads((trained / "metrics.json").read_text())
    assert metrics["model"] == "gcn"
    assert metrics["data"] == str(blocks)
    assert metrics["num_vertices"] == 120
    assert metrics["num_edges"] == load_graph(blocks).num_edges
    assert metrics["epochs"] == 30
    assert metrics["epoch_s"] > 0
    assert metrics["peak_rss_bytes"] > 2**20
    for split in ("train", "val", "test"):
        assert 0.7 < metrics[split]["accuracy"] <= 1
    config = tomllib.loads((trained / "config.toml").read_text())
    assert config["data"]["data"] == str(blocks)
    assert config["model"]["hidden"] == 8
    assert config["train"]["patience"] == "none"


def test_its_configuration_does_the_same_run_again(invoke: Invoke, trained: Path, tmp_path: Path) -> None:
    assert invoke("train", "--config", trained / "config.toml", "--out", tmp_path / "again").code == 0
    weights = [(folder / "model.safetensors").read_bytes() for folder in (trained, tmp_path / "again")]
    assert weights[0] == weights[1]
    assert (tmp_path / "again" / "config.toml").read_text() == (trained / "config.toml").read_text()


def test_a_run_within_a_memory_budget(invoke: Invoke, blocks: Path, tmp_path: Path) -> None:
    metrics = []
    for number, memory in enumerate((("--memory", "20kB"), ())):
        out = tmp_path / str(number)
        run = ("train", "--data", blocks, *QUICK, "--dropout", "0", *memory, "--out", out)
        assert invoke(*run).code == 0
        metrics.append(json.loads((out / "metrics.json").read_text())["test"])
        assert not (out / "spill").exists()
    assert metrics[0] == pytest.approx(metrics[1], rel=1e-4)
    refused = invoke("train", "--data", blocks, "--memory", "20kB", "--engine", "lean", "--out", tmp_path / "x")
    assert refused.code == 2
    assert "only the compiled engine streams" in refused.err


@pytest.mark.parametrize(("device", "on_disk"), [("cpu", [(3,)]), ("cuda:0", [])])
def test_arrays_of_edges_are_made_where_blocks_will_go(
    invoke: Invoke,
    blocks: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    device: str,
    on_disk: list[tuple[int, ...]],
) -> None:
    made: list[tuple[int, ...]] = []
    allocate = Scratch.__call__

    def counted(self: Scratch, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        made.append(tuple(shape))
        return allocate(self, shape, dtype)

    def opened(*given: object, **named: object) -> object:
        empty_array((3,), torch.int64, torch.device("cpu"))
        raise InputError("that will do: an array (in a test)", hint="Go on.")

    monkeypatch.setattr(Scratch, "__call__", counted)
    monkeypatch.setattr("sagann.cli.train_run.training_graph", opened)
    # As if there were such a device.
    monkeypatch.setattr("sagann.cli.train_run.resolve_device", torch.device)
    run = ("train", "--data", blocks, *QUICK, "--memory", "1MiB", "--device", device, "--out", tmp_path / "run")
    outcome = invoke(*run)
    assert outcome.code == 2
    assert "that will do" in outcome.err
    assert made == on_disk


def test_a_sampled_run_by_options_and_by_file(invoke: Invoke, blocks: Path, tmp_path: Path) -> None:
    sampled = ("--sample", "5,-1", "--batch-size", "16", "--model", "sage")
    run = ("train", "--data", blocks, *QUICK, *sampled)
    assert invoke(*run, "--sampling-threads", "2", "--batches-ahead", "1", "--out", tmp_path / "whole").code == 0
    config = tomllib.loads((tmp_path / "whole" / "config.toml").read_text())
    assert config["train"]["sample"] == [5, -1]
    assert invoke(*run, "--epochs", "2", "--out", tmp_path / "cut").code == 0
    assert invoke("train", "--resume", "--epochs", "3", "--out", tmp_path / "cut").code == 0
    (tmp_path / "run.toml").write_text(
        f'[data]\ndata = "{blocks}"\n[model]\nmodel = "sage"\nhidden = 8\n'
        "[train]\nepochs = 3\nsample = [5, -1]\nbatch_size = 16\nbatches_ahead = 0\n"
    )
    assert invoke("train", "--config", tmp_path / "run.toml", "--out", tmp_path / "file").code == 0
    weights = {(tmp_path / name / "model.safetensors").read_bytes() for name in ("whole", "cut", "file")}
    assert len(weights) == 1
    # The same run on the whole graph.
    assert invoke("train", "--config", tmp_path / "run.toml", "--sample", "none", "--batch-size", "none",
                  "--batches-ahead", "none", "--out", tmp_path / "dense").code == 0  # fmt: skip
    assert (tmp_path / "dense" / "model.safetensors").read_bytes() not in weights


def test_a_run_with_a_hot_tier_by_options_and_by_file(invoke: Invoke, blocks: Path, tmp_path: Path) -> None:
    run = ("train", "--data", blocks, *QUICK, "--sample", "5,5", "--batch-size", "16", "--model", "sage")
    assert invoke(*run, "--out", tmp_path / "plain").code == 0
    hot = invoke(*run, "--hot", "10%", "--score", "degree", "--cache", "static", "--out", tmp_path / "hot")
    assert hot.code == 0
    assert "rows  hits" in hot.err
    line = json.loads((tmp_path / "hot" / "metrics.jsonl").read_text().splitlines()[0])
    assert line["hot_rows"] > 0
    assert line["cold_bytes"] == 6 * 4 * line["cold_rows"] > 0
    again = ("train", "--config", tmp_path / "hot" / "config.toml", "--epochs", "2", "--out", tmp_path / "again")
    assert invoke(*again).code == 0
    # Another hot tier is no other run.
    resumed = ("train", "--resume", "--cache", "static", "--hot", "1MiB", "--epochs", "3")
    assert invoke(*resumed, "--out", tmp_path / "again").code == 0
    weights = {(tmp_path / name / "model.safetensors").read_bytes() for name in ("plain", "hot", "again")}
    assert len(weights) == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--hot", "10%"), "hot is refused: '10%', expected None where sample is not set"),
        (("--sample", "5,5", "--hot", "lots"), "size is not understood: 'lots'"),
        (
            ("--sample", "5,5", "--hot", "10B"),
            "hot tier is smaller than its tables: 10 B, but tables of 120 rows take",
        ),
        (
            ("--sample", "5,5", "--hot", "5%", "--score", "pr"),
            "score is refused: 'pr', expected one of degree, rpr, wrpr, vip",
        ),
        (
            ("--sample", "5,5", "--cache", "static"),
            "cache is refused: 'static', expected look-ahead where neither hot nor memory is set",
        ),
        (
            ("--sample", "5,5", "--hot", "50%", "--memory", "1MiB"),
            "the hot tier is larger than its half of the memory budget: hot '50%' takes",
        ),
        (
            ("--sample", "5,5", "--memory", "40kB"),
            "the memory budget cannot be met: 39.1 KiB (40000 bytes), at least",
        ),
        (("--sample", "5"), "fanouts and hops of the model differ in number: 1 fanouts, the model walks 2 hops"),
        (("--sample", "5,x"), "sample is refused: '5,x', expected a list of integers"),
        (("--sample", "5,0"), "sample is refused: (5, 0), expected a list of integers"),
        (("--sample", ""), "sample is refused: ''"),
        (
            ("--batch-size", "64"),
            "batch_size is refused: 64, expected None where sample is not set",
        ),
        (("--batches-ahead", "9999"), "batches_ahead is refused: 9999, expected an integer from 0 to 8192"),
        (("--sample", "5,5", "--profile", "--memory", "1MiB"), "profile is refused: True"),
    ],
)
def test_what_cannot_be_sampled_is_refused(
    invoke: Invoke, blocks: Path, tmp_path: Path, options: tuple[str, ...], message: str
) -> None:
    outcome = invoke("train", "--data", blocks, *QUICK, *options, "--out", tmp_path / "run")
    assert outcome.code == 2
    assert message in outcome.err


def test_a_table_of_metrics_goes_to_stdout(invoke: Invoke, blocks: Path, tmp_path: Path) -> None:
    outcome = invoke("train", "--data", blocks, *QUICK, "--out", tmp_path / "run")
    assert outcome.code == 0
    for word in ("train", "val", "test", "accuracy", "macro-F1", "ROC-AUC"):
        assert word in outcome.out
    assert f"Run saved in {tmp_path / 'run'}" in outcome.out
    # No terminal: no escape codes, no carriage returns, nothing that was redrawn.
    assert "\x1b" not in outcome.out + outcome.err
    assert "\r" not in outcome.out + outcome.err


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


def test_a_folder_with_something_else_is_refused(invoke: Invoke, blocks: Path, tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    for extra in ([], ["--overwrite"]):
        outcome = invoke("train", "--data", blocks, *QUICK, "--out", tmp_path, *extra)
        assert outcome.code == 2
        assert "the folder holds something else than a run: 1 files" in outcome.err
    outcome = invoke("train", "--data", blocks, *QUICK, "--out", tmp_path / "thesis.tex")
    assert outcome.code == 2
    assert "the run folder is a file" in outcome.err
    assert (tmp_path / "thesis.tex").read_text() == "years of work"


def test_a_folder_with_settings_of_something_else_is_refused(invoke: Invoke, blocks: Path, tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text('title = "my site"')
    (tmp_path / "events").mkdir()
    (tmp_path / "events" / "kept").write_text("x")
    before = {path: path.read_text() for path in tmp_path.rglob("*") if path.is_file()}
    for extra in ([], ["--overwrite"]):
        outcome = invoke("train", "--data", blocks, *QUICK, "--out", tmp_path, *extra)
        assert outcome.code == 2
        assert (
            "the folder holds something else than a run: 2 files and folders, no run.json of a run" in outcome.err
        )
    assert {path: path.read_text() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_a_run_is_not_put_where_it_would_be_removed(
    invoke: Invoke, blocks: Path, trained: Path, tmp_path: Path
) -> None:
    for owner, inner in ((blocks, "run"), (trained, "checkpoints/run")):
        outcome = invoke("train", "--data", blocks, *QUICK, "--out", owner / inner)
        assert outcome.code == 2, inner
        assert "a run cannot be saved among the files of a dataset or of another run" in outcome.err
        assert f"they belong to {owner}, and may be replaced with it" in outcome.err
        assert not (owner / inner).exists()
    # A manifest of another program makes no dataset.
    (tmp_path / "manifest.json").write_text('{"name": "a site"}')
    assert invoke("train", "--data", blocks, *QUICK, "--out", tmp_path / "run").code == 0


@pytest.mark.parametrize("name", ["model.safetensors", "metrics.json"])
def test_files_named_as_a_runs_make_no_run(invoke: Invoke, blocks: Path, tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("weeks")
    for extra in ([], ["--overwrite"]):
        outcome = invoke("train", "--data", blocks, *QUICK, "--out", tmp_path, *extra)
        assert outcome.code == 2
        assert "the folder holds something else than a run: 1 files and folders" in outcome.err
    assert (tmp_path / name).read_text() == "weeks"


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


def test_resume_goes_on_and_equals_the_whole_run(invoke: Invoke, blocks: Path, tmp_path: Path) -> None:
    common = ("--data", blocks, "--hidden", "8", "--weights", "last", "--checkpoint-every", "2")
    assert invoke("train", *common, "--epochs", "9", "--out", tmp_path / "whole").code == 0
    assert invoke("train", *common, "--epochs", "4", "--out", tmp_path / "parts").code == 0
    # All other settings come from the run itself.
    assert invoke("train", "--resume", "--out", tmp_path / "parts", "--epochs", "9").code == 0
    weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("whole", "parts")]
    assert weights[0] == weights[1]


def test_resume_before_the_first_checkpoint_starts_anew(invoke: Invoke, trained: Path, tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text((trained / "config.toml").read_text())
    assert invoke("train", "--resume", "--out", tmp_path).code == 0
    assert (tmp_path / "model.safetensors").read_bytes() == (trained / "model.safetensors").read_bytes()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--resume"], "nothing to resume: no --out"),
        (["--resume", "--out", "nowhere"], "nothing to resume: there is no config.toml"),
        (["--resume", "--overwrite", "--out", "nowhere"], "cannot be continued and replaced"),
    ],
)
def test_nothing_to_resume(invoke: Invoke, arguments: list[str], message: str) -> None:
    outcome = invoke("train", *arguments)
    assert outcome.code == 2
    assert message in outcome.err


def test_a_run_that_lost_its_description_is_left_alone(invoke: Invoke, trained: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(trained, run)
    (run / "run.json").unlink()
    refused = invoke("train", "--resume", "--out", run, "--data", "demo")
    assert refused.code == 2
    assert "the run has lost its run.json" in refused.err
    refused = invoke("train", "--data", "demo", *QUICK, "--out", run)
    assert refused.code == 2
    assert "the run folder holds a run" in refused.err
    assert (run / "checkpoints").exists()


def test_a_run_that_failed_before_its_first_epoch_is_corrected_in_place(
    invoke: Invoke, blocks: Path, tmp_path: Path
) -> None:
    arguments = ("train", "--data", blocks, *QUICK, "--out", tmp_path / "run")
    failed = invoke(*arguments, "--optimizer", "SGD", "--lr", "1e35")
    assert failed.code == 2
    assert (tmp_path / "run" / "config.toml").exists()
    assert invoke(*arguments).code == 0


def test_resume_with_another_model_is_refused(invoke: Invoke, trained: Path) -> None:
    before = (trained / "config.toml").read_text()
    outcome = invoke("train", "--resume", "--out", trained, "--hidden", "9")
    assert outcome.code == 2
    assert "the run was started differently" in outcome.err
    assert (trained / "config.toml").read_text() == before


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


def test_transformations_change_the_graph(invoke: Invoke, tmp_path: Path) -> None:
    graph = rmat_graph(50, 120, num_features=3, num_classes=2, seed=0)
    save_graph(random_split(graph, seed=0), tmp_path / "data")
    arguments = ("--data", tmp_path / "data", *QUICK)
    assert invoke("train", *arguments, "--undirected", "--out", tmp_path / "run").code == 0
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert metrics["num_edges"] > graph.num_edges
    outcome = invoke("train", *arguments, "--inverse-edges", "--out", tmp_path / "typed")
    assert outcome.code == 2
    assert "inverse edges need edge types" in outcome.err


@pytest.mark.parametrize(
    ("sampled", "place"),
    [((), "epoch 5"), (("--sample", "5,5", "--batch-size", "16"), "batch 1 of epoch 5")],
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
        import signal

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
    invoke: Invoke, trained: Path, tmp_path: Path, number: int
) -> None:
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


def test_a_message_shows_what_a_foreign_run_folder_names_and_obeys_nothing(
    invoke: Invoke, trained: Path, tmp_path: Path
) -> None:
    run, model = foreign_run(trained, tmp_path)
    config = run / "config.toml"
    config.write_text(config.read_text().replace(model, r"\u001b[2Jx\n  hint: Run evil.\u202e.py:Net"))
    refused = invoke("train", "--resume", "--out", run)
    assert refused.code == 2
    assert len(refused.err.splitlines()) == 2
    assert r"\x1b[2Jx\n  hint: Run evil.\u202e.py:Net" in refused.err
    assert refused.err.replace("\n", "").isprintable()


def test_a_run_with_a_model_of_the_users_own_goes_on(
    invoke: Invoke, blocks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sagann.train.session import TrainSession

    (tmp_path / "layers.py").write_text(OWN_MODEL)
    run_epoch = TrainSession.run_epoch

    def interrupted(self: TrainSession, **options: Any) -> object:
        if self.epoch == 1:
            signal.raise_signal(signal.SIGINT)
        return run_epoch(self, **options)

    monkeypatch.setattr(TrainSession, "run_epoch", interrupted)
    model = f"{tmp_path}/layers.py:Mean"
    outcome = invoke("train", "--data", blocks, "--model", model, *QUICK, "--out", tmp_path / "run")
    assert outcome.code == 130
    (line,) = [line for line in outcome.err.splitlines() if "sagann train --resume" in line]
    monkeypatch.undo()
    assert shlex.split(line)[-2:] == ["--model", model]
    assert invoke(*shlex.split(line)[1:]).code == 0
    assert json.loads((tmp_path / "run" / "metrics.json").read_text())["epochs"] == 3


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


@pytest.mark.parametrize("place", ["import", "init", "forward", "backward"])
@pytest.mark.parametrize(
    ("fails", "named"),
    [
        ("sys.exit()", "SystemExit"),
        ("sys.exit(0)", "SystemExit"),
        ("sys.exit(3)", "SystemExit: 3"),
        ("sys.exit('enough')", "SystemExit: enough"),
        ("raise Own('of my own')", "Own: of my own"),
        ("raise Stop('not Ctrl-C')", "Stop: not Ctrl-C"),
        ("raise EOFError('no more')", "EOFError: no more"),
        ("raise BrokenPipeError('gone')", "BrokenPipeError: gone"),
        ("raise typer.Exit(0)", "Exit"),
        ("raise typer.Abort", "Abort"),
        ("raise typer.BadParameter('bad')", "BadParameter: bad"),
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


@pytest.mark.parametrize("place", ["import", "init", "forward", "backward"])
def test_ctrl_c_in_a_model_stays_ctrl_c(invoke: Invoke, blocks: Path, tmp_path: Path, place: str) -> None:
    (tmp_path / "slow.py").write_text(FAILS.format(place=place, fails="raise KeyboardInterrupt"))
    arguments = ("--data", blocks, *QUICK, "--out", tmp_path / "run")
    outcome = invoke("train", *arguments, "--model", f"{tmp_path}/slow.py:Net")
    assert outcome.code == 130
    assert "your model failed" not in outcome.err
    assert "Traceback" not in outcome.err


@pytest.mark.parametrize("command", ["evaluate", "embed", "streamed"])
def test_a_trained_model_that_ends_the_program_has_failed(
    invoke: Invoke, blocks: Path, tmp_path: Path, command: str
) -> None:
    file, run, more = (
        tmp_path / "layers.py",
        tmp_path / "run",
        ["--memory", "20kB"] if command == "streamed" else [],
    )
    file.write_text(OWN_MODEL)
    model = ("--model", f"{file}:Mean")
    assert invoke("train", "--data", blocks, *model, *QUICK, "--out", run).code == 0
    file.write_text(
        f"{OWN_MODEL}class Own(BaseException): pass\n"
        "def fail(self, vertex, accum):\n    raise Own\nMean.apply_vertex = fail\n"
    )
    to = ["--out", tmp_path / "e.npy"] if command == "embed" else []
    outcome = invoke("embed" if to else "evaluate", "--run", run, *model, *more, *to)
    assert outcome.code == 2
    assert "Error: your model failed: Own" in outcome.err
    assert "layers.py" in outcome.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--workers", "3"],
            "there are fewer CUDA devices than workers: PyTorch sees 2, and the machine has 3 workers",
        ),
        (["--workers", "2", "--device", "cuda:1"], "a CUDA device computes for one worker: device is 'cuda:1'"),
    ],
)
def test_workers_that_devices_do_not_suffice_for_are_refused_before_any_starts(
    invoke: Invoke,
    blocks: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    message: str,
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: True)
    monkeypatch.setattr(
        "sagann.cli.launch.launch_workers", lambda *given, **named: pytest.fail("workers are started")
    )
    run = ("train", "--data", blocks, *QUICK, "--device", "cuda", *arguments, "--out", tmp_path / "run")
    outcome = invoke(*run)
    assert outcome.code == 2
    assert message in " ".join(outcome.err.split())
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model", "perceptron"], "unknown model: 'perceptron'"),
        (["--model", "nowhere.py:Net"], "model file not found"),
        (["--engine", "warp"], "engine is refused: 'warp'"),
        (["--device", "cuda:7"], "no such device"),
        (["--device", "tpu"], "device is refused"),
        (["--lr", "nan"], "lr is refused: nan"),
        (["--dropout", "1.5"], "dropout is refused: 1.5"),
        (["--monitor", "test/accuracy"], "monitor is refused: 'test/accuracy'"),
        (["--optimizer-option", "momentum=0.9"], "Adam has no such option"),
        (["--scheduler", "StepLR"], "torch refuses the scheduler"),
        (["--scheduler", "StepLR", "--scheduler-option", "step_size=0"], "torch refuses the scheduler: StepLR"),
        (["--scheduler", "CosineAnnealingLR", "--scheduler-option", "T_max=0"], "torch refuses the scheduler"),
        (
            ["--scheduler", "ExponentialLR", "--scheduler-option", "gamma=-1"],
            "the scheduler leaves the range of learning rates: -0.01 after 1 steps",
        ),
        (
            ["--optimizer", "Adam", "--optimizer-option", "foreach=true", "--optimizer-option", "fused=true"],
            "torch",
        ),
        (["--loss", "mean"], "unknown loss: 'mean'"),
        (["--loss", "mse"], "the loss does not fit the task: 'mse' is for regression, the task is classification"),
        (["--task", "regression"], "the task does not fit the graph: task 'regression'"),
        (["--monitor", "val/rmse"], "the monitored metric is of another task"),
        (["--hidden", "2000000000"], "the work does not fit memory"),
        (["--split", "thirds"], "split is not understood"),
    ],
)
def test_settings_are_refused_before_a_run_folder_is_made(
    invoke: Invoke, blocks: Path, tmp_path: Path, arguments: list[str], message: str
) -> None:
    outcome = invoke("train", "--data", blocks, "--epochs", "2", "--out", tmp_path / "run", *arguments)
    assert outcome.code == 2, outcome.err
    assert message in outcome.err
    assert outcome.err.startswith("Error: ")
    assert "  hint: " in outcome.err
    assert outcome.out == ""
    assert not (tmp_path / "run").exists()


def test_tensorboard_events(invoke: Invoke, blocks: Path, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    assert invoke("train", "--data", blocks, *QUICK, "--out", tmp_path, "--tensorboard").code == 0
    assert list((tmp_path / "events").iterdir())


def test_without_train_split(invoke: Invoke, tmp_path: Path) -> None:
    from dataclasses import replace

    graph = rmat_graph(60, 200, num_features=3, num_classes=2, seed=0)
    save_graph(replace(graph, splits={"test": torch.ones(60, dtype=torch.bool)}), tmp_path / "data")
    outcome = invoke("train", "--data", tmp_path / "data", *QUICK, "--out", tmp_path / "run")
    assert outcome.code == 2
    assert "has splits, but none to train on: test" in outcome.err
    assert (
        invoke(
            "train", "--data", tmp_path / "data", *QUICK, "--out", tmp_path / "run", "--split", "per-class:5,5"
        ).code
        == 0
    )
