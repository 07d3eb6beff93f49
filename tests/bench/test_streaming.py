"""The streaming benchmark: its ways compute the same, its budgets are kept or raised, and its targets judge."""

from __future__ import annotations

import json
import math
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType

import pytest

from bench.epochs import sagann_worker
from bench.epochs.graphs import SHAPES, generate, write_graph, write_weights
from bench.streaming import __main__ as streaming, contest
from bench.streaming.contest import CHECKED_EPOCHS, Measured, largest_difference, measure
from bench.streaming.report import HEADER, PARTS_HEADER, RAM_TARGET, parts_of, ratio_of, rows_of, verdicts
from bench.streaming.worker import SHARE, WAYS, Planned, Recorded, Run, build, within
from bench.workers import Worker, WorkerEndedError
from tests.plan.machines import ROUND

ARGUMENTS = Namespace(hidden=16, threads=1)


class InProcess:
    """What a worker's process does, without one."""

    def __init__(self, command: Sequence[str], specification: dict, *, timeout_s: float) -> None:
        self.run = build(specification, sagann_worker.load(specification, Path(specification["folder"])))

    def ask(self, request: Mapping[str, int]) -> dict:
        ((name, value),) = request.items()
        return json.loads(json.dumps({"first": Run.first, "turn": Run.turn}[name](self.run, value)))

    def __enter__(self) -> InProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        del self.run


def cells_of(text: str) -> list[dict[str, str]]:
    """The rows of the report's table, by column."""
    names = [name.strip() for name in HEADER.splitlines()[0].split("|")[1:-1]]
    lines = [line for line in text.partition(PARTS_HEADER)[0].splitlines() if line.startswith("| tiny")]
    return [dict(zip(names, (cell.strip() for cell in line.split("|")[1:-1]), strict=True)) for line in lines]


def test_a_tiny_graph_gives_a_row_for_every_way_and_all_compute_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(streaming, "Worker", InProcess)
    monkeypatch.setattr(contest, "TURN_S", 0.0)
    out = tmp_path / "report.md"
    given = ["--datasets", "tiny", "--models", "gcn", "--hidden", "16", "--rounds", "1", "--threads", "1"]
    machine = tmp_path / "machine.toml"
    machine.write_text(ROUND.to_toml())
    given += ["--machine", str(machine)]
    assert streaming.main([*given, "--work", str(tmp_path / "work"), "--out", str(out)]) == 0
    assert capsys.readouterr().out == out.read_text()
    # Graphs, and what was spilled, are gone.
    assert list((tmp_path / "work").iterdir()) == []
    rows = cells_of(out.read_text())
    assert [row["epoch"] for row in rows] == list(WAYS.values())
    for row in rows:
        assert float(row["s"]) > 0
        assert float(row["loss differs by"]) < 1e-4
    engine, loop, folded, *limited = rows
    assert {engine[name] for name in ("P", "expected s", "hidden", "budget MiB", "planned MiB", "on host MiB")} == {
        "-"
    }
    assert (loop["P"], folded["P"], folded["times P = 1 folded"]) == ("1", "1", "1.00")
    in_memory, on_disk = limited
    assert in_memory["hidden"] == "-"
    assert on_disk["hidden"].endswith("%")
    for row in limited:
        assert int(row["P"]) > 1
        assert float(row["expected s"]) > 0
        assert float(row["planned MiB"]) <= float(row["budget MiB"]) <= float(folded["planned MiB"])
    assert "RAM host at 1/8 of the working set: at most 1.3x" in out.read_text()
    assert out.read_text().partition(PARTS_HEADER)[2].count("| tiny | gcn |") == len(WAYS) - 1


@pytest.fixture(scope="module")
def specification(tmp_path_factory: pytest.TempPathFactory) -> dict:
    folder = tmp_path_factory.mktemp("graph")
    stored = generate(SHAPES["tiny"])
    write_graph(folder, stored)
    found = streaming.specification(ARGUMENTS, "gcn", str(folder), "disk")
    write_weights(folder, [sagann_worker.config_of(found)], stored.features.shape[1], stored.num_classes)
    return found | {"machine": ROUND.to_toml()}


def test_a_budget_that_cannot_be_met_is_raised_to_the_least_that_can(specification: dict) -> None:
    graph = sagann_worker.load(specification, Path(specification["folder"]))
    model = sagann_worker.model_of(specification, graph)
    streamed = within(1, model, graph, None)
    assert 1 < streamed.budget_bytes < 1 << 20
    assert within(streamed.budget_bytes, model, graph, None).budget_bytes == streamed.budget_bytes


@pytest.mark.thorough
def test_a_process_answers_the_same(specification: dict) -> None:
    with Worker(streaming.COMMAND, specification) as worker:
        first = worker.ask({"first": 2})
        turn = worker.ask({"turn": 3})
    assert set(first) == {"seconds", "losses", "peak_bytes", "planned", "recorded"}
    recorded = first["recorded"]
    assert 0 <= recorded["hidden"] <= 1
    assert 0 < recorded["compute_s"] < recorded["seconds"]
    assert recorded["num_copies"] > 0
    assert len(turn["seconds"]) == 3
    here = build(specification, sagann_worker.load(specification, Path(specification["folder"]))).first(2)
    assert first["losses"] == pytest.approx(here["losses"], rel=1e-5)
    measured_s = {"expected_s": pytest.approx(first["planned"]["expected_s"], rel=100)}
    assert first["planned"] == here["planned"] | measured_s


PLANNED = Planned(
    num_intervals=4,
    wanted_bytes=100,
    budget_bytes=100,
    peak_bytes=90,
    loaded_bytes=500,
    stored_bytes=70,
    host_bytes=50,
    expected_s=1.0,
)


RECORDED = Recorded(seconds=2.0, compute_s=1.5, copy_s=1.0, num_steps=7, num_copies=9, hidden=0.9)


def measured(
    ram_s: float = 1.3, disk_s: float = 2.0, *, peak_bytes: int = 100, hidden: float = 0.9, **changed: int
) -> dict[str, Measured]:
    dense = replace(PLANNED, num_intervals=1, wanted_bytes=None, budget_bytes=None)
    plan = replace(PLANNED, **changed)
    losses = (2.0, 1.0)
    return {
        "engine": Measured(losses=losses, turns=(0.8, 0.8)),
        "loop": Measured(planned=dense, losses=losses, turns=(1.0, 1.2)),
        "folded": Measured(planned=dense, losses=losses, turns=(1.0, 1.0)),
        "ram": Measured(
            planned=replace(plan, expected_s=1.2),
            peak_bytes=peak_bytes + 50,
            recorded=RECORDED,
            losses=(2.0, 1.1),
            turns=(ram_s, ram_s),
        ),
        "disk": Measured(
            planned=replace(plan, expected_s=1.9),
            peak_bytes=peak_bytes,
            recorded=replace(RECORDED, hidden=hidden),
            losses=losses,
            turns=(disk_s, disk_s),
        ),
    }


def reached(ways: Mapping[str, Measured]) -> list[bool | None]:
    return [verdict.reached for verdict in verdicts({sorted(RAM_TARGET)[0]: ways})]


def test_targets() -> None:
    assert reached(measured()) == [True] * 6
    assert reached(measured(ram_s=1.35)) == [False, *[True] * 5]
    assert reached(measured(disk_s=2.1, peak_bytes=101)) == [True, False, True, True, False, False]
    # The budget was to be an eighth.
    assert reached(measured(wanted_bytes=99)) == [False, False, *[True] * 4]
    assert reached(measured(hidden=0.8)) == [True, True, True, False, True, True]
    others = [verdict.reached for verdict in verdicts({("reddit-small", "gat"): measured()})]
    assert others == [None, *[True] * 5]
    *_, forecast, _, _, _ = verdicts({("tiny", "gcn"): measured(ram_s=1.5)})
    assert not forecast.reached
    assert "gcn, budget, host in RAM on tiny 0.20" in forecast.figures


def test_who_ended_before_its_time_has_a_row_and_misses() -> None:
    ways = measured() | {"disk": Measured(outcome="killed")}
    assert reached(ways) == [True, False, True, None, False, True]
    assert rows_of("tiny", "gcn", ways)[-1] == ("| tiny | gcn | budget, host on disk |" + " - |" * 12 + " killed |")
    assert ratio_of(ways, "disk") is None
    assert ratio_of(measured() | {"folded": Measured(outcome="killed")}, "ram") is None


def test_where_the_seconds_went_is_listed_where_it_is_known() -> None:
    lines = parts_of("tiny", "gcn", measured())
    assert lines == [
        "| tiny | gcn | budget, host in RAM | 2 | 7 | 1.5 | 9 | 1 | 0.4 |",
        "| tiny | gcn | budget, host on disk | 2 | 7 | 1.5 | 9 | 1 | 0.4 |",
    ]


def test_a_raised_budget_is_remarked() -> None:
    row = rows_of("tiny", "gcn", measured(wanted_bytes=1 << 20, budget_bytes=2 << 20))[-1]
    assert row.endswith(f"| 1/{SHARE}, 1.0 MiB, cannot be met; this is the least that can |")


def test_losses_are_compared_with_the_engines() -> None:
    ways = measured()
    assert largest_difference(ways["ram"], ways["engine"]) == pytest.approx(0.1)
    assert math.isnan(largest_difference(ways["ram"], Measured(outcome="killed")))


class Scripted:
    """A worker that ends at a request."""

    def __init__(self, ends_at: str) -> None:
        self.ends_at, self.asked = ends_at, []

    def ask(self, request: dict) -> dict:
        ((name, value),) = request.items()
        self.asked.append(value)
        if name == self.ends_at:
            raise WorkerEndedError("killed")
        return {
            "seconds": [0.2] * value,
            "losses": [1.0] * value,
            "peak_bytes": 7,
            "planned": None,
            "recorded": None,
        }

    def __enter__(self) -> Scripted:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def test_the_others_go_on_without_who_was_killed() -> None:
    workers = {way: Scripted({"ram": "first", "disk": "turn"}.get(way, "")) for way in WAYS}
    found = measure(workers.__getitem__, rounds=2)
    assert {way: (run.outcome, run.turns) for way, run in found.items()} == {
        "engine": ("ok", (0.2, 0.2)),
        "loop": ("ok", (0.2, 0.2)),
        "folded": ("ok", (0.2, 0.2)),
        "ram": ("killed", ()),
        "disk": ("killed", ()),
    }
    assert found["disk"].peak_bytes == 7
    # Epochs of 0.2 s are repeated until they take half a second together.
    assert workers["engine"].asked == [CHECKED_EPOCHS + 1, 3, 3]
    assert workers["disk"].asked == [CHECKED_EPOCHS + 1, 3]
