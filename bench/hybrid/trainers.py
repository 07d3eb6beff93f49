"""Two trainers of unequal speed that a benchmark of :mod:`bench.hybrid` runs: the processor on one core, and an accelerator in a process of its own."""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import torch

from bench.held_back import held_back
from bench.power_law import power_law
from sagann.hybrid.assignment import HOST
from sagann.hybrid.host_cores import on_cores
from sagann.hybrid.process_trainer import ProcessTrainer
from sagann.nn import ModelConfig, build_model
from sagann.runtime.processor import processor_name
from sagann.train import TrainConfig
from sagann.train.contract import Contract
from sagann.train.epoch_source import EpochSource
from sagann.train.hybrid_epochs import HybridEpochs
from sagann.train.predictor import Predictor
from sagann.train.preparation import PreparedGraph
from sagann.train.sampled_epochs import SampledEpochs

ACCELERATOR = "accelerator0"
DEVICES = "host:1,accelerator:1"


def bench_of(options: argparse.Namespace, title: str, module: str) -> Bench:
    """The trainers that the options describe; a title and a description of them are printed."""
    torch.set_num_threads(1)
    graph = power_law(int(options.vertices), int(options.edges), options.features)
    torch.manual_seed(0)
    model = build_model(ModelConfig(model="sage", hidden=options.hidden, dropout=0.0), graph)
    predictor = Predictor(model, Contract.of(graph), device=torch.device("cpu"))
    prepared = predictor.prepare(graph)
    print(
        f"# {title}\n\n`python -m {module}`; {processor_name()}, a core for each trainer. "
        f"GraphSAGE, {options.hidden} wide, fanouts {options.sample}, batches of {options.batch_size} seeds; R-MAT, "
        f"{graph.num_vertices:,} vertices, {graph.num_edges:,} edges, {options.features} features.\n"
    )
    return Bench(predictor, prepared, options)


class Bench:
    """The trainers of one model and graph."""

    def __init__(self, predictor: Predictor, prepared: PreparedGraph, options: argparse.Namespace) -> None:
        self._predictor, self._prepared, self.options = predictor, prepared, options
        self.how_held_back = dict[str, None]()
        "How accelerators were held back, in words."
        self.optimizer = torch.optim.SGD(predictor.model.parameters(), lr=1e-4)
        self._config = TrainConfig(
            sample=tuple(map(int, options.sample.split(","))), batch_size=options.batch_size, sharing="joint"
        )

    def machines(self) -> list[tuple[float, float]]:
        """Each quota with the fastest link, and each link with the largest quota."""
        options = self.options
        pairs = [(quota, options.rates[-1]) for quota in options.quotas]
        return pairs + [(options.quotas[0], rate) for rate in options.rates[:-1]]

    def alone_s(self) -> float:
        """Seconds of an iteration of one core of the processor alone, as a run without devices makes it."""
        with on_cores(first_core()):
            return statistics.median(self.times(self.processor_alone(), self.options.measured)[5:])

    def processor_alone(self) -> SampledEpochs:
        """The epochs of a run without devices."""
        return SampledEpochs(self._predictor, self._prepared, self._config)

    @contextmanager
    def running(self, devices: str, policy: str, quota: float, rate: float) -> Iterator[Run]:
        """Trainers that run, after what is compiled and imported."""
        with self.source(devices, policy, rate) as source, ExitStack() as stack:
            run = Run(source, self.times)
            stack.callback(run.close)
            run(5)
            if quota < 1:
                self.how_held_back[stack.enter_context(held_back(run.pid, quota))] = None
            yield run

    @contextmanager
    def source(self, devices: str, policy: str, rate: float) -> Iterator[HybridEpochs]:
        """Trainers that have started, the accelerator on its core."""
        config = replace(self._config, devices=devices, sharing=policy, link_rate=rate * 1e9)
        source = HybridEpochs(self._predictor, self._prepared, config)
        with ExitStack() as stack:
            stack.callback(source.close)
            source.open()
            yield source

    def times(self, source: EpochSource, count: int, first: Iterator[Any] | None = None) -> list[float]:
        """Seconds of iterations, from one to the next."""
        steps, times = first or endless(source), []
        since_s = time.perf_counter()
        for step in itertools.islice(steps, count):
            self.optimizer.zero_grad()
            step.loss().backward()
            self.optimizer.step()
            now_s = time.perf_counter()
            times.append(now_s - since_s)
            since_s = now_s
        return times


class Run:
    """Trainers that run; a call trains a number of iterations, and gives the seconds of each."""

    def __init__(self, source: HybridEpochs, times: Callable[..., list[float]]) -> None:
        self.source, self.pid = source, pid_of(source)
        self.moves = 0
        self._times, self.steps = times, endless(source)

    def __call__(self, count: int) -> list[float]:
        found = self._times(self.source, count, self.steps)
        self.moves += self.source.manager.work.num_moves
        self.source.manager.begin()
        return found

    def fix(self, part: float) -> None:
        """Have the processor train a part of the seeds from now on."""
        now = self.source.manager.assignment
        host = min(max(round(part * now.total), 1), now.total - 1)
        split = replace(now, seeds={HOST: host, ACCELERATOR: now.total - host})
        self.source.manager.start_from(split, "static")

    def close(self) -> None:
        self.steps.close()


def pid_of(source: HybridEpochs) -> int:
    """The accelerator's process."""
    trainer = source.trainers[ACCELERATOR]
    assert isinstance(trainer, ProcessTrainer)
    return trainer.pid


def named(quota: float, rate: float) -> str:
    """A machine, for people."""
    return f"{quota:g} core, {rate:g} GB/s"


def endless(source: EpochSource) -> Any:
    """The steps of all epochs."""
    for epoch in itertools.count(1):
        yield from source.steps(epoch)


def first_core() -> list[int]:
    """The core that the processor's tasks keep to beside an accelerator."""
    return sorted(os.sched_getaffinity(0))[:1]
