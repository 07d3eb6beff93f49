"""The benchmark of sampled epochs on a device: what it measures, what it says, and that a failure leaves the rest."""

from __future__ import annotations

import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch

from bench.minibatches import __main__ as script, device_worker
from bench.minibatches.device_page import Measured, alone_rows, epoch_rows, page_of, tables_of, together_rows
from bench.minibatches.on_device import Contest, contestants_of
from bench.minibatches.several import Several
from bench.minibatches.tasks import Task, specification_of, write_graph, write_task
from bench.standalone.serve import UnsupportedError
from bench.standalone.stored import read_stored
from bench.workers import ROOT, WorkerEndedError
from tests.runtime.device.drivers import SimulatedDevices
from tests.runtime.device.late_streams import LateStreams

TINY = ["--vertices", "3000", "--edges", "40e3", "--features", "8", "--hidden", "16", "--seeds", "300", "--batch-size", "100", "--rounds", "2", "--threads", "1", "--device", "cpu"]  # fmt: skip
TASK = Task(model="sage", fanouts=(5, 3))


def test_every_place_of_features_is_combined_with_every_number_of_threads() -> None:
    options = script.parsed([*TINY, "--hot", "0%", "10%", "--sampling-threads", "1", "4", "--workers", "2"])
    sampled_there = script.parsed(
        [*TINY, "--hot", "5%", "--device-edges", "0%", "--sampling-threads", "2", "--workers"]
    )
    assert contestants_of(sampled_there) == {
        "sagann:copied, 2 threads": {"hot": None, "threads": 2},
        "sagann:hot 5%, 2 threads": {"hot": "5%", "threads": 2},
        "sagann:copied, edges 0%": {"hot": None, "threads": 1, "edges": "0%"},
        "sagann:hot 5%, edges 0%": {"hot": "5%", "threads": 1, "edges": "0%"},
    }
    assert contestants_of(options) == {
        "sagann:copied": {"hot": None, "threads": 1},
        "sagann:hot 0%": {"hot": "0%", "threads": 1},
        "sagann:hot 10%": {"hot": "10%", "threads": 1},
        "sagann:copied, 4 threads": {"hot": None, "threads": 4},
        "sagann:hot 0%, 4 threads": {"hot": "0%", "threads": 4},
        "sagann:hot 10%, 4 threads": {"hot": "10%", "threads": 4},
        "pyg:2 workers": {"workers": 2, "is_resident": False},
        "pyg:2 workers, resident": {"workers": 2, "is_resident": True},
    }


def test_threads_are_two_without_a_device_and_those_of_all_cores_with_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(script, "num_cores", lambda: 16)
    assert script.parsed([]).threads == 2
    assert script.parsed(["--device", "cuda"]).threads == 16
    assert script.parsed(["--device", "cuda", "--threads", "3"]).threads == 3


def test_without_a_device_it_says_so(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert script.main(["--device", "cuda"]) == 1
    assert "There is nothing to measure. no such device: 'cuda'" in capsys.readouterr().err


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


class Counting:
    """Counts its epochs, and fails in the third one."""

    def __init__(self) -> None:
        self.epochs = 0

    def epoch(self) -> dict[str, int]:
        self.epochs += 1
        if self.epochs == 3:
            raise ValueError("out of epochs\nand more")
        return {"epochs": self.epochs}


def test_a_contestant_that_fails_says_so_from_then_on_and_leaves_the_others() -> None:
    def refusing() -> Counting:
        raise UnsupportedError("not here")

    made: list[str] = []

    def making(name: str) -> Counting:
        made.append(name)
        return Counting()

    several = Several({"a/one": lambda: making("one"), "b/two": lambda: making("two"), "a/none": refusing})
    assert made == []
    assert [several.ask("epoch", "a/one").get("epochs") for _ in range(4)] == [1, 2, None, None]
    failed = several.ask("epoch", "a/one")
    assert failed["failed"] == "ValueError: out of epochs"
    assert "Traceback" in failed["detail"]
    assert several.ask("epoch", "a/none")["failed"] == "not here"
    assert several.ask("epoch", "b/two") == {"epochs": 1}
    several.forget("a/")
    assert several.ask("epoch", "b/two") == {"epochs": 2}
    several.forget("b/")
    assert several.ask("epoch", "b/two") == {"epochs": 1}
    assert made == ["one", "two", "two"]


class FakeWorker:
    """Answers with the number of the request, or ends with one of them."""

    asked: list[dict[str, str]]

    def __init__(self, command: list[str], specification: dict[str, object], *, timeout_s: float) -> None:
        self.system = "pyg" if command[-1].endswith("pyg_worker") else "sagann"
        self.contestants = specification["contestants"]
        self.count = 0

    def __enter__(self) -> FakeWorker:
        return self

    def __exit__(self, *error: object) -> None:
        return None

    def ask(self, request: dict[str, str]) -> dict[str, object]:
        self.count += 1
        name = next(iter(request.values()))
        if self.system == "pyg" and self.count == 4:
            raise WorkerEndedError("killed", "first\nout | of memory")
        if "hot 10%" in name and "epoch" in request:
            return {"failed": "no room", "detail": "no room at all"}
        return {"sample": 1.0, "train": 2.0, "calls": 1.0} if "alone" in request else _turn(float(self.count))


def test_who_fails_has_no_epochs_and_a_process_that_ends_takes_its_contestants_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("bench.minibatches.on_device.Worker", FakeWorker)
    options = script.parsed([*TINY, "--hot", "10%", "--sampling-threads", "1", "2", "--workers", "2"])
    with ExitStack() as stack:
        contest = Contest(contestants_of(options), {}, tmp_path, torch.device("cpu"), 1, stack)
        found = contest.measure(TASK, 3)
        later = contest.measure(TASK, 1)
    # The first epoch is not counted.
    assert {name: len(turns) for name, turns in found.turns.items()} == {
        "sagann:copied": 3,
        "sagann:copied, 2 threads": 3,
    }
    assert list(found.alone) == ["sagann:copied"]
    ended = "killed: out / of memory"
    assert found.failures == {
        "sagann:hot 10%": "no room",
        "sagann:hot 10%, 2 threads": "no room",
        "pyg:2 workers": ended,
        "pyg:2 workers, resident": ended,
    }
    assert later.failures == found.failures
    said = capsys.readouterr().err
    assert "no room at all" in said
    assert "out | of memory" in said
    assert tables_of(found)[-3:-1] == [
        "- `sagann:hot 10%`, `sagann:hot 10%, 2 threads` did not run: no room.",
        f"- `pyg:2 workers`, `pyg:2 workers, resident` did not run: {ended}.",
    ]


def _turn(seconds: float, **more: object) -> dict[str, object]:
    turn = {"seconds": seconds, "edges": 1000, "loss": 1.5, "step_s": 0.25, "waited_s": 0.125}
    return turn | {"stages": {"sample": 0.5, "load": 0.0625}, "tiers": {}} | more


def _measured() -> Measured:
    tiers = {"device": 3 * 2**20, "in place": 2**20, "far": 0}
    stages = {"sample": 0.5, "load": 0.0625, "copy": 0.25}
    return Measured(
        caption="sage, fanouts 5, 3",
        turns={
            "sagann:copied": [_turn(2.0), _turn(4.0), _turn(2.0)],
            "sagann:hot 10%": [_turn(1.0, tiers=tiers, stages=stages)] * 3,
            "sagann:hot 100%": [_turn(0.5, tiers=tiers, stages=stages)] * 3,
            "pyg:2 workers": [_turn(3.0)] * 3,
            "pyg:2 workers, resident": [_turn(2.5)] * 3,
        },
        alone={
            "sagann:copied": {"sample": 0.5, "load": 1.0, "copy": 0.25, "calls": 0.125, "train": 0.75},
            "sagann:hot 10%": {"sample": 0.5, "load": 0.125, "copy": 0.25, "calls": 0.125, "train": 0.75},
        },
    )


def test_rows_are_compared_round_by_round() -> None:
    assert epoch_rows(_measured())[2:] == [
        "| sagann:copied | 2.000 | 2.000 | 4.000 | 1,000 | 1.500 | 1.00 |",
        "| sagann:hot 10% | 1.000 | 1.000 | 1.000 | 1,000 | 1.500 | 0.50 |",
        "| sagann:hot 100% | 0.500 | 0.500 | 0.500 | 1,000 | 1.500 | 0.25 |",
        "| pyg:2 workers | 3.000 | 3.000 | 3.000 | 1,000 | 1.500 | 1.50 |",
        "| pyg:2 workers, resident | 2.500 | 2.500 | 2.500 | 1,000 | 1.500 | 1.25 |",
    ]


def test_the_bottleneck_is_the_stage_with_the_most_seconds() -> None:
    assert alone_rows(_measured()) == [
        "| contestant | sample | load | copy | train | calls | bottleneck | s / epoch | epoch / slowest |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|",
        "| sagann:copied | 0.500 | 1.000 | 0.250 | 0.750 | 0.125 | load | 2.000 | 2.00 |",
        "| sagann:hot 10% | 0.500 | 0.125 | 0.250 | 0.750 | 0.125 | train | 1.000 | 1.33 |",
    ]


def test_threads_work_and_tiers_give_what_is_said() -> None:
    assert together_rows(_measured()) == [
        "| contestant | sample | load | copy | step | wait | MiB of features | device | in place | far |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|",
        "| sagann:copied | 0.500 | 0.062 | - | 0.250 | 0.125 | - | - | - | - |",
        "| sagann:hot 10% | 0.500 | 0.062 | 0.250 | 0.250 | 0.125 | 4 | 75.0% | 25.0% | 0.0% |",
        "| sagann:hot 100% | 0.500 | 0.062 | 0.250 | 0.250 | 0.125 | 4 | 75.0% | 25.0% | 0.0% |",
    ]


def test_the_page_begins_with_who_is_faster() -> None:
    page = page_of([_measured()], ["A command.", "A graph."])
    assert page.startswith(
        "# Sampled epochs on a CUDA device\n\n"
        "- sage, fanouts 5, 3, features in the host's memory or partly hot: `sagann:hot 10%` 1.000 s, `pyg:2 workers` 3.000 s; sagann is 3.00 times "
        "as fast.\n"
        "- sage, fanouts 5, 3, all features on the device: `sagann:hot 100%` 0.500 s, `pyg:2 workers, resident` 2.500 s; sagann is 5.00 times as "
        "fast.\n\nA command.\n\nA graph.\n\nContestants:\n"
    )
    alone = _measured()
    alone.turns = {name: turns for name, turns in alone.turns.items() if name.startswith("sagann")}
    assert "- sage, fanouts 5, 3: not compared, because not both sagann and PyG ran.\n" in page_of([alone], [])


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
        assert said.count(f"| sagann:{name} | ") == (4 if "threads" in name else 6)
    cells = [line.strip("| ").split(" | ") for line in said.splitlines() if line.startswith("| sagann")]
    rows = [row for row in cells if len(row) == 7]
    for task in (rows[:6], rows[6:]):
        assert len(task) == 6
        assert len({row[4] for row in task}) == 1
        assert all(float(row[5]) == pytest.approx(float(task[0][5]), abs=0.002) for row in task)
