"""The benchmark of sampled epochs on a device: what it measures, what it says, and that a failure leaves the rest."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from bench.minibatches import __main__ as script, device_worker
from bench.minibatches.on_device import contestants_of
from bench.minibatches.tasks import Task, specification_of, write_graph, write_task
from bench.standalone.stored import read_stored
from bench.workers import ROOT
from tests.runtime.device.drivers import SimulatedDevices
from tests.runtime.device.late_streams import LateStreams

TINY = ["--vertices", "3000", "--edges", "40e3", "--features", "8", "--hidden", "16", "--seeds", "300", "--batch-size", "100", "--rounds", "2", "--threads", "1", "--device", "cpu"]  # fmt: skip
TASK = Task(model="sage", fanouts=(5, 3))


def test_wherever_features_lie_the_same_batches_are_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sagann.runtime.loading.minibatches.Streams", lambda device: LateStreams())
    monkeypatch.setattr(device_worker, "devices_of", lambda device: SimulatedDevices())
    options = script.parsed([*TINY, "--hot", "0%", "10%", "100%", "--sampling-threads", "1", "3"])
    write_graph(tmp_path, options)
    write_task(tmp_path / "weights", TASK, options)
    contestants = {name: each for name, each in contestants_of(options).items() if name.startswith("sagann")}
    specification = {
        "device": "cpu",
        "tasks": {TASK.name: specification_of(TASK, options, tmp_path / "weights")},
        "contestants": contestants,
    }
    several = device_worker.build(specification, read_stored(tmp_path))
    turns = {name: several.ask("epoch", f"{TASK.name}/{name}") for name in contestants}
    first = turns["sagann:copied"]
    assert all((turn["loss"], turn["edges"]) == (first["loss"], first["edges"]) for turn in turns.values()), turns
    assert list(first["stages"]) == ["sample", "load"]
    assert first["tiers"] == {}
    parts = {}
    for hot in ("0%", "10%", "100%"):
        turn = turns[f"sagann:hot {hot}"]
        assert list(turn["stages"]) == ["sample", "load", "copy"]
        assert turn["tiers"] == turns[f"sagann:hot {hot}, 3 threads"]["tiers"]
        total = sum(turn["tiers"].values())
        parts[hot] = turn["tiers"]["device"] / total
        assert turn["tiers"]["far"] == 0
        # Rows of 8 float32; every batch reads its seeds at least.
        assert total >= 300 * 32
    assert parts["0%"] == 0 < parts["10%"] < parts["100%"] == 1
    again = several.ask("epoch", f"{TASK.name}/sagann:hot 10%")
    assert again["loss"] < first["loss"]
    # Of this epoch alone.
    assert sum(again["tiers"].values()) < 1.5 * sum(turns["sagann:hot 10%"]["tiers"].values())


def test_stages_are_measured_by_themselves_and_the_model_learns_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sagann.runtime.loading.minibatches.Streams", lambda device: LateStreams())
    monkeypatch.setattr(device_worker, "devices_of", lambda device: SimulatedDevices())
    options = script.parsed(TINY)
    write_graph(tmp_path, options)
    write_task(tmp_path, TASK, options)
    specification = {
        "device": "cpu",
        "tasks": {TASK.name: specification_of(TASK, options, tmp_path)},
        "contestants": {
            "copied": {"hot": None, "threads": 1},
            "hot": {"hot": "10%", "threads": 1},
            "edges": {"hot": "10%", "threads": 1, "edges": "50%"},
        },
    }
    several = device_worker.build(specification, read_stored(tmp_path))
    before = several.ask("epoch", f"{TASK.name}/hot")["loss"]
    assert several.ask("epoch", f"{TASK.name}/edges")["loss"] == before
    seconds = several.ask("alone", f"{TASK.name}/hot")
    assert list(seconds) == ["sample", "load", "copy", "calls", "train"]
    assert 0 < seconds["calls"] <= seconds["train"]
    assert list(several.ask("alone", f"{TASK.name}/copied")) == ["sample", "load", "calls", "train"]
    # Two epochs later: the one that was measured by stages is among them.
    several.ask("alone", f"{TASK.name}/copied")
    assert several.ask("epoch", f"{TASK.name}/copied")["loss"] < before


@pytest.mark.thorough
@pytest.mark.peers
def test_a_tiny_graph_is_measured_and_what_a_processor_cannot_is_said(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    asked = ["--hot", "10%", "--sampling-threads", "1", "--workers", "1", "--tasks", "gat:4,3", "--out", str(page)]
    command = [sys.executable, "-m", "bench.minibatches", *TINY, *asked]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    # There is no CUDA device.
    assert done.returncode == 1, done.stderr
    said = page.read_text()
    assert "| sagann:copied | " in said
    assert "- `sagann:hot 10%` did not run: rows and edges lie on a CUDA device alone.\n" in said
    assert "| pyg:1 workers | " in said or "neither is installed" in said
    assert "the processor, " in said


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_tiny_graph_is_measured_on_a_device(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    asked = [
        "--device",
        "cuda",
        "--hot",
        "0%",
        "10%",
        "--sampling-threads",
        "1",
        "2",
        "--tasks",
        "sage:5,3",
        "gat:4,3",
    ]
    assert script.main([*TINY, *asked, "--workers", "1", "--out", str(page)]) == 0
    said = page.read_text()
    for name in ("copied", "hot 0%", "hot 10%", "copied, 2 threads", "hot 0%, 2 threads", "hot 10%, 2 threads"):
        assert said.count(f"| sagann:{name} | ") == (2 if "threads" in name else 4)
    cells = [line.strip("| ").split(" | ") for line in said.splitlines() if line.startswith("| sagann")]
    rows = [row for row in cells if len(row) == 7]
    for task in (rows[:6], rows[6:]):
        assert len(task) == 6
        assert len({row[4] for row in task}) == 1
        assert all(float(row[5]) == pytest.approx(float(task[0][5]), abs=0.002) for row in task)
