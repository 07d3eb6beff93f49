"""Forecasts of iterations of two trainers, beside runs with the same split."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator

from bench.hybrid.trainers import ACCELERATOR, DEVICES, Bench, Run, named
from bench.result_tables import table_line
from sagann.plan.hybrid.assignment import HOST, Assignment, split_by
from sagann.plan.hybrid.predict import Prediction, best_split, machine_here, predict
from sagann.train.rehearsed_trainers import RehearsedTrainers

CLOSE = 0.1
"A forecast that is right within 10% does not tell trainers apart that differ by less."
BOTH = "both"
NAMES = {HOST: "processor", ACCELERATOR: "accelerator", BOTH: "both"}


def foretold(bench: Bench) -> Iterator[str]:
    """The table of forecasts beside runs with the same split: equal shares, from which a run begins, and the best split of the forecast."""
    yield (
        "\n## What the forecast says\n\nThe forecast of `sagann plan --devices host:1,accelerator:1`, from a rehearsal. Rehearsals and runs by turns; a "
        f"row has the medians of {bench.options.rounds} turns. The bottleneck is the trainer that is busy for the larger part of an iteration: in a run the processor "
        "by the CPU seconds of this process, the accelerator by the seconds until its answer. Where the forecast has less than "
        f"{CLOSE:.0%} between them, it names none.\n\n"
        "| core of the accelerator, link | processor's part of the seeds | forecast, ms | measured, ms | forecast / measured | bottleneck foretold | "
        "bottleneck measured | processor busy | accelerator busy |\n|:--|--:|--:|--:|--:|:--|:--|--:|--:|"
    )
    ratios, right = [], []
    for quota, rate in bench.machines():
        for row in _forecasts(bench, quota, rate):
            yield table_line([named(quota, rate), *row.cells()])
            ratios.append(row.ratio)
            if row.foretold != BOTH:
                right.append(row.foretold == row.measured)
    yield (
        f"\nForecasts are from {min(ratios):.2f} to {max(ratios):.2f} times the runs, {sum(abs(each - 1) <= CLOSE for each in ratios)} of "
        f"{len(ratios)} within {CLOSE:.0%}. Of the {len(right)} bottlenecks that are foretold, {sum(right)} are those of the run."
    )


def _forecasts(bench: Bench, quota: float, rate: float) -> list[Forecast]:
    machine, found = machine_here("", 1, (ACCELERATOR,)), list[Forecast]()
    with bench.source(RehearsedTrainers, DEVICES, "static", quota, rate) as source:
        run = Run(source, bench.times)
        for _ in range(bench.options.rounds):
            job = source.rehearse(bench.optimizer)
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
                times = run(bench.options.measured // 2)
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
