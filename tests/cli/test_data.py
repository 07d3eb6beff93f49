from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from sagann.storage import load_graph
from tests.cli.conftest import Invoke


def test_info_of_a_folder(invoke: Invoke, blocks: Path) -> None:
    outcome = invoke("data", "info", blocks)
    assert outcome.code == 0
    num_edges = load_graph(blocks).num_edges
    for text in ("120", f"{num_edges} directed", "6, dense float32", "train 72, val 24, test 24", "KiB"):
        assert text in outcome.out


def test_check_of_a_sound_folder(invoke: Invoke, blocks: Path) -> None:
    outcome = invoke("data", "check", blocks)
    assert outcome.code == 0
    assert outcome.out == f"{blocks} is sound.\n"


def test_demo_is_sound(invoke: Invoke) -> None:
    assert invoke("data", "check", "demo").code == 0


def test_the_order_says_which_row_became_which(invoke: Invoke, blocks: Path, tmp_path: Path) -> None:
    order = tmp_path / "order.npy"
    assert invoke("data", "reorder", blocks, tmp_path / "g", "--by", "random", "--save-order", order).code == 0
    features, reordered = load_graph(blocks).features, load_graph(tmp_path / "g").features
    assert features is not None
    assert reordered is not None
    assert np.array_equal(reordered.numpy(), features.numpy()[np.load(order)])


@pytest.mark.parametrize(
    "by", [("--by", "score", "--score", "wrpr"), ("--by", "metis", "--parts", "4")], ids=lambda by: " ".join(by)
)
def test_results_of_a_reordered_dataset_come_in_the_original_order(
    invoke: Invoke, blocks: Path, trained: Path, tmp_path: Path, by: tuple[str, ...]
) -> None:
    if "metis" in by:
        pytest.importorskip("pymetis")
    order, data = tmp_path / "order.npy", tmp_path / "data"
    assert invoke("data", "reorder", blocks, data, *by, "--save-order", order).code == 0
    assert "original ids are kept" in invoke("data", "info", data).out
    assert invoke("data", "check", data).code == 0
    assert not np.array_equal(np.load(order), np.arange(120))
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


def test_overwrite_replaces_the_order_as_well(invoke: Invoke, blocks: Path, tmp_path: Path) -> None:
    for by, extra in (("random", ()), ("degree", ("--overwrite",))):
        arguments = ("--by", by, "--save-order", tmp_path / "order.npy", *extra)
        assert invoke("data", "reorder", blocks, tmp_path / "g", *arguments).code == 0
    assert len(np.load(tmp_path / "order.npy")) == 120


@pytest.mark.parametrize("by", ["degree", "random"])
def test_a_dataset_with_wrong_values_is_not_reordered(
    invoke: Invoke, blocks: Path, tmp_path: Path, by: str
) -> None:
    data = shutil.copytree(blocks, tmp_path / "data")
    indices = np.load(data / "indices.npy", mmap_mode="r+")
    indices[0] = 10**6
    indices.flush()
    outcome = invoke("data", "reorder", data, tmp_path / "g", "--by", by)
    assert outcome.code == 2
    assert "Traceback" not in outcome.err
    assert not (tmp_path / "g").exists()
