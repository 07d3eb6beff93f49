"""Two trainers of unequal speed: what balancing finds, against the best static split; and what it costs.

``python -m bench.hybrid > bench/results/hybrid.md`` trains GraphSAGE by the processor on one core and by an accelerator in a process of its own on another
core, which has a part of that core's time. For every quota, and for every rate of the link with a whole core, policies begin with
equal shares. After ``--settle`` iterations, iterations are measured in turns with the best static split, which was found by search; all of that
``--rounds`` times, the policies by turns. The next table
is about the forecast that ``sagann plan --devices`` makes from a rehearsal: its seconds and its bottleneck, beside those of a run with the same split.
Then the accelerator's quota is halved in the middle of an epoch, and the last table says where the processor's core is busy.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

import torch

from bench.held_back import held_back
from bench.hybrid.profile import REST, TASKS, core_seconds
from bench.power_law import power_law
from bench.result_tables import table_line
from bench.timing import median_ratio
from sagann.hybrid.host_cores import on_cores
from sagann.hybrid.process_trainer import ProcessTrainer
from sagann.nn import ModelConfig, build_model
from sagann.plan.hybrid.assignment import HOST, Assignment, split_by
from sagann.plan.hybrid.predict import Prediction, best_split, machine_here, predict
from sagann.runtime.processor import processor_name
from sagann.train import TrainConfig
from sagann.train.contract import Contract
from sagann.train.epoch_source import EpochSource
from sagann.train.hybrid_epochs import HybridEpochs
from sagann.train.predictor import Predictor
from sagann.train.preparation import PreparedGraph
from sagann.train.rehearsed_trainers import RehearsedTrainers
from sagann.train.sampled_epochs import SampledEpochs

ACCELERATOR = "accelerator0"
DEVICES = "host:1,accelerator:1"
CLOSE = 0.1
"A forecast that is right within 10% does not tell trainers apart that differ by less."
BOTH = "both"
NAMES = {HOST: "processor", ACCELERATOR: "accelerator", BOTH: "both"}
GRID = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
ITERATION = "an iteration, from one to the next"
REFINED = (0.05, 0.025)
"Parts of the seeds that the processor trains: a grid, then steps around the best one."

Source = TypeVar("Source", bound=HybridEpochs)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the tables."""
    options = options_of(arguments)
    bench = bench_of(options, "Two trainers of unequal speed", "bench.hybrid")
    for case in options.cases:
        for text in CASES[case](bench):
            print(text, flush=True)


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
        self._predictor, self._prepared, self._options = predictor, prepared, options
        self._held_back = dict[str, None]()
        "How accelerators were held back, in words."
        self.optimizer = torch.optim.SGD(predictor.model.parameters(), lr=1e-4)
        self._config = TrainConfig(
            sample=tuple(map(int, options.sample.split(","))), batch_size=options.batch_size, sharing="joint"
        )

    def balanced(self) -> Iterator[str]:
        """The table of policies after they have settled."""
        rounds, measured = self._options.rounds, self._options.measured
        yield (
            f"Each number is the median of {rounds} rounds, in brackets the least and the largest; a round has medians of {measured} iterations, by turns "
            "with the best static split.\n"
        )
        yield (
            "| core of the accelerator, link | policy | processor's part of the seeds | iteration, ms | against the best static split | times as fast as the "
            "processor alone | of both speeds alone | decisions that moved something |"
        )
        yield "|:--|:--|--:|--:|--:|--:|--:|--:|"
        for quota, rate in self._machines():
            for row in self._settled(quota, rate):
                yield table_line([_named(quota, rate), *row])
        yield "".join(f"\nThe accelerator's part of a core is {how}.\n" for how in self._held_back)

    def foretold(self) -> Iterator[str]:
        """The table of forecasts beside runs with the same split: equal shares, from which a run begins, and the best split of the forecast."""
        yield (
            "\n## What the forecast says\n\nThe forecast of `sagann plan --devices host:1,accelerator:1`, from a rehearsal. Rehearsals and runs by turns; a "
            f"row has the medians of {self._options.rounds} turns. The bottleneck is the trainer that is busy for the larger part of an iteration: in a run the processor "
            "by the CPU seconds of this process, the accelerator by the seconds until its answer. Where the forecast has less than "
            f"{CLOSE:.0%} between them, it names none.\n\n"
            "| core of the accelerator, link | processor's part of the seeds | forecast, ms | measured, ms | forecast / measured | bottleneck foretold | "
            "bottleneck measured | processor busy | accelerator busy |\n|:--|--:|--:|--:|--:|:--|:--|--:|--:|"
        )
        ratios, right = [], []
        for quota, rate in self._machines():
            for row in self._forecasts(quota, rate):
                yield table_line([_named(quota, rate), *row.cells()])
                ratios.append(row.ratio)
                if row.foretold != BOTH:
                    right.append(row.foretold == row.measured)
        yield (
            f"\nForecasts are from {min(ratios):.2f} to {max(ratios):.2f} times the runs, {sum(abs(each - 1) <= CLOSE for each in ratios)} of "
            f"{len(ratios)} within {CLOSE:.0%}. Of the {len(right)} bottlenecks that are foretold, {sum(right)} are those of the run."
        )

    def _forecasts(self, quota: float, rate: float) -> list[Forecast]:
        machine, found = machine_here("", 1, (ACCELERATOR,)), list[Forecast]()
        with self.source(RehearsedTrainers, DEVICES, "static", quota, rate) as source:
            run = Run(source, self.times, pid_of(source))
            for _ in range(self._options.rounds):
                job = source.rehearse(self.optimizer)
                if not found:
                    total, threads = source.manager.assignment.total, source.manager.assignment.threads
                    even = Assignment(seeds=split_by(total, {HOST: 1.0, ACCELERATOR: 1.0}), threads=threads)
                    best = best_split(machine, job, total=total, accelerators=(ACCELERATOR,))
                    found = [Forecast(even), Forecast(best.assignment)]
                for each in found:
                    run.start_from(each.assignment)
                    # What was made ahead has other shares.
                    run(5)
                    source.manager.begin()
                    since_s = time.process_time()
                    times = run(self._options.measured // 2)
                    busy = {
                        HOST: time.process_time() - since_s,
                        ACCELERATOR: source.manager.work.train_s[ACCELERATOR],
                    }
                    each.add(
                        predict(machine, job, each.assignment),
                        statistics.median(times),
                        {name: seconds / sum(times) for name, seconds in busy.items()},
                    )
            run.close()
        return found

    def _machines(self) -> list[tuple[float, float]]:
        """Each quota with the fastest link, and each link with the largest quota."""
        options = self._options
        pairs = [(quota, options.rates[-1]) for quota in options.quotas]
        return pairs + [(options.quotas[0], rate) for rate in options.rates[:-1]]

    def _settled(self, quota: float, rate: float) -> Iterator[list[str]]:
        """Rows of the policies after they have settled, with one quota and one rate."""
        settle, measured = self._options.settle, self._options.measured
        rounds: dict[str, list[_Round]] = {"joint": [], "hyscale": []}
        best = None
        for _ in range(self._options.rounds):
            alone_s = self._alone_s()
            with self._running("accelerator:1", "static", quota, rate) as run:
                accelerator_s = statistics.median(run(measured)[5:])
            # Seeds a second of both, each by itself.
            both_s = 1 / (1 / alone_s + 1 / accelerator_s)
            for policy, of_policy in rounds.items():
                with self._running(DEVICES, policy, quota, rate) as run:
                    run(settle)
                    settled, moves = run.source.manager.assignment, run.moves
                    part = settled.seeds[HOST] / settled.total
                    # The best split does not depend on the policy.
                    best = best or self._best(run, part)
                    found: dict[str, list[float]] = {"settled": [], "best": []}
                    for _ in range(3):
                        for name, fixed in (("settled", part), ("best", best)):
                            run.fix(fixed)
                            found[name] += run(measured // 3)[3:]
                median_s, ratio = statistics.median(found["settled"]), median_ratio(found["settled"], found["best"])
                of_policy.append(_Round(part, median_s, ratio, alone_s / median_s, both_s / median_s, moves))
        for policy, of_policy in rounds.items():
            columns = _Round(*zip(*of_policy, strict=True))
            yield [
                policy,
                f"{_ranged(columns.part, '.1%')}, best {best:.1%}",
                _ranged([1e3 * seconds for seconds in columns.iteration_s], ".0f"),
                *(_ranged(column, ".2f") for column in columns[2:5]),
                _ranged(columns.moves, ".0f"),
            ]

    def profiled(self) -> Iterator[str]:
        """The table of CPU seconds of the processor's core by task, alone, beside an accelerator that trains all seeds, and with equal shares."""
        yield "\n## Where the processor's core is busy\n\nCPU seconds of an iteration, in milliseconds.\n"
        count = self._options.measured
        columns: dict[str, dict[str, float]] = {}
        with core_seconds() as counted:

            def column(name: str, source: EpochSource, steps: Iterator[Any] | None = None) -> None:
                steps = steps or _endless(source)
                self.times(source, 5, steps)
                counted.clear()
                times = self.times(source, count, steps)
                columns[name] = {task: seconds / count for task, seconds in counted.by_task().items()}
                columns[name][ITERATION] = statistics.fmean(times)

            with on_cores(_first_core()):
                column("the processor alone", SampledEpochs(self._predictor, self._prepared, self._config))
            for name, devices in (
                ("the accelerator alone", "accelerator:1"),
                ("both, equal shares", DEVICES),
            ):
                with self._running(devices, "static", 1.0, self._options.rates[-1]) as run:
                    column(name, run.source, run.steps)
        yield f"| | {' | '.join(columns)} |"
        yield f"|:--|{'--:|' * len(columns)}"
        tasks = dict.fromkeys([*(task for task, *_ in TASKS), REST, ITERATION])
        for task in tasks:
            cells = [f"{found[task] * 1e3:.1f}" if task in found else "" for found in columns.values()]
            yield f"| {task} | {' | '.join(cells)} |"

    def _alone_s(self) -> float:
        """Seconds of an iteration of one core of the processor alone, as a run without devices makes it."""
        source = SampledEpochs(self._predictor, self._prepared, self._config)
        with on_cores(_first_core()):
            return statistics.median(self.times(source, self._options.measured)[5:])

    def slowed(self) -> Iterator[str]:
        """The table of the policies when the accelerator loses half of its core."""
        yield (
            "\n## A trainer that becomes half as fast\n\n| policy | iterations until within 10% of its later median | the rest of the epoch, s | "
            "static over this |\n|:--|--:|--:|--:|"
        )
        static_s = 0.0
        for policy in ("static", "joint", "hyscale"):
            with self._running(DEVICES, policy, 1.0, self._options.rates[-1]) as run:
                run(self._options.settle)
                with held_back(run.pid, 0.5):
                    times = run(2 * self._options.measured)
            later = statistics.median(times[len(times) // 2 :])
            reached = next(at for at in range(len(times)) if statistics.median(times[at : at + 5]) <= 1.1 * later)
            static_s = static_s or sum(times)
            yield table_line([policy, str(reached), f"{sum(times):.2f}", f"{static_s / sum(times):.2f}"])

    def _best(self, run: Run, near: float) -> float:
        """The processor's part of the seeds that makes the shortest iteration."""

        def seconds(part: float) -> float:
            run.fix(part)
            return statistics.median(run(self._options.searched)[3:])

        found = {part: seconds(part) for part in (*GRID, near)}
        for step in REFINED:
            best = min(found, key=found.__getitem__)
            for part in (best - step, best + step):
                if 0 < part < 1 and part not in found:
                    found[part] = seconds(part)
        return min(found, key=found.__getitem__)

    @contextmanager
    def _running(self, devices: str, policy: str, quota: float, rate: float) -> Iterator[Run]:
        with self.source(HybridEpochs, devices, policy, 1.0, rate) as source, ExitStack() as stack:
            run = Run(source, self.times, pid_of(source))
            stack.callback(run.close)
            # What is compiled and imported.
            run(5)
            if quota < 1:
                self._held_back[stack.enter_context(held_back(run.pid, quota))] = None
            yield run

    @contextmanager
    def source(self, kind: type[Source], devices: str, policy: str, quota: float, rate: float) -> Iterator[Source]:
        """Trainers that have started, the accelerator on its core."""
        config = replace(self._config, devices=devices, sharing=policy, link_rate=rate * 1e9)
        source = kind(self._predictor, self._prepared, config)
        with ExitStack() as stack:
            stack.callback(source.close)
            source.open()
            if quota < 1:
                stack.enter_context(held_back(pid_of(source), quota))
            yield source

    def times(self, source: EpochSource, count: int, first: Iterator[Any] | None = None) -> list[float]:
        """Seconds of iterations, from one to the next."""
        steps, times = first or _endless(source), []
        since_s = time.perf_counter()
        for step in itertools.islice(steps, count):
            self.optimizer.zero_grad()
            step.loss().backward()
            self.optimizer.step()
            now_s = time.perf_counter()
            times.append(now_s - since_s)
            since_s = now_s
        return times


class _Round(NamedTuple):
    """What a policy found in a round, and how long its iterations take."""

    part: Any
    "The processor's part of the seeds."
    iteration_s: Any
    "Seconds of an iteration."
    against_best: Any
    "Over those of the best static split."
    against_alone: Any
    "Those of the processor alone over that."
    of_both: Any
    "Speed over the sum of both speeds alone."
    moves: Any
    "Number of decisions that moved something until then."


def _ranged(values: Sequence[float], form: str) -> str:
    """The median with the least and the largest value."""
    return f"{statistics.median(values):{form}} ({min(values):{form}} to {max(values):{form}})"


def _first_core() -> list[int]:
    """The core that the processor's tasks keep to beside an accelerator."""
    return sorted(os.sched_getaffinity(0))[:1]


CASES = {"policies": Bench.balanced, "forecast": Bench.foretold, "slowed": Bench.slowed, "cores": Bench.profiled}
"What makes the lines of each table."


class Forecast:
    """Forecasts of an iteration with one split, and runs with it, by turns."""

    def __init__(self, assignment: Assignment) -> None:
        self.assignment = assignment
        self._turns: list[tuple[Prediction, float, dict[str, float]]] = []

    def add(self, prediction: Prediction, measured_s: float, busy: dict[str, float]) -> None:
        """A turn: what was foretold, the seconds of an iteration, and the part of them for which each trainer was busy."""
        self._turns.append((prediction, measured_s, busy))

    @property
    def foretold_s(self) -> float:
        """Seconds of an iteration by the forecasts."""
        return statistics.median(each.iteration_s for each, _, _ in self._turns)

    @property
    def measured_s(self) -> float:
        """Seconds of an iteration of the runs."""
        return statistics.median(each for _, each, _ in self._turns)

    @property
    def ratio(self) -> float:
        """Seconds that were foretold over those of the run."""
        return self.foretold_s / self.measured_s

    @property
    def foretold(self) -> str:
        """The trainer that is the bottleneck by the forecasts."""
        host_s = statistics.median(each.times.host_train for each, _, _ in self._turns)
        accelerator_s = statistics.median(each.times.accelerator for each, _, _ in self._turns)
        if abs(host_s - accelerator_s) <= CLOSE * max(host_s, accelerator_s):
            return BOTH
        return HOST if host_s > accelerator_s else ACCELERATOR

    def busy(self, name: str) -> float:
        """The part of an iteration for which a trainer was busy."""
        return statistics.median(busy[name] for _, _, busy in self._turns)

    @property
    def measured(self) -> str:
        """The trainer that is the bottleneck of the run."""
        return max((HOST, ACCELERATOR), key=self.busy)

    def cells(self) -> list[str]:
        """The columns of the table."""
        ratios = [prediction.iteration_s / measured_s for prediction, measured_s, _ in self._turns]
        return [
            f"{self.assignment.seeds[HOST] / self.assignment.total:.1%}",
            f"{self.foretold_s * 1e3:.1f}",
            f"{self.measured_s * 1e3:.1f}",
            f"{self.ratio:.2f} ({min(ratios):.2f} to {max(ratios):.2f})",
            NAMES[self.foretold],
            NAMES[self.measured],
            f"{self.busy(HOST):.0%}",
            f"{self.busy(ACCELERATOR):.0%}",
        ]


class Run:
    """Trainers that run; a call trains a number of iterations, and gives the seconds of each."""

    def __init__(self, source: HybridEpochs, times: Callable[..., list[float]], pid: int) -> None:
        self.source, self.pid = source, pid
        self.moves = 0
        self._times, self.steps = times, _endless(source)

    def __call__(self, count: int) -> list[float]:
        found = self._times(self.source, count, self.steps)
        self.moves += self.source.manager.num_moves
        self.source.manager.num_moves = 0
        return found

    def fix(self, part: float) -> None:
        """Have the processor train a part of the seeds from now on."""
        now = self.source.manager.assignment
        host = min(max(round(part * now.total), 1), now.total - 1)
        self.start_from(replace(now, seeds={HOST: host, ACCELERATOR: now.total - host}))

    def start_from(self, assignment: Assignment) -> None:
        """Have the trainers keep an assignment from now on."""
        self.source.manager.start_from(assignment, "static")

    def close(self) -> None:
        self.steps.close()


def pid_of(source: HybridEpochs) -> int:
    trainer = source.trainers[ACCELERATOR]
    assert isinstance(trainer, ProcessTrainer)
    return trainer.pid


def _named(quota: float, rate: float) -> str:
    return f"{quota:g} core, {rate:g} GB/s"


def _endless(source: EpochSource) -> Any:
    for epoch in itertools.count(1):
        yield from source.steps(epoch)


def options_of(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vertices", type=float, default=5e6)
    parser.add_argument("--edges", type=float, default=5e7)
    parser.add_argument("--features", type=int, default=128)
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--sample", default="15,10", help="fanouts")
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument(
        "--quotas", type=float, nargs="+", default=[1.0, 0.5, 0.25], help="of a core, for the accelerator"
    )
    parser.add_argument("--rates", type=float, nargs="+", default=[1.0, 4.0, 16.0], help="of the link, in GB/s")
    parser.add_argument("--settle", type=int, default=30, help="iterations in which a policy settles")
    parser.add_argument("--measured", type=int, default=36, help="iterations that are measured")
    parser.add_argument("--rounds", type=int, default=3, help="turns of the policies, and of rehearsals and runs")
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES), help="tables, all by default")
    parser.add_argument("--searched", type=int, default=10, help="iterations for each split that is tried")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
