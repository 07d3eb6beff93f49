"""Iterations of the trainers of a source of steps, timed."""

from __future__ import annotations

import itertools
import time
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import torch

from bench.timing import PROCESSOR, finish
from sagann.graph import Graph
from sagann.hybrid.assignment import HOST
from sagann.hybrid.process_trainer import ProcessTrainer
from sagann.nn import ModelConfig, build_model
from sagann.runtime.team import SOLO, Team
from sagann.train.contract import Contract
from sagann.train.epoch_source import EpochSource
from sagann.train.hybrid_epochs import HybridEpochs
from sagann.train.predictor import Predictor

ACCELERATOR = "accelerator0"


def predictor_of(
    graph: Graph,
    model: str,
    hidden: int,
    *,
    layers: int = 2,
    device: torch.device = PROCESSOR,
    workers: Team = SOLO,
) -> Predictor:
    """A model of the zoo without dropout, whose first weights are the same in every process."""
    torch.manual_seed(0)
    config = ModelConfig(model=model, layers=layers, hidden=hidden, dropout=0.0)
    return Predictor(build_model(config, graph), Contract.of(graph), device=device, workers=workers)


class Run(AbstractContextManager["Run"]):
    """Trainers, which run inside the ``with`` block. A call trains some iterations, and returns the seconds of each."""

    def __init__(
        self, source: EpochSource, optimizer: torch.optim.Optimizer, device: torch.device = PROCESSOR
    ) -> None:
        self.source, self._optimizer, self._device = source, optimizer, device
        self.moves = 0
        "Decisions of the policy that moved something."

    def __enter__(self) -> Run:
        self.source.open()
        self._steps = (step for epoch in itertools.count(1) for step in self.source.steps(epoch))
        return self

    def __exit__(self, *_: object) -> None:
        self._steps.close()
        self.source.close()

    @property
    def manager(self) -> Any:
        """The manager that balances the trainers, if there are several."""
        return self.source.manager if isinstance(self.source, HybridEpochs) else None

    def __call__(self, count: int) -> list[float]:
        if self.manager is not None:
            self.manager.begin()
        times = []
        finish(self._device)
        since_s = time.perf_counter()
        for number, step in enumerate(itertools.islice(self._steps, count), 1):
            self._optimizer.zero_grad()
            loss = step.loss()
            loss.backward()
            step.complete(loss.detach(), step.num_edges)
            self._optimizer.step()
            if number == count:
                finish(self._device)
            now_s = time.perf_counter()
            times.append(now_s - since_s)
            since_s = now_s
        if self.manager is not None:
            self.moves += self.manager.work.num_moves
        return times

    @property
    def accelerator_pid(self) -> int:
        """The process of the accelerator."""
        assert isinstance(self.source, HybridEpochs)
        trainer = self.source.trainers[ACCELERATOR]
        assert isinstance(trainer, ProcessTrainer)
        return trainer.pid

    def fix(self, part: float) -> None:
        """Have the processor train a part of the seeds from now on."""
        now = self.manager.assignment
        host = min(max(round(part * now.total), 1), now.total - 1)
        split = replace(now, seeds={HOST: host, ACCELERATOR: now.total - host})
        self.manager.start_from(split, "static")
