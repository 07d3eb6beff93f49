"""Tasks on whole graphs and on links from the command line: trained, measured, predicted, embedded; what has no meaning for them is refused."""

from __future__ import annotations

import csv
import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from sagann.cli.prepare import training_graph
from sagann.graph import Graph
from sagann.storage import save_graph
from sagann.train import load_run
from tests.cli.conftest import Invoke
from tests.shared import SharedFolder
from tests.train.graphs_of import rings_and_stars
from tests.train.runs import community_graph

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


TRAIN = ("train", "--data", "demo", "--model", "sage", "--hidden", 16, "--task", "link-prediction", "--epochs", 1)


@pytest.fixture(name="run_dir")
def trained(invoke: Invoke, shared_folder: SharedFolder) -> Path:
    def train(folder: Path) -> None:
        ended = invoke(*TRAIN, "--out", folder / "run")
        assert ended.code == 0, ended.err
        assert "85 % of the edges are learned, 5 % validate, 10 % test (seed 0)" in ended.err
        assert "the task 'link-prediction' does not use them" in ended.err

    return shared_folder("links", train) / "run"


def test_a_run_is_evaluated_as_it_was_trained(invoke: Invoke, run_dir: Path) -> None:
    summary = json.loads((run_dir / "metrics.json").read_text())
    assert 0 < summary["test"]["mrr"] <= 1
    ended = invoke("evaluate", run_dir)
    assert ended.code == 0, ended.err
    assert "mrr" in ended.out
    assert "hits_10" in ended.out
    assert f"{summary['test']['mrr']:.4f}" in ended.out
    assert "has changed" not in ended.err
    ended = invoke("evaluate", run_dir, "--split", "edges:0.5,0.1")
    assert ended.code == 0, ended.err
    assert "the run has learned some of the links" in ended.err
    ended = invoke("evaluate", run_dir, "--data", "demo")
    assert f"{summary['test']['mrr']:.4f}" in ended.out
    assert "the run has learned some of the links" not in ended.err
    ended = invoke("evaluate", run_dir, "--split", "edges:0.85,0.05")
    assert "the run has learned some of the links" not in ended.err


def test_pairs_of_a_table_are_scored(invoke: Invoke, run_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "pairs.csv").write_text("dst,src\n3,1\n5,0\n")
    (tmp_path / "plain.csv").write_text("1,3\n0,5\n")
    for name in ("pairs", "plain"):
        ended = invoke(
            "predict", run_dir, "--links", tmp_path / f"{name}.csv", "--out", tmp_path / f"{name}-out.csv"
        )
        assert ended.code == 0, ended.err
        assert "Probabilities of 2 links" in ended.out
    lines = (tmp_path / "pairs-out.csv").read_text().splitlines()
    assert lines[0].replace('"', "") == "src,dst,probability"
    assert [line.rpartition(",")[0] for line in lines[1:]] == ["1,3", "0,5"]
    assert (tmp_path / "plain-out.csv").read_text() == (tmp_path / "pairs-out.csv").read_text()
    assert invoke("predict", run_dir, "--links", tmp_path / "pairs.csv", "--out", tmp_path / "found.npy").code == 0
    assert np.load(tmp_path / "found.npy") == pytest.approx([float(line.rpartition(",")[2]) for line in lines[1:]])
    assert invoke("embed", run_dir, "--out", tmp_path / "rows.npy").code == 0
    assert np.load(tmp_path / "rows.npy").shape == (19717, 16)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1,99999\n", "99999"),
        ("-1,2\n", "-1"),
        ("1\n", "column"),
        ("1,x\n", "x"),
        ("src,other\n1,2\n", "no column 'dst'"),
        ("", "empty|no row|no column"),
    ],
)
def test_tables_that_are_none_are_refused(
    invoke: Invoke, run_dir: Path, tmp_path: Path, text: str, message: str
) -> None:
    (tmp_path / "pairs.csv").write_text(text)
    ended = invoke("predict", run_dir, "--links", tmp_path / "pairs.csv", "--out", tmp_path / "out.csv")
    assert ended.code == 2, ended.err
    assert "pairs.csv" in ended.err
    assert re.search(message, ended.err)
    assert not (tmp_path / "out.csv").exists()


def test_commands_that_do_not_fit_the_task_are_refused(invoke: Invoke, run_dir: Path, tmp_path: Path) -> None:
    ended = invoke("predict", run_dir, "--out", tmp_path / "out.csv")
    assert ended.code == 2
    assert "there are no links to score: no --links, and the task is link-prediction" in ended.err
    for split in ("random:0.6,0.2", "edges:0.9", "edges:x,y", "edges:0.9,0.9", "edges:nan,0"):
        assert invoke(*TRAIN, "--split", split, "--out", tmp_path / "other").code == 2
    assert invoke("plan", "--data", "demo", "--task", "link-prediction").code == 0


def test_the_split_of_edges_that_an_archive_states_is_measured(
    invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topology = community_graph().topology
    src, dst = topology.indices.numpy(), topology.edge_dst().numpy()
    split = np.maximum((src + dst) % 7 - 4, 0)
    features = np.eye(topology.num_src, dtype=np.float32)
    np.savez(tmp_path / "g.npz", edge_index=[src, dst], edge_split=split, features=features, edge_year=split)
    assert invoke("data", "import", tmp_path / "g.npz", tmp_path / "g").code == 0
    held: list[Graph] = []
    monkeypatch.setattr(
        "sagann.cli.train_run.training_graph",
        lambda *args, **more: held.append(training_graph(*args, **more)) or held[-1],
    )
    for number, data in enumerate(("g.npz", "g")):
        run = tmp_path / f"run{number}"
        ended = invoke(*TRAIN[:2], tmp_path / data, *TRAIN[3:], "--out", run)
        assert ended.code == 0, ended.err
        assert "edge data 'split' say which edges are learned, validate and test" in ended.err
        assert ("left out: edge_year" in ended.err) == (data == "g.npz")
        kept, links = held[-1].topology, held[-1].links
        test = links.splits["test"]
        for ends, wanted in (((links.src[test], links.dst[test]), 2), ((kept.indices, kept.edge_dst()), 0)):
            measured = sorted(zip(*(each.tolist() for each in ends), strict=True))
            assert measured == sorted(
                zip(src[split == wanted].tolist(), dst[split == wanted].tolist(), strict=True)
            )
    summary = json.loads((run / "metrics.json").read_text())
    for options, is_told in (
        ((), False),
        (("--data", tmp_path / "g"), False),
        (("--split", "edges:0.85,0.05"), True),
    ):
        ended = invoke("evaluate", run, *options)
        assert ended.code == 0, ended.err
        assert ("the run has learned some of the links" in ended.err) == is_told
        assert (f"{summary['test']['mrr']:.4f}" in ended.out) == (not is_told)
