"""``sagann train`` and ``sagann plan`` with several devices, which share a streamed epoch."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sagann.cli.main import main
from tests.runtime.device.several import chain, simulate_devices

OPTIONS = ["--data", "demo", "--hidden", "8", "--device", "cuda:0,cuda:1", "--memory", "12MiB"]


def test_a_run_trains_and_evaluates_on_two_devices(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = simulate_devices(monkeypatch, chain)
    run = tmp_path / "run"
    assert main(["train", *OPTIONS, "--epochs", "2", "--out", str(run)]) == 0
    assert main(["evaluate", "--run", str(run), "--device", "cuda:0,cuda:1"]) == 0
    assert "test" in capsys.readouterr().out
    assert json.loads((run / "metrics.json").read_text())["epochs"] == 2
    assert len(made) >= 2
    assert all(len(each) == 2 for each in made)
    assert all(lanes.copied["load"] for lanes in made[0])


def test_a_plan_shows_what_each_device_does(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    simulate_devices(monkeypatch, chain)
    assert main(["plan", *OPTIONS, "--show", "steps"]) == 0
    found = capsys.readouterr()
    # What passes read at random is assembled by each device, which sums its gradients.
    assert "assemble 0: 1 (device1)" in found.out
    assert "share_grads" in found.out
    assert "No time is estimated" in found.err
    assert main(["plan", *OPTIONS, "--picture", str(tmp_path / "plan.png")]) == 2
    assert "--picture without --machine" in capsys.readouterr().err.replace("\n", " ")


def test_workers_with_several_devices_are_refused_before_a_folder_is_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", *OPTIONS, "--workers", "2", "--out", str(tmp_path / "run")]) == 2
    text = capsys.readouterr().err.replace("\n", " ")
    assert "workers have one each" in text
    assert "hint" in text
    assert not (tmp_path / "run").exists()
