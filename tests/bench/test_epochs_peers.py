"""The contestants compute the same: with the same first weights, the same logits after a few epochs."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from bench.epochs import pyg_worker, sagann_worker
from bench.epochs.__main__ import MODELS
from bench.epochs.graphs import Shape, generate, write_graph, write_weights
from bench.workers import Worker

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
    with torch.no_grad():
        return training.forward()


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(("model", "variant"), [("gcn", "edge_index"), ("gcn", "csr"), ("gated-gcn", "csr")])
def test_pyg_computes_the_same(model: str, variant: str, folder: Path) -> None:
    ours = logits(sagann_worker, specification(model, folder))
    theirs = logits(pyg_worker, specification(model, folder, variant))
    torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-3 * float(theirs.abs().max()))


def test_the_trainer_answers_with_its_defaults(folder: Path) -> None:
    told = {**specification("gcn", folder), "defaults": True, "dropout": 0.5}
    with Worker([sys.executable, "-m", "bench.epochs.sagann_worker"], told, timeout_s=120) as worker:
        assert len(worker.ask({"epochs": 2})["seconds"]) == 2
