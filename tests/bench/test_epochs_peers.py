"""The contestants compute the same: with the same first weights, the same logits after a few epochs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from bench.epochs import pyg_worker, sagann_worker
from bench.epochs.__main__ import MODELS, ONLY_FOR
from bench.epochs.graphs import Shape, generate, write_graph, write_weights
from bench.standalone.serve import UnsupportedError
from bench.workers import ROOT

pytestmark = pytest.mark.peers
EPOCHS = 3


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("graph")
    stored = generate(Shape(vertices=60, edges=300, features=12, classes=4))
    write_graph(folder, stored)
    write_weights(folder, [sagann_worker.config_of(specification(model, folder)) for model in MODELS], 12, 4)
    return folder


def specification(model: str, folder: Path, variant: str = "") -> dict:
    return {
        "model": model,
        "variant": variant,
        "layers": 2,
        "hidden": 16,
        "heads": 8,
        "encoder": False,
        "threads": 1,
        "folder": str(folder),
    }


def logits(worker: object, told: dict) -> torch.Tensor:
    training = worker.build(told, worker.load(told, Path(told["folder"])))  # type: ignore[attr-defined]
    for _ in range(EPOCHS):
        training.run()
    return torch.from_numpy(training.result()["logits"])


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("variant", ["edge_index", "EdgeIndex", "EdgeIndex32", "csr", "csr32"])
@pytest.mark.parametrize("model", MODELS)
def test_pyg_computes_the_same(model: str, variant: str, folder: Path) -> None:
    if model not in ONLY_FOR.get(f"pyg:{variant}", (model,)):
        pytest.skip("PyG does not take this form here")
    try:
        theirs = logits(pyg_worker, specification(model, folder, variant))
    except UnsupportedError as error:
        pytest.skip(str(error))
    ours = logits(sagann_worker, specification(model, folder))
    torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-3 * float(theirs.abs().max()))


@pytest.mark.slow
def test_dgl_computes_the_same() -> None:
    python = os.environ.get("SAGANN_DGL_PYTHON")
    if python is None:
        pytest.skip("set SAGANN_DGL_PYTHON to the Python of an environment with DGL")
    for benchmark in ("bench.epochs", "bench.operations"):
        only = ["--contestants", "sagann", "dgl"] if benchmark == "bench.epochs" else []
        command = [sys.executable, "-m", benchmark, "--check", "--threads", "1", "--dgl", python, *only]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
