"""One of the processes that train together: it trains epochs on request.

All processes of a group get the same requests: ``{"epochs": n}``, ``{"balance": n}`` (epochs after which vertices may move),
``{"bounds": [...]}`` (move now). Each answers with numbers of its own.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from bench.standalone.serve import answer_requests
from bench.standalone.training import LEARNING_RATE
from sagann.nn import ModelConfig, build_model
from sagann.runtime.workers import Workers, join_workers
from sagann.storage import load_graph
from sagann.train.balancer import REPAY_EPOCHS, Balancer
from sagann.train.contract import Contract
from sagann.train.epoch_source import WholeGraph
from sagann.train.predictor import Predictor


class Training:
    """A model in the loop that trains it, as one of the workers."""

    def __init__(self, specification: dict[str, Any], workers: Workers) -> None:
        # The parent wrote the files, so they are not checked.
        graph = load_graph(Path(specification["folder"]), verify=False)
        torch.manual_seed(0)
        config = ModelConfig(model=specification["model"], hidden=specification["hidden"], dropout=0.0)
        self._model = build_model(config, graph)
        predictor = Predictor(self._model, Contract.of(graph), device=torch.device("cpu"), workers=workers)
        prepared = predictor.prepare(graph, validate=False)
        assert prepared.part is not None
        self._part, self._source = prepared.part, WholeGraph(predictor, prepared)
        self._optimizer = torch.optim.Adam(self._model.parameters(), lr=LEARNING_RATE)
        self._balancer = Balancer(prepared.part)

    def epoch_s(self) -> float:
        """Train an epoch, and return its seconds. Workers end together, because they add their gradients."""
        began_s = time.perf_counter()
        self._model.train()
        self._optimizer.zero_grad()
        (step,) = self._source.steps(1)
        (loss := step.loss()).backward()
        step.complete(loss.detach(), step.num_edges)
        self._optimizer.step()
        return time.perf_counter() - began_s

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        if "bounds" in request:
            self._part.move(request["bounds"])
            return {"edges": self._part.topology.num_edges}
        if "epochs" in request:
            return {"seconds": [self.epoch_s() for _ in range(request["epochs"])]}
        self._balancer.begin()
        # As in a run that goes on for long.
        epochs = [
            {"epoch_s": self.epoch_s(), **self._balancer.settle(REPAY_EPOCHS)} for _ in range(request["balance"])
        ]
        return {"epochs": epochs}


@contextmanager
def training(specification: dict[str, Any]) -> Iterator[tuple[dict[str, Any], Callable[[dict], dict]]]:
    """A training among the workers, which is ready."""
    os.environ.update({name: str(value) for name, value in specification["environment"].items()})
    with join_workers(timeout_s=600) as workers:
        found = Training(specification, workers)
        # Compiles; gathers of constant features are kept from here on.
        found.epoch_s()
        found.epoch_s()
        yield {}, found.answer


if __name__ == "__main__":
    answer_requests(training)
