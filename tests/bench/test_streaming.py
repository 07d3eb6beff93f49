"""The streaming benchmark: its ways compute the same, and its budgets are kept or raised."""

from __future__ import annotations

import json
import math
from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

import pytest

from bench.epochs import sagann_worker
from bench.epochs.graphs import SHAPES, generate, write_graph, write_weights
from bench.streaming import __main__ as streaming, contest
from bench.streaming.contest import Measured, largest_difference
from bench.streaming.report import HEADER, PARTS_HEADER, ratio_of
from bench.streaming.worker import WAYS, Run, build, within
from bench.workers import Worker
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


@pytest.mark.thorough
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
    assert out.read_text().partition(PARTS_HEADER)[2].count("| tiny | gcn |") == len(WAYS) - 1


@pytest.fixture(scope="module")
def specification(tmp_path_factory: pytest.TempPathFactory) -> dict:
    folder = tmp_path_factory.mktemp("graph")
    stored = generate(SHAPES["tiny"])
    write_graph(folder, stored)
    found = streaming.specification(ARGUMENTS, "gcn", str(folder), "disk")
    write_weights(folder, [sagann_worker.config_of(found)], stored.features.shape[1], stored.num_classes)
    return found | {"machine": ROUND.to_toml()}


@pytest.mark.thorough
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


def measured() -> dict[str, Measured]:
    losses = (2.0, 1.0)
    return {
        "engine": Measured(losses=losses, turns=(0.8, 0.8)),
        "folded": Measured(losses=losses, turns=(1.0, 1.0)),
        "ram": Measured(losses=(2.0, 1.1), turns=(1.3, 1.3)),
        "disk": Measured(losses=losses, turns=(2.0, 2.0)),
    }


def test_losses_are_compared_with_the_engines() -> None:
    ways = measured()
    assert largest_difference(ways["ram"], ways["engine"]) == pytest.approx(0.1)
    assert math.isnan(largest_difference(ways["ram"], Measured(outcome="killed")))
    assert ratio_of(ways, "disk") == 2.0
    assert ratio_of(ways | {"disk": Measured(outcome="killed")}, "disk") is None
