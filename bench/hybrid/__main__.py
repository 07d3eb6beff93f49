"""Two trainers of unequal speed: what balancing finds, against the best static split; and what it costs.

``python -m bench.hybrid > bench/results/hybrid.md`` trains GraphSAGE by the processor on one core and by an accelerator in a process of its own on another
core, which has a part of that core's time. For every quota, and for every rate of the link with a whole core, policies begin with
equal shares. After ``--settle`` iterations, iterations are measured in turns with the best static split, which was found by search; all of that
``--rounds`` times, the policies by turns. The last table halves the accelerator's quota in the middle of an epoch.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from itertools import chain
from statistics import median

import torch

from bench.epochs.graphs import hubs_first
from bench.held_back import HELD_BACK, held_back
from bench.hybrid.runs import Run, predictor_of
from bench.pages import best_of, command_line, head, parser_of, ranged, row
from bench.timing import median_ratio
from sagann.hybrid.assignment import HOST
from sagann.hybrid.devices import on_cores
from sagann.runtime.processor import processor_name
from sagann.train import TrainConfig
from sagann.train.batch_epochs import SampledEpochs
from sagann.train.hybrid_epochs import HybridEpochs
from sagann.train.predictor import Predictor

DEVICES = "host:1,accelerator:1"
GRID = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
REFINED = (0.05, 0.025)
"Parts of the seeds that the processor trains: a grid, then steps around the best one."
COLUMNS = (
    "core of the accelerator, link | policy | processor's part of the seeds | iteration, ms | "
    "against the best static split | times as fast as the processor alone | of both speeds alone | "
    "decisions that moved something"
)
SLOWED_COLUMNS = (
    "policy | iterations until within 10% of its later median | the rest of the epoch, s | static over this"
)


def main(arguments: Sequence[str] | None = None) -> None:
    options = options_of(arguments)
    torch.set_num_threads(1)
    graph = hubs_first(options)
    predictor = predictor_of(graph, "sage", options.hidden)
    print(
        f"# Two trainers of unequal speed\n\n`{command_line('bench.hybrid', arguments)}`; {processor_name()}, a core for each trainer. "
        f"GraphSAGE, {options.hidden} wide, fanouts {options.sample}, batches of {options.batch_size} seeds; R-MAT, "
        f"{graph.num_vertices:,} vertices, {graph.num_edges:,} edges, {options.features} features.\n"
    )
    bench = Bench(predictor, predictor.prepare(graph), options)
    for text in chain(balanced(bench), slowed(bench)):
        print(text, flush=True)


class Bench:
    """The trainers of one model and graph: the processor on one core, and an accelerator in a process of its own."""

    def __init__(self, predictor: Predictor, prepared: object, options: argparse.Namespace) -> None:
        self._of, self.options = (predictor, prepared), options
        self._optimizer = torch.optim.SGD(predictor.model.parameters(), lr=1e-4)
        self._sampled = {"sample": tuple(map(int, options.sample.split(","))), "batch_size": options.batch_size}

    def alone_s(self) -> float:
        """Seconds of an iteration of one core of the processor alone, as a run without devices makes it."""
        first_core = sorted(os.sched_getaffinity(0))[:1]
        with (
            on_cores(first_core),
            Run(SampledEpochs(*self._of, TrainConfig(**self._sampled)), self._optimizer) as run,
        ):
            return median(run(self.options.measured)[5:])

    @contextmanager
    def running(self, devices: str, policy: str, quota: float, rate: float) -> Iterator[Run]:
        """Trainers that run, the accelerator on its core, after what is compiled and imported."""
        config = TrainConfig(**self._sampled, devices=devices, sharing=policy, link_rate=rate * 1e9)
        with Run(HybridEpochs(*self._of, config), self._optimizer) as run:
            run(5)
            with held_back(run.accelerator_pid, quota) if quota < 1 else nullcontext():
                yield run


def balanced(bench: Bench) -> Iterator[str]:
    """The table of policies after they have settled: each quota with the fastest link, and each link with the largest quota."""
    options = bench.options
    yield (
        f"Each number is the median of {options.rounds} rounds, in brackets the least and the largest; a round has medians of {options.measured} "
        "iterations, by turns with the best static split.\n"
    )
    yield head(COLUMNS, words=("policy",))
    machines = [(quota, options.rates[-1]) for quota in options.quotas]
    for quota, rate in machines + [(options.quotas[0], rate) for rate in options.rates[:-1]]:
        for cells in _settled(bench, quota, rate):
            yield row([f"{quota:g} core, {rate:g} GB/s", *cells])
    yield f"\nThe accelerator has its part of a core by {HELD_BACK}.\n"


def _settled(bench: Bench, quota: float, rate: float) -> Iterator[list[str]]:
    """Rows of the policies after they have settled, with one quota and one rate."""
    settle, measured = bench.options.settle, bench.options.measured
    rounds: dict[str, list[tuple[float, ...]]] = {"joint": [], "hyscale": []}
    best = None
    for _ in range(bench.options.rounds):
        alone_s = bench.alone_s()
        with bench.running("accelerator:1", "static", quota, rate) as run:
            accelerator_s = median(run(measured)[5:])
        # Seeds a second of both, each by itself.
        both_s = 1 / (1 / alone_s + 1 / accelerator_s)
        for policy, of_policy in rounds.items():
            with bench.running(DEVICES, policy, quota, rate) as run:
                run(settle)
                settled, moves = run.manager.assignment, run.moves
                part = settled.seeds[HOST] / settled.total
                # The best split does not depend on the policy.
                best = best or _best(bench, run, part)
                found: dict[str, list[float]] = {"settled": [], "best": []}
                for _ in range(3):
                    for name, fixed in (("settled", part), ("best", best)):
                        run.fix(fixed)
                        found[name] += run(measured // 3)[3:]
            median_s, ratio = median(found["settled"]), median_ratio(found["settled"], found["best"])
            of_policy.append((part, 1e3 * median_s, ratio, alone_s / median_s, both_s / median_s, moves))
    for policy, of_policy in rounds.items():
        part, *others = map(ranged, zip(*of_policy, strict=True), (".1%", ".0f", ".2f", ".2f", ".2f", ".0f"))
        yield [policy, f"{part}, best {best:.1%}", *others]


def _best(bench: Bench, run: Run, near: float) -> float:
    """The processor's part of the seeds that makes the shortest iteration."""

    def seconds(part: float) -> float:
        run.fix(part)
        return median(run(bench.options.searched)[3:])

    return best_of(seconds, (*GRID, near), REFINED)


def slowed(bench: Bench) -> Iterator[str]:
    """The table of the policies when the accelerator loses half of its core."""
    yield f"\n## A trainer that becomes half as fast\n\n{head(SLOWED_COLUMNS)}"
    static_s = 0.0
    for policy in ("static", "joint", "hyscale"):
        with bench.running(DEVICES, policy, 1.0, bench.options.rates[-1]) as run:
            run(bench.options.settle)
            with held_back(run.accelerator_pid, 0.5):
                times = run(2 * bench.options.measured)
        later = median(times[len(times) // 2 :])
        reached = next(at for at in range(len(times)) if median(times[at : at + 5]) <= 1.1 * later)
        static_s = static_s or sum(times)
        yield row([policy, reached, f"{sum(times):.2f}", f"{static_s / sum(times):.2f}"])


def options_of(arguments: Sequence[str] | None) -> argparse.Namespace:
    return parser_of(
        __doc__,
        {"vertices": 5e6, "edges": 5e7, "features": 128, "hidden": 512, "batch_size": 1024, "rounds": 3},
        sample=("15,10", "fanouts"),
        quotas=([1.0, 0.5, 0.25], "of a core, for the accelerator"),
        rates=([1.0, 4.0, 16.0], "of the link, in GB/s"),
        settle=(30, "iterations in which a policy settles"),
        measured=(36, "iterations that are measured"),
        searched=(10, "iterations for each split that is tried"),
    ).parse_args(arguments)


if __name__ == "__main__":
    main()
