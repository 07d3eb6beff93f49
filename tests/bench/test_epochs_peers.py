"""The contestants compute the same: with the same first weights, the same logits after a few epochs."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from bench.epochs import pyg_worker, sagann_worker
from bench.epochs.__main__ import MODELS, ONLY_FOR
from bench.epochs.graphs import Shape, generate, write_graph, write_weights
from bench.standalone.serve import Runner, UnsupportedError
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
        "defaults": False,
        "dropout": 0.0,
        "sparse": False,
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


def default_epochs(worker: object, model: str, variant: str, folder: Path, *, sparse: bool) -> Runner:
    told = specification(model, folder, variant) | {"defaults": True, "dropout": 0.5, "sparse": sparse}
    runner = worker.build(told, worker.load(told, folder))  # type: ignore[attr-defined]
    for _ in range(EPOCHS):
        assert math.isnan(runner.run())
    return runner


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("model", ["gcn", "gat"])
def test_an_epoch_of_the_trainer_is_one_epoch(model: str, sparse: bool, folder: Path) -> None:
    runner = default_epochs(sagann_worker, model, "", folder, sparse=sparse)
    assert isinstance(runner, sagann_worker.TrainerRun)
    first = runner.result()["probabilities"]
    runner.run()
    assert np.abs(runner.result()["probabilities"] - first).max() > 0
    runner.close()
    assert not runner.thread.is_alive()


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("variant", ["csr", "csr+sparse"])
def test_pyg_trains_with_dropout(variant: str, folder: Path) -> None:
    runner = default_epochs(pyg_worker, "gcn", variant, folder, sparse=variant.endswith("+sparse"))
    before = runner.result()["logits"]
    # An evaluation leaves dropout off, so that nothing but a step changes what is computed.
    np.testing.assert_array_equal(before, runner.result()["logits"])
    runner.run()
    assert np.abs(runner.result()["logits"] - before).max() > 0


@pytest.mark.slow
def test_dgl_computes_the_same() -> None:
    python = os.environ.get("SAGANN_DGL_PYTHON")
    if python is None:
        pytest.skip("set SAGANN_DGL_PYTHON to the Python of an environment with DGL")
    command = [
        sys.executable,
        "-m",
        "bench.epochs",
        "--check",
        "--threads",
        "1",
        "--dgl",
        python,
        "--contestants",
        "sagann",
        "dgl",
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
