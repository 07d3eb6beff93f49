"""How a run begins: with seeds in proportion to cores, or with the shares that the performance model finds after a rehearsal.

``python -m bench.hybrid.begins`` has the trainers of :mod:`bench.hybrid`, on a smaller graph. Every run starts its own trainers, as a user's does, and
trains 60 iterations. A run has settled when the median of five iterations in a row is within 10% of the median of the last 30.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack

from bench.held_back import held_back
from bench.hybrid.__main__ import options_of
from bench.hybrid.trainers import ACCELERATOR, DEVICES, Bench, Run, bench_of, pid_of
from bench.result_tables import table_line
from sagann.plan.hybrid.assignment import HOST, Assignment
from sagann.plan.hybrid.predict import best_split, machine_here
from sagann.train.hybrid_epochs import HybridEpochs
from sagann.train.rehearsals import SHORT_S
from sagann.train.rehearsed_trainers import RehearsedTrainers

_ITERATIONS, _FIRST, _ROW = 60, 30, 5
"Iterations of a run, those of its beginning, and those in a row that say that it has settled."
_SMALLER = ("--vertices", "5e5", "--edges", "5e6", "--hidden", "256")


def main(arguments: Sequence[str] = ()) -> None:
    """Print the table."""
    options = options_of([*_SMALLER, *arguments])
    bench = bench_of(options, "How a run of two trainers begins", "bench.hybrid.begins")
    print(f"Medians of {options.rounds} rounds.\n")
    print(
        "| core of the accelerator | policy | begins with | rehearsal, s | processor's part at first | iterations until settled | "
        f"the first {_FIRST} iterations, s | an iteration after them, ms |\n|:--|:--|:--|--:|--:|--:|--:|--:|"
    )
    for quota in options.quotas:
        for policy in ("joint", "static"):
            rounds = [
                {
                    "cores": _run(bench, policy, quota, None),
                    "model": _run(bench, policy, quota, _rehearsed(bench, quota)),
                }
                for _ in range(options.rounds)
            ]
            for mapping in ("cores", "model"):
                columns = zip(*(each[mapping] for each in rounds), strict=True)
                rehearsal_s, part, settled, first_s, later_s = map(statistics.median, columns)
                print(
                    table_line(
                        [
                            f"{quota:g}",
                            policy,
                            mapping,
                            f"{rehearsal_s:.1f}",
                            f"{part:.0%}",
                            f"{settled:g}",
                            f"{first_s:.2f}",
                            f"{1e3 * later_s:.0f}",
                        ]
                    ),
                    flush=True,
                )


def _rehearsed(bench: Bench, quota: float) -> tuple[Assignment, float]:
    """The best assignment by a short rehearsal, and the seconds that it took with the start and the end of its trainers."""
    since_s = time.perf_counter()
    with bench.source(RehearsedTrainers, DEVICES, "static", quota, 16.0) as source:
        job = source.rehearse(bench.optimizer, longest_s=SHORT_S)
        total = source.manager.assignment.total
    found = best_split(machine_here("", 1, (ACCELERATOR,)), job, total=total, accelerators=(ACCELERATOR,))
    return found.assignment, time.perf_counter() - since_s


def _run(
    bench: Bench, policy: str, quota: float, begins: tuple[Assignment, float] | None
) -> tuple[float, float, float, float, float]:
    """Seconds of the rehearsal, the processor's part at first, iterations until settled, seconds of the first ones, and of one after them."""
    with bench.source(HybridEpochs, DEVICES, policy, 1.0, 16.0) as source, ExitStack() as stack:
        if begins is not None:
            source.manager.start_from(begins[0])
        first = source.manager.assignment
        if quota < 1:
            stack.enter_context(held_back(pid_of(source), quota))
        run = Run(source, bench.times)
        stack.callback(run.close)
        times = run(_ITERATIONS)
    later_s = statistics.median(times[_FIRST:])
    settled = next(at for at in range(_ITERATIONS) if statistics.median(times[at : at + _ROW]) <= 1.1 * later_s)
    return (
        0.0 if begins is None else begins[1],
        first.seeds[HOST] / first.total,
        settled,
        sum(times[:_FIRST]),
        later_s,
    )


if __name__ == "__main__":
    main(sys.argv[1:])
