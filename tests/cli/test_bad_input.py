"""Datasets that are damaged, or that no memory holds, are refused by every command."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sagann.storage import load_graph, save_graph
from tests.cli.conftest import Invoke
from tests.cli.test_process import run


@pytest.fixture
def folder(blocks: Path, tmp_path: Path) -> Path:
    """A dataset that a test may change."""
    return Path(shutil.copytree(blocks, tmp_path / "data"))


def patch(path: Path, dtype: str, at: int, value: Any) -> None:
    """Overwrite one value of a raw array in place."""
    array = np.lib.format.open_memmap(path, mode="r+")
    assert array.dtype == np.dtype(dtype)
    array.reshape(-1)[at] = value
    array.flush()


@pytest.mark.parametrize("streamed", [False, True])
def test_a_flipped_bit_is_refused_unless_nobody_asks(
    invoke: Invoke, folder: Path, tmp_path: Path, streamed: bool
) -> None:
    # The new number is a feature like any other.
    patch(folder / "features.npy", "float32", 1, 1e-45)
    options = ("--hidden", 4, "--epochs", 1, *(("--memory", "1MiB") if streamed else ()))
    arguments = ("train", "--data", folder, *options, "--out", tmp_path / "run")
    refused = invoke(*arguments)
    assert refused.code == 2
    assert "array file is damaged: CRC-32" in refused.err
    assert invoke(*arguments, "--no-verify").code == 0
    # The setting is saved with the run.
    assert invoke("evaluate", "--run", tmp_path / "run").code == 0
    assert (
        invoke("train", "--config", tmp_path / "run" / "config.toml", "--verify", "--out", tmp_path / "x").code == 2
    )


@pytest.mark.parametrize(
    "command",
    [
        ("data", "reorder", "DATA", "OUT"),
        ("evaluate", "--run", "RUN", "--data", "DATA"),
        ("predict", "--run", "RUN", "--data", "DATA", "--out", "OUT.csv"),
        ("embed", "--run", "RUN", "--data", "DATA", "--out", "OUT.npy"),
        ("train", "--data", "DATA", "--sample", "2,2", "--hidden", 4, "--epochs", 1, "--out", "OUT"),
        ("train", "--data", "DATA", "--workers", 2, "--hidden", 4, "--epochs", 1, "--out", "OUT"),
    ],
    ids=lambda command: " ".join(map(str, command[:2])),
)
def test_every_command_that_computes_with_a_dataset_finds_a_flipped_bit(
    invoke: Invoke, folder: Path, tmp_path: Path, command: tuple[object, ...]
) -> None:
    train = ("train", "--data", folder, "--hidden", 4, "--epochs", 1, "--out", tmp_path / "run")
    if "RUN" in command:
        assert invoke(*train).code == 0
    # The source 0 becomes 1, an id like any other.
    indices = np.load(folder / "indices.npy")
    at = int((indices == 0).argmax())
    patch(folder / "indices.npy", indices.dtype, at, 1)
    names = {"DATA": folder, "RUN": tmp_path / "run", "OUT": tmp_path / "out"}
    names |= {f"OUT{suffix}": tmp_path / f"out{suffix}" for suffix in (".csv", ".npy")}
    arguments = [names.get(each, each) if isinstance(each, str) else each for each in command]
    if "--workers" in command:
        # What a worker says is not in this process.
        code, _, err = run(*arguments)
    else:
        ended = invoke(*arguments)
        code, err = ended.code, ended.err
    assert code == 2, err
    assert "indices.npy" in err
    assert "array file is damaged: CRC-32" in err
    assert not list(tmp_path.glob("out*"))


@pytest.mark.parametrize(
    ("model", "split"), [("gcn", None), ("own.py:Net", None), ("own.py:Net", "planetoid:1,1,1")]
)
def test_more_classes_than_memory_holds(
    invoke: Invoke, blocks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: str, split: str | None
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("own.py").write_text("from torch import nn\nclass Net(nn.Module):\n    pass\n")
    save_graph(replace(load_graph(blocks), num_classes=10**10), tmp_path / "data")
    chosen = () if split is None else ("--split", split)
    outcome = invoke("train", "--data", "data", "--model", model, "--out", "run", *chosen)
    assert outcome.code == 2
    assert ("class" if split else "for 10000000000 outputs") in outcome.err
    described = invoke("data", "info", "data")
    assert described.code == 0
    assert re.search(r"10000000000 \(0: \d+, 1: \d+, 2: \d+, 3: 0", described.out)
    assert invoke("data", "check", "data").code == 0
