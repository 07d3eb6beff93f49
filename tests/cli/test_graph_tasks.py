"""Tasks on whole graphs from the command line: trained, measured, predicted; what has no meaning for graphs is refused."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from sagann.storage import save_graph
from sagann.train import load_run
from tests.cli.conftest import Invoke
from tests.train.graphs_of import rings_and_stars

GIN = ("--model", "gin", "--hidden", 8, "--dropout", 0, "--epochs", 3, "--batch-size", 8)


@pytest.fixture(scope="module")
def rings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """60 graphs of two classes, with splits."""
    path = tmp_path_factory.mktemp("data") / "rings"
    save_graph(rings_and_stars(), path)
    return path


@pytest.fixture(scope="module")
def sizes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """60 graphs with two targets, without splits."""
    path = tmp_path_factory.mktemp("data") / "sizes"
    save_graph(replace(rings_and_stars(regression=True), graph_splits={}), path)
    return path


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open() as file:
        return list(csv.DictReader(file))


def test_graphs_are_trained_measured_and_predicted(invoke: Invoke, rings: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    trained = invoke("train", rings, *GIN, "--pool", "mean,max", "--out", run)
    assert trained.code == 0
    metrics = json.loads((run / "metrics.json").read_text())
    evaluated = invoke("evaluate", run)
    assert evaluated.err == ""
    for split in ("train", "val", "test"):
        assert f"{metrics[split]['accuracy']:.4f}" in evaluated.out
    assert (
        invoke("predict", run, "--out", tmp_path / "p.csv").out
        == f"Predictions of 60 graphs written to {tmp_path / 'p.csv'}\n"
    )
    rows = rows_of(tmp_path / "p.csv")
    assert list(rows[0]) == ["graph", "class", "class_name", "probability"]
    assert [int(row["graph"]) for row in rows] == list(range(60))
    predicted = load_run(run).predict(rings_and_stars())
    assert [int(row["class"]) for row in rows] == predicted.tolist()
    assert invoke("predict", run, "--out", tmp_path / "p.npy").code == 0
    assert np.load(tmp_path / "p.npy").dtype.names == ("graph", "class", "probability")
    assert invoke("embed", run, "--out", tmp_path / "e.npy").code == 0
    assert np.load(tmp_path / "e.npy").shape == (rings_and_stars().num_vertices, 8)


def test_one_of_several_targets_is_learned(invoke: Invoke, sizes: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    trained = invoke("train", sizes, *GIN, "--targets", 1, "--out", run)
    assert "60 % of the graphs with a known answer train, 20 % validate" in trained.err
    assert json.loads((run / "run.json").read_text())["contract"]["num_outputs"] == 1
    assert invoke("predict", run, "--out", tmp_path / "p.csv").code == 0
    assert list(rows_of(tmp_path / "p.csv")[0]) == ["graph", "prediction"]
    evaluated = invoke("evaluate", run, "--data", sizes, "--split", "random:0.5,0.25")
    assert (evaluated.code, "val" in evaluated.out) == (0, True)
    both = invoke("train", sizes, *GIN, "--split", "random:0.5,0.25", "--out", tmp_path / "both")
    assert both.code == 0
    assert invoke("predict", tmp_path / "both", "--out", tmp_path / "b.csv").code == 0
    assert list(rows_of(tmp_path / "b.csv")[0]) == ["graph", "prediction_0", "prediction_1"]


def test_the_programs_of_a_models_layers_are_shown(invoke: Invoke, rings: Path) -> None:
    shown = invoke("plan", rings, "--model", "gin")
    assert shown.code == 0
    assert "gnn.layers.0, GIN" in shown.out
