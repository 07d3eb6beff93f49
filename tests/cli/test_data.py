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


@pytest.mark.parametrize("command", ["info", "check"])
@pytest.mark.parametrize("name", ["nowhere", "", ".", "x" * 300, "a\0b"])
def test_nothing_there(invoke: Invoke, command: str, name: str) -> None:
    outcome = invoke("data", command, name)
    assert outcome.code == 2, outcome.err
    assert outcome.err.startswith("Error: ")
    assert "  hint: " in outcome.err


def test_the_order_says_which_row_became_which(invoke: Invoke, blocks: Path, tmp_path: Path) -> None:
    order = tmp_path / "order.npy"
    assert invoke("data", "reorder", blocks, tmp_path / "g", "--by", "random", "--save-order", order).code == 0
    features, reordered = load_graph(blocks).features, load_graph(tmp_path / "g").features
    assert features is not None
    assert reordered is not None
    assert np.array_equal(reordered.numpy(), features.numpy()[np.load(order)])


ORDERS = (
    ("--by", "degree"),
    ("--by", "random"),
    ("--by", "score", "--score", "wrpr"),
    ("--by", "score", "--score", "degree"),
)


@pytest.mark.parametrize("by", [*ORDERS, ("--by", "metis", "--parts", "4")], ids=lambda by: " ".join(by))
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


def test_a_score_without_the_order_by_score_is_refused(invoke: Invoke, blocks: Path, tmp_path: Path) -> None:
    outcome = invoke("data", "reorder", blocks, tmp_path / "g", "--by", "degree", "--score", "rpr")
    assert outcome.code == 2
    assert "only the order by score has a score: --score rpr with --by degree" in outcome.err
    outcome = invoke("data", "reorder", blocks, tmp_path / "g", "--by", "score", "--score", "heat")
    assert outcome.code == 2
    assert "unknown score: 'heat', expected one of degree, rpr, wrpr, vip" in outcome.err
    assert not (tmp_path / "g").exists()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("data/labels.npy", "file cannot be written among those of a dataset or a run"),
        ("precious.npy", "a file stands there already: overwriting was not asked for"),
        ("folder.npy", "file cannot be written: what stands there is not a file"),
        ("no/order.npy", "file cannot be written: there is no folder"),
        ("order.txt", "file type is unknown: '.txt', expected .npy"),
    ],
)
def test_a_bad_place_for_the_order_is_refused_first(
    invoke: Invoke, blocks: Path, tmp_path: Path, name: str, message: str
) -> None:
    shutil.copytree(blocks, tmp_path / "data")
    (tmp_path / "folder.npy").mkdir()
    (tmp_path / "precious.npy").write_text("precious")
    target = tmp_path / name
    outcome = invoke("data", "reorder", tmp_path / "data", tmp_path / "g", "--by", "random", "--save-order", target)
    assert outcome.code == 2
    assert message in outcome.err
    assert f"(in --save-order {target})" in outcome.err
    assert not (tmp_path / "g").exists()
    assert (tmp_path / "precious.npy").read_text() == "precious"
    assert invoke("data", "check", tmp_path / "data").code == 0


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
