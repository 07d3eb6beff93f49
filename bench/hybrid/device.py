"""A CUDA device and the processor together, beside each alone: ``python -m bench.hybrid.device > bench/results/hybrid_device.md``.

Contestants train the same mini-batches by turns of ``--measured`` iterations: the processor alone with all cores, the device alone as ``--device cuda``
trains, the device as the only trainer of ``--devices``, and both together by a policy. Policies have settled before. An iteration is
the time from one optimizer step to the next one, sampling and loading included, which run ahead of it.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import torch

from bench.device.place import where
from bench.power_law import power_law
from bench.result_tables import table_line
from sagann.graph import Graph
from sagann.hybrid.work import TrainerWork
from sagann.nn import ModelConfig, build_model
from sagann.runtime.places import device_named
from sagann.train import TrainConfig
from sagann.train.contract import Contract
from sagann.train.epoch_source import EpochSource
from sagann.train.hybrid_epochs import HybridEpochs
from sagann.train.predictor import Predictor
from sagann.train.sampled_epochs import SampledEpochs


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a table for each model."""
    options = _options(arguments)
    graph = power_law(int(options.vertices), int(options.edges), options.features)
    device = device_named(options.device)
    print(
        f"# Processor and device together\n\n`python -m bench.hybrid.device`; {where(device)} "
        f"R-MAT, {graph.num_vertices:,} vertices, {graph.num_edges:,} edges, {options.features} features, hidden {options.hidden}, "
        f"batches of {options.batch_size} seeds, {options.threads} threads that sample and as many that load where one device trains. Medians of "
        f"{options.rounds} turns of {options.measured} iterations.\n"
    )
    for model, sample in (each.split(":") for each in options.tasks):
        print(f"\n## {model}, fanouts {sample}\n")
        print(
            "| who trains | iteration, ms | seeds of the device | sampling, loading, ms | copies, ms | processor, device, ms | threads that sample, load, train |"
        )
        print("|:--|--:|--:|--:|--:|--:|--:|")
        with ExitStack() as stack:
            runs = [stack.enter_context(run) for run in _runs(model, sample, graph, device, options)]
            for run in runs:
                run.turn(options.settle)
            for run in runs * options.rounds:
                run.turn(options.measured)
            for run in runs:
                print(table_line(run.row()), flush=True)


def _runs(
    model: str, sample: str, graph: Graph, device: torch.device, options: argparse.Namespace
) -> Iterator[_Run]:
    config = TrainConfig(
        sample=tuple(map(int, sample.split(","))), batch_size=options.batch_size, sampling_threads=options.threads
    )

    def predictor(where: torch.device) -> Predictor:
        torch.manual_seed(0)
        module = build_model(
            ModelConfig(model=model, layers=len(config.sample or ()), hidden=options.hidden, dropout=0.0), graph
        )
        return Predictor(module, Contract.of(graph), device=where)

    host = torch.device("cpu")
    if options.host:
        yield _Run("the processor", predictor(host), graph, lambda *given: SampledEpochs(*given, config))
    yield _Run("the device", predictor(device), graph, lambda *given: SampledEpochs(*given, config))
    if device.type != "cuda":
        return
    for devices, sharing in ((str(device), "joint"), (f"host,{device}", "joint"), (f"host,{device}", "hyscale")):
        chosen = replace(config, devices=devices, sharing=sharing, sampling_threads=1)

        def source(*given: Any, chosen: TrainConfig = chosen) -> HybridEpochs:
            return HybridEpochs(*given, chosen)

        yield _Run(f"`--devices {devices}`, {sharing}", predictor(host), graph, source)


class _Run:
    """Iterations of one contestant."""

    def __init__(
        self, name: str, predictor: Predictor, graph: Graph, source_of: Callable[..., EpochSource]
    ) -> None:
        self._name, self._predictor = name, predictor
        # Evaluation is not measured, so the graph stays where samplers read it.
        prepared = predictor.prepare(graph)
        self._source = source_of(predictor, prepared)
        self._optimizer = torch.optim.Adam(predictor.model.parameters(), lr=1e-3)
        self._turns: list[float] = []
        self._work = TrainerWork(names=("host",))
        self._iterations = 1

    def __enter__(self) -> _Run:
        self._source.open()
        self._predictor.model.train()
        self._steps = (step for epoch in itertools.count(1) for step in self._source.steps(epoch))
        return self

    def __exit__(self, *error: object) -> None:
        self._steps.close()
        self._source.close()

    def turn(self, count: int) -> None:
        """Train so many iterations; the batches that were made ahead during the others' turns are not counted."""
        for step in itertools.islice(self._steps, 5):
            self._step(step)
        if isinstance(self._source, HybridEpochs):
            self._source.manager.begin()
        self._wait()
        since_s = time.perf_counter()
        for step in itertools.islice(self._steps, count):
            self._step(step)
        self._wait()
        self._turns.append((time.perf_counter() - since_s) / count)
        if isinstance(self._source, HybridEpochs):
            self._work, self._iterations = self._source.manager.work, count

    def row(self) -> list[str]:
        """The columns of the table; what trainers did is that of the last turn."""
        # The first turn compiled and settled.
        median_ms = 1e3 * statistics.median(self._turns[1:])
        row = [self._name, f"{median_ms:.1f}"]
        if not isinstance(self._source, HybridEpochs):
            return [*row, "", "", "", "", ""]
        work, threads = self._work, self._source.manager.assignment.threads
        each = 1e3 / self._iterations
        part = 1 - work.seeds.get("host", 0) / max(1, sum(work.seeds.values()))
        others = dict(work.train_s)
        trained = [others.pop("host", 0.0), sum(others.values())]
        return [
            *row,
            f"{part:.1%}",
            f"{work.sample_s * each:.1f}, {work.load_s * each:.1f}",
            f"{sum(work.transfer_s.values()) * each:.1f}",
            ", ".join(f"{seconds * each:.1f}" for seconds in trained),
            f"{threads.sample}, {threads.load}, {threads.train}",
        ]

    def _step(self, step: Any) -> None:
        self._optimizer.zero_grad()
        step.loss().backward()
        self._optimizer.step()

    def _wait(self) -> None:
        if torch.cuda.is_available():
            torch.cuda.synchronize()


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--vertices", type=float, default=2e6)
    parser.add_argument("--edges", type=float, default=40e6)
    parser.add_argument("--features", type=int, default=128)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--batch-size", type=int, default=4096)
    parser.add_argument("--threads", type=int, default=4, help="threads of each stage where one device trains")
    parser.add_argument(
        "--tasks", nargs="+", default=["sage:25,10", "gat:25,10", "sage:15,10,5"], help="models and fanouts"
    )
    parser.add_argument("--host", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--settle", type=int, default=40, help="iterations in which a policy settles")
    parser.add_argument("--measured", type=int, default=30, help="iterations of a turn")
    parser.add_argument("--rounds", type=int, default=3)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
