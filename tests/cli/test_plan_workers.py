"""``sagann plan --workers``: the parts of workers, and the cost model of a run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from sagann.partition import CostModel, Measurement, count_cost_features
from sagann.storage import load_graph
from sagann.train import Contract, Run, TrainConfig
from sagann.train.losses import default_loss
from sagann.train.run_folder import RunFolder
from tests.cli.conftest import Invoke

OPERATIONS = {"forward 0": 0, "forward 1": 64}
PLAN = ("plan", "--data", "demo", "--model", "sage", "--workers", 2)


def learned_state(*, device: str = "cpu", **change: Any) -> dict[str, Any]:
    """What a run on the demo graph has learned: an edge takes a microsecond, and the second worker twice as long."""
    topology, model = load_graph("demo").topology, CostModel()
    features, num_vertices = count_cost_features(topology, [64], device=device), topology.num_dst
    for cut in (num_vertices // 2, num_vertices // 3, num_vertices // 4):
        model = model.updated(
            Measurement(
                kind=kind,
                worker=worker,
                features=features.of_part(first, stop, width).tolist(),
                seconds=(1 + worker) * 1e-6 * features.of_part(first, stop, width)[1 if width else 0],
            )
            for worker, (first, stop) in enumerate([(0, cut), (cut, num_vertices)])
            for kind, width in OPERATIONS.items()
        )
    return {"bounds": [0, 5, num_vertices], "operations": OPERATIONS, "model": model.to_plain(), **change}


def run_folder(path: Path, state: dict[str, Any]) -> Path:
    folder, graph = RunFolder(path), load_graph("demo")
    run = Run(
        path=path,
        model="sage",
        model_config=None,
        train_config=TrainConfig(),
        data="demo",
        contract=Contract.of(graph),
        versions={},
        identity={"train": {"device": "cpu"}, "graph": {}},
        class_names=(),
        loss=default_loss("classification"),
        automatic_bytes=None,
    )
    with folder.locked():
        folder.write_run(run)
        folder.checkpoints.write({"epoch": 5, "batch": 0, **state})
    return path


def test_parts_are_shown_with_their_halo(invoke: Invoke) -> None:
    ended = invoke(*PLAN)
    assert ended.code == 0, ended.err
    assert "Parts of 2 workers, balanced by edges" in ended.out
    graph = load_graph("demo")
    rows = re.findall(r"│ +(\d) +│ +([\d,]+) +│ +([\d,]+) +│ +([\d.]+)% +│ +([\d,]+) +│ +- +│", ended.out)
    vertices, edges = ([int(row[column].replace(",", "")) for row in rows] for column in (1, 2))
    assert [row[0] for row in rows] == ["0", "1"]
    assert sum(vertices) == graph.num_vertices
    assert sum(edges) == graph.num_edges
    assert abs(edges[0] - edges[1]) < graph.num_edges / 20
    assert "Cost model" not in ended.out


def test_a_budget_divides_no_other_way(invoke: Invoke) -> None:
    ended = invoke(*PLAN, "--memory", "1GiB")
    assert (ended.code, ended.out) == (0, invoke(*PLAN).out)
    assert "What a worker streams is not planned" in ended.err


def test_what_a_run_has_learned_divides_the_graph(tmp_path: Path, invoke: Invoke) -> None:
    run = run_folder(tmp_path / "run", {"source": {"balance": learned_state()}})
    ended = invoke(*PLAN, "--balance", "cost", "--learned", run)
    assert ended.code == 0, ended.err
    assert "Parts of 2 workers, balanced by cost" in ended.out
    shares = [float(share) for share in re.findall(r"([\d.]+)%", ended.out.split("The slowest worker")[0])]
    assert shares == pytest.approx([66.7, 33.3], abs=2.0)
    found = re.search(r"balanced by: edges ([\d.]+) ms, vertices ([\d.]+) ms, cost ([\d.]+) ms", ended.out)
    by_edges, by_vertices, by_cost = map(float, found.groups())
    assert by_edges == pytest.approx(1.5 * by_cost, rel=0.03)
    assert by_vertices > 1.3 * by_cost
    assert "Cost model: nanoseconds on a worker of speed 1" in ended.out
    assert "forward 1" in ended.out
    assert "Speeds of the workers that were measured: 1.33, 0.67." in ended.out


def test_without_a_model_the_first_parts_are_shown(invoke: Invoke) -> None:
    ended = invoke(*PLAN, "--balance", "cost")
    assert ended.code == 0, ended.err
    assert "No cost model is given (--learned): parts begin with equal edges" in ended.err


def test_the_settings_of_a_run_that_learned_nothing_give_the_first_parts(tmp_path: Path, invoke: Invoke) -> None:
    run = run_folder(tmp_path / "run", {})
    (run / "config.toml").write_text('[data]\ndata = "demo"\n[train]\nworkers = 2\nbalance = "cost"\n')
    ended = invoke("plan", "--workers", 2, "--config", run / "config.toml")
    assert ended.code == 0, ended.err
    assert "The run gives no cost model: the run has learned no cost model" in ended.err
    assert "parts begin with equal edges" in ended.err
