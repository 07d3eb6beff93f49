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
    assert "  fix: " in outcome.err


def test_the_order_says_which_row_became_which(invoke: Invoke, blocks: Path, tmp_path: Path) -> None:
    order = tmp_path / "order.npy"
    assert invoke("data", "reorder", blocks, tmp_path / "g", "--by", "random", "--save-order", order).code == 0
    features, reordered = load_graph(blocks).features, load_graph(tmp_path / "g").features
    assert features is not None
    assert reordered is not None
    assert np.array_equal(reordered.numpy(), features.numpy()[np.load(order)])


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("data/labels.npy", "file cannot be written among those of a dataset or a run"),
        ("precious.npy", "a file stands there already: overwriting was not asked for"),
        ("folder.npy", "file cannot be written: a folder stands there"),
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
    assert f"  in:  --save-order {target}" in outcome.err
    assert not (tmp_path / "g").exists()
    assert (tmp_path / "precious.npy").read_text() == "precious"
    assert invoke("data", "check", tmp_path / "data").code == 0


def test_overwrite_replaces_the_order_as_well(invoke: Invoke, blocks: Path, tmp_path: Path) -> None:
    for by, extra in (("random", ()), ("degree", ("--overwrite",))):
        arguments = ("--by", by, "--save-order", tmp_path / "order.npy", *extra)
        assert invoke("data", "reorder", blocks, tmp_path / "g", *arguments).code == 0
    assert len(np.load(tmp_path / "order.npy")) == 120
