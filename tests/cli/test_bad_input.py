"""Datasets that are damaged, or that no memory holds, are refused by every command."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sagann.graph import Graph, Topology
from sagann.storage import save_graph
from tests.cli.conftest import Invoke
from tests.cli.test_process import run

N = 12


def graph() -> Graph:
    src = torch.arange(N)
    return Graph(
        topology=Topology.from_coo(src=src, dst=(src + 1) % N, num_src=N),
        features=torch.eye(N, 4),
        labels=src % 2,
        num_classes=2,
        splits={"train": src % 3 == 0, "val": src % 3 == 1},
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_graph(graph(), tmp_path / "ring")
    return tmp_path / "ring"


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
    # 0.0 becomes 1e-45, a feature like any other.
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
        ("data", "score", "DATA", "--fanouts", "2,2"),
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
    invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: str, split: str | None
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("own.py").write_text("from torch import nn\nclass Net(nn.Module):\n    pass\n")
    save_graph(replace(graph(), num_classes=10**10), tmp_path / "ring")
    chosen = () if split is None else ("--split", split)
    outcome = invoke("train", "--data", "ring", "--model", model, "--out", "run", *chosen)
    assert outcome.code == 2
    assert ("class" if split else "for 10000000000 outputs") in outcome.err
    described = invoke("data", "info", "ring")
    assert described.code == 0
    assert "10000000000 (0: 6, 1: 6, 2: 0" in described.out
    assert invoke("data", "check", "ring").code == 0
