"""``sagann plan``: what a model becomes."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from sagann.cli.main import main
from sagann.cli.plan_run import machine_in
from sagann.errors import InputError
from sagann.plan.epoch import Planned
from sagann.plan.steps import Plan
from sagann.report.plan_text import plan_text
from sagann.runtime.streaming.executor import Executor
from tests.plan.machines import ROUND


def _plan(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["plan", "--data", "demo", *arguments]) == 0
    return capsys.readouterr().out


def test_says_what_each_layer_was_made_into(capsys: pytest.CaptureFixture[str]) -> None:
    shown = _plan(capsys, "--model", "gated-gcn", "--hidden", "8")
    assert "GatedGCN: sum over the edges" in shown
    assert "moved off the edges: linear, once per source" in shown
    assert "fused" in shown
    assert "times fewer" in shown


def test_says_what_is_kept_and_what_changes_places(capsys: pytest.CaptureFixture[str]) -> None:
    shown = _plan(capsys, "--model", "gcn", "--hidden", "64", "--dropout", "0")
    assert "kept: what is gathered depends on constant features alone" in shown
    assert "commuted: linear map before the gather" in shown


def test_shows_the_generated_source(capsys: pytest.CaptureFixture[str]) -> None:
    shown = _plan(capsys, "--model", "gat", "--hidden", "16", "--heads", "2", "--show", "kernels")
    assert "def kernel(p_args):" in shown
    # Forward, and backward by destination and by source, in each of two layers.
    assert shown.count("def kernel(p_args):") == 6


def test_foretells_how_an_epoch_is_streamed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sagann.cli.plan_run.probe", lambda *_: ROUND)
    shown = _plan(capsys, "--model", "gcn", "--hidden", "16", "--encoder", "linear", "--memory", "20MiB")
    assert "intervals of" in shown
    assert "Memory: at most" in shown
    assert "loaded" in shown
    assert "P = 1: everything fits" in _plan(capsys, "--model", "gcn", "--hidden", "16", "--memory", "8GiB")


def test_foretells_seconds_and_draws_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.setattr("sagann.cli.plan_run.probe", lambda *_: ROUND)
    given = ("--model", "gcn", "--hidden", "16", "--encoder", "linear", "--memory", "20MiB")
    shown = _plan(capsys, *given, "--picture", str(tmp_path / "timeline.png"), "--show", "steps")
    (expected,) = re.findall(
        r"^Expected: (\S+) s an epoch on \d+ cores of .*steps timed on a part", shown, re.MULTILINE
    )
    assert float(expected) > 0
    assert re.search(r"^load value x: 0, .* MiB$", shown, re.MULTILINE)
    assert re.search(r"^  gather 0: all to 0$", shown, re.MULTILINE)
    assert (tmp_path / "timeline.png").read_bytes().startswith(b"\x89PNG")


def test_another_machine_is_read_from_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "machine.toml"
    file.write_text(ROUND.to_toml())
    given = ("--model", "gcn", "--hidden", "16", "--encoder", "linear", "--memory", "20MiB", "--machine", str(file))
    assert main(["plan", "--data", "demo", *given, "--spill", str(tmp_path)]) == 0
    shown, said = capsys.readouterr()
    assert f"The disk of --spill is not measured: its rates are taken from {file}" in said
    assert "on 2 cores of round numbers; known from the machine's rates alone" in shown
    assert "The bottleneck is what is loaded." in shown
    file.write_bytes(b"\xff\xfe")
    assert main(["plan", "--data", "demo", *given]) == 2
    assert "machine file cannot be read" in capsys.readouterr().err


def test_a_machine_file_is_refused_where_something_else_computes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cpu, cuda = torch.device("cpu"), torch.device("cuda", 0)
    beside = replace(ROUND, host_to_device_bytes=200.0, device_to_host_bytes=40.0)
    file = tmp_path / "machine.toml"
    file.write_text(beside.to_toml())
    given = ("--model", "gcn", "--hidden", "16", "--memory", "20MiB", "--machine", str(file))
    assert main(["plan", "--data", "demo", *given]) == 2
    shown, said = capsys.readouterr()
    assert shown == ""
    assert "copies to a device have rates, and --device is cpu" in said
    assert "Add --device cuda" in said
    assert machine_in(file, cuda) == beside
    file.write_text(ROUND.to_toml())
    assert machine_in(file, cpu) == ROUND
    with pytest.raises(InputError, match="copies to a device have no rates, and --device is cuda:0"):
        machine_in(file, cuda)


SAMPLED = ("--model", "sage", "--hidden", "16", "--sample", "10,5", "--batch-size", "20")


@pytest.mark.parametrize("memory", [(), ("--memory", "20MiB")])
def test_foretells_an_epoch_of_mini_batches(memory: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    shown = _plan(capsys, *SAMPLED, *memory)
    assert "Mini-batches: 3 an epoch, of 20 training vertices; fanouts 10, 5." in shown
    assert re.search(
        r"^An epoch: [\d,]+ edges sampled; [\d,]+ rows of features \(.* MiB\) from ", shown, re.MULTILINE
    )
    (expected,) = re.findall(
        r"^Expected: (\S+) s an epoch on \d+ cores of .*; known from \d+ rehearsed", shown, re.MULTILINE
    )
    assert 1e-4 < float(expected) < 60
    assert re.search(r"The bottleneck is (sampling|loading features|training)\.", shown)


def test_a_file_of_settings_is_planned_as_it_is_trained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "settings.toml"
    file.write_text('[model]\nmodel = "gat"\n[train]\nsample = [10, 5]\nbatches_ahead = 0\nepochs = 7\n')
    shown = _plan(capsys, "--config", str(file), "--batch-size", "30")
    assert "Mini-batches: 2 an epoch, of 30 training vertices; fanouts 10, 5." in shown
    assert "of mini-batches at a time, each made in the training step." in shown


def test_a_plan_takes_the_options_of_training(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ("--epochs", "3", "--lr", "0.1", "--sample", "none", "--spill", str(tmp_path), "--engine", "lean")
    assert "GCN: sum over the edges" in _plan(capsys, "--model", "gcn", *given)


@pytest.mark.parametrize(
    "model",
    [
        ("gcn", "--encoder", "linear"),
        pytest.param(("gat", "--encoder", "linear"), marks=pytest.mark.thorough),
        pytest.param(("sage",), marks=pytest.mark.thorough),
    ],
)
def test_an_epoch_of_training_is_the_one_that_was_explained(
    model: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    explained: list[Plan] = []
    executed: list[Plan] = []

    def explain(found: Planned, **kwargs: Any) -> str:
        explained.append(found.plan)
        return plan_text(found, **kwargs)

    def execute(executor: Executor, *args: Any, **kwargs: Any) -> None:
        executed.append(args[0].plan)
        construct(executor, *args, **kwargs)

    construct = Executor.__init__
    monkeypatch.setattr("sagann.cli.plan_run.plan_text", explain)
    monkeypatch.setattr(Executor, "__init__", execute)
    file = tmp_path / "machine.toml"
    file.write_text(ROUND.to_toml())
    given = ("--data", "demo", "--hidden", "16", "--memory", "20MiB", "--model", *model)
    assert main(["plan", *given, "--machine", str(file)]) == 0
    assert main(["train", *given, "--epochs", "1", "--out", str(tmp_path / "run")]) == 0
    capsys.readouterr()
    (plan,) = explained
    assert plan.num_intervals > 1
    assert plan in executed
