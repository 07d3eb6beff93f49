"""Commands of datasets: generate, look at, reorder, score."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from sagann.cli.score_run import write_curves
from sagann.storage import check_dataset, load_graph, save_graph
from sagann.tiering import SCORES, access_curve, measured_accesses, score_vertices
from tests.cli.conftest import Invoke


@pytest.mark.parametrize(
    "by", [("--by", "score", "--score", "wrpr"), ("--by", "metis", "--parts", "4")], ids=lambda by: " ".join(by)
)
def test_results_of_a_reordered_dataset_come_in_the_original_order(
    invoke: Invoke, blocks: Path, trained: Path, tmp_path: Path, by: tuple[str, ...]
) -> None:
    if "metis" in by:
        pytest.importorskip("pymetis")
    data = tmp_path / "data"
    assert invoke("data", "reorder", blocks, data, *by).code == 0
    assert "original ids are kept" in invoke("data", "info", data).out
    for each in (data, "demo"):
        assert invoke("data", "check", each).out == f"{each} is sound.\n"
    given, reordered = (load_graph(each) for each in (blocks, data))
    assert not torch.equal(reordered.original_ids, torch.arange(120))
    assert torch.equal(reordered.features, given.features[reordered.original_ids])
    # A model gives a vertex the same result in either dataset.
    results = {}
    for name, source in (("given", blocks), ("reordered", data)):
        for command, file in (("predict", "p.npy"), ("predict", "p.csv"), ("embed", "e.npy")):
            out = tmp_path / f"{name}-{file}"
            assert invoke(command, "--run", trained, "--data", source, "--out", out).code == 0
            results[name, file] = out
    found, expected = (np.load(results[name, "e.npy"]) for name in ("reordered", "given"))
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    found, expected = (np.load(results[name, "p.npy"]) for name in ("reordered", "given"))
    assert found["vertex"].tolist() == list(range(120))
    assert np.array_equal(found["class"], expected["class"])
    classes = [
        [line.split(",")[:2] for line in results[name, "p.csv"].read_text().splitlines()]
        for name in ("reordered", "given")
    ]
    assert classes[0] == classes[1]


def test_rmat(invoke: Invoke, tmp_path: Path) -> None:
    sizes = ("--vertices", 100, "--edges", 500, "--features", 3, "--classes", 4)
    outcome = invoke("data", "generate", "rmat", tmp_path / "g", *sizes, "--seed", 7, "--name", "power")
    assert outcome.code == 0
    assert outcome.out == f"100 vertices and 500 edges written to {tmp_path / 'g'}\n"
    check_dataset(tmp_path / "g")
    graph = load_graph(tmp_path / "g")
    assert (graph.num_vertices, graph.num_edges, graph.num_features, graph.num_classes) == (100, 500, 3, 4)
    assert graph.name == "power"
    assert invoke("data", "generate", "sbm", tmp_path / "g", "--vertices", 30, "--overwrite").code == 0


def rows_of(out: str) -> dict[str, list[str]]:
    lines = [
        [cell.strip() for cell in line.strip("│").split("│")] for line in out.splitlines() if line.startswith("│")
    ]
    return {hot: shares for hot, *shares in lines}


def test_a_row_for_every_share_of_hot_rows(invoke: Invoke, blocks: Path) -> None:
    outcome = invoke("data", "score", blocks, "--fanouts", "5,3", "--batch-size", 20)
    assert outcome.code == 0, outcome.err
    graph = load_graph(blocks)
    seeds = graph.splits["train"].nonzero().squeeze(1)
    counts = measured_accesses(graph.topology, seeds, [5, 3], batch_size=20)
    scores = [score_vertices(graph, name, fanouts=[5, 3], batch_size=20) for name in SCORES]
    curves = [access_curve(score, counts) for score in (*scores, counts)]
    assert rows_of(outcome.out) == {
        f"{hot}%": [f"{float(curve[120 * hot // 100]):.1%}" for curve in curves] for hot in (1, 5, 10, 25, 50)
    }
    assert f"An epoch of 4 batches from 72 vertices reads {int(counts.sum())} rows" in outcome.err
    assert "of dense features." in outcome.err


def test_scores_and_seeds_can_be_chosen(invoke: Invoke, blocks: Path) -> None:
    outcome = invoke("data", "score", blocks, "--score", "wrpr", "--fanouts", "-1", "--split", "val")
    assert outcome.code == 0
    assert {len(shares) for shares in rows_of(outcome.out).values()} == {2}
    assert "1 batch from 24 vertices" in outcome.err
    assert "1 batch from 120 vertices" in invoke("data", "score", blocks, "--split", "all").err


def test_without_labels_and_splits(invoke: Invoke, blocks: Path, tmp_path: Path) -> None:
    save_graph(replace(load_graph(blocks), labels=None, splits={}, num_classes=0, features=None), tmp_path / "bare")
    outcome = invoke("data", "score", tmp_path / "bare")
    assert outcome.code == 2
    assert "no vertex is labelled: neither a split 'train' nor labels" in outcome.err
    outcome = invoke("data", "score", tmp_path / "bare", "--split", "all")
    assert outcome.code == 0
    assert "of dense features" not in outcome.err


def test_the_curves_are_drawn(invoke: Invoke, blocks: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    plot = tmp_path / "curves.png"
    outcome = invoke("data", "score", blocks, "--plot", plot)
    assert outcome.code == 0
    assert outcome.out.endswith(f"Curves drawn in {plot}\n")
    assert plot.read_bytes().startswith(b"\x89PNG")
    refused = invoke("data", "score", blocks, "--plot", plot)
    assert refused.code == 2
    assert "a file stands there already" in refused.err
    assert invoke("data", "score", blocks, "--plot", plot, "--overwrite").code == 0
    assert "expected .png" in invoke("data", "score", blocks, "--plot", tmp_path / "curves.pdf").err


@pytest.mark.parametrize("num_rows", [1, 7, 100_000])
def test_a_picture_of_any_number_of_rows_is_drawn(tmp_path: Path, num_rows: int) -> None:
    pytest.importorskip("matplotlib")
    write_curves(tmp_path / "curves.png", {"oracle": torch.linspace(0, 1, num_rows + 1)}, title="Reads")
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_without_matplotlib_the_extra_is_named(
    invoke: Invoke, blocks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sagann.storage.picture.can_draw", lambda: False)
    outcome = invoke("data", "score", blocks, "--plot", tmp_path / "curves.png")
    assert outcome.code == 2
    assert "pip install 'sagann[plots]'" in outcome.err


def test_a_split_without_vertices(invoke: Invoke, blocks: Path, tmp_path: Path) -> None:
    graph = load_graph(blocks)
    nobody = torch.zeros(120, dtype=torch.bool)
    save_graph(replace(graph, splits={**graph.splits, "val": nobody}), tmp_path / "data")
    outcome = invoke("data", "score", tmp_path / "data", "--split", "val")
    assert outcome.code == 2
    assert "no vertex to start batches from: 0 of 120 vertices" in outcome.err
