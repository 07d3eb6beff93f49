"""One of the processes that train together, or the only one: it trains epochs when it is told to.

All processes of a group get the same requests, lines of JSON: ``{"epochs": n}``, ``{"balance": n}`` (epochs after which vertices may move),
``{"bounds": [...]}`` (move now). Each answers with numbers of its own.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch

from bench.standalone.training import LEARNING_RATE
from sagann.nn import ModelConfig, build_model
from sagann.runtime.workers import Workers, join_workers
from sagann.storage import load_graph
from sagann.train.balancer import REPAY_EPOCHS, Balancer
from sagann.train.contract import Contract
from sagann.train.epoch_source import WholeGraph
from sagann.train.predictor import Predictor


class Training:
    """A model in the loop that trains it, as one of the workers or alone."""

    def __init__(self, specification: dict[str, Any], workers: Workers | None) -> None:
        # The parent has made the files, and checks nothing again.
        graph = load_graph(Path(specification["folder"]), verify=False)
        torch.manual_seed(0)
        config = ModelConfig(model=specification["model"], hidden=specification["hidden"], dropout=0.0)
        model, self.workers = build_model(config, graph), workers
        predictor = Predictor(model, Contract.of(graph), device=torch.device("cpu"), workers=workers)
        prepared = predictor.prepare(graph, validate=False)
        self.model, self.part, self.source = model, prepared.part, WholeGraph(predictor, prepared)
        self.optimizer = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE)
        self.balancer = None if prepared.part is None else Balancer(prepared.part)

    def epoch_s(self) -> float:
        """Train an epoch, and return its seconds. Workers end together, because they add their gradients."""
        began_s = time.perf_counter()
        self.model.train()
        self.optimizer.zero_grad()
        (step,) = self.source.steps(1)
        step.loss().backward()
        step.complete_gradients()
        self.optimizer.step()
        return time.perf_counter() - began_s

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Do what a request asks for."""
        if "bounds" in request:
            self.part.move(request["bounds"])
            return {"edges": self.part.topology.num_edges}
        if "balance" in request:
            return {"epochs": self._balanced(request["balance"])}
        return self._epochs(request["epochs"])

    def _epochs(self, count: int) -> dict[str, Any]:
        if self.workers is None:
            return {"seconds": [self.epoch_s() for _ in range(count)]}
        before = self.workers.sent_bytes
        self.workers.stopwatch.take()
        seconds = [self.epoch_s() for _ in range(count)]
        laps = self.workers.stopwatch.take()
        halo = self.part.halo
        rows = {
            "forward": sum(len(sent) for sent in halo.sent),
            "backward": sum(got.stop - got.start for got in halo.received.values()),
        }
        return {
            "seconds": seconds,
            "computing_s": sum(lap.seconds for lap in laps.values()) / count,
            "sent_bytes": (self.workers.sent_bytes - before) / count,
            "halo_bytes": sum(lap.row_bytes * rows[kind.split()[0]] for kind, lap in laps.items()),
            "bounds": list(self.part.bounds),
        }

    def _balanced(self, count: int) -> list[dict[str, Any]]:
        assert self.balancer is not None
        self.balancer.begin()
        found = []
        for _ in range(count):
            seconds = self.epoch_s()
            # As in a run that goes on for long.
            found.append({"epoch_s": seconds, **self.balancer.settle(REPAY_EPOCHS)})
        return found


def main() -> None:
    """Answer the requests on standard input; the pipe that the second argument names gets the answers."""
    specification, answers = json.loads(sys.argv[1]), os.fdopen(int(sys.argv[2]), "w")

    def say(message: dict[str, Any]) -> None:
        answers.write(json.dumps(message) + "\n")
        answers.flush()

    try:
        torch.set_num_threads(specification["threads"])
        os.environ.update({name: str(value) for name, value in specification["environment"].items()})
        with join_workers(timeout_s=600) if specification["environment"] else nullcontext() as workers:
            training = Training(specification, workers)
            # Compiles; gathers of constant features are kept from here on.
            training.epoch_s()
            training.epoch_s()
            say({"ready": {}})
            for line in sys.stdin:
                say(training.answer(json.loads(line)))
    except Exception:  # noqa: BLE001  (passed on to the parent, whole)
        say({"error": traceback.format_exc()})


if __name__ == "__main__":
    main()
