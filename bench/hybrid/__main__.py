"""Two trainers of unequal speed: what balancing finds, against the best static split; and what it costs.

``python -m bench.hybrid > bench/results/hybrid.md`` trains GraphSAGE by the processor on one core and by an accelerator in a process of its own on another
core, which has a part of that core's time. For every quota, and for every rate of the link with a whole core, policies begin with
equal shares. After ``--settle`` iterations, iterations are measured in turns with the best static split, which was found by search; all of that
``--rounds`` times, the policies by turns. The last table halves the accelerator's quota in the middle of an epoch.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from bench.held_back import held_back
from bench.hybrid.trainers import DEVICES, Bench, Run, bench_of, named
from bench.result_tables import table_line
from bench.timing import median_ratio
from sagann.hybrid.assignment import HOST

GRID = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
REFINED = (0.05, 0.025)
"Parts of the seeds that the processor trains: a grid, then steps around the best one."


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the tables."""
    options = options_of(arguments)
    bench = bench_of(options, "Two trainers of unequal speed", "bench.hybrid")
    for case in options.cases:
        for text in CASES[case](bench):
            print(text, flush=True)


def balanced(bench: Bench) -> Iterator[str]:
    """The table of policies after they have settled."""
    rounds, measured = bench.options.rounds, bench.options.measured
    yield (
        f"Each number is the median of {rounds} rounds, in brackets the least and the largest; a round has medians of {measured} iterations, by turns "
        "with the best static split.\n"
    )
    yield (
        "| core of the accelerator, link | policy | processor's part of the seeds | iteration, ms | against the best static split | times as fast as the "
        "processor alone | of both speeds alone | decisions that moved something |"
    )
    yield "|:--|:--|--:|--:|--:|--:|--:|--:|"
    for quota, rate in bench.machines():
        for row in _settled(bench, quota, rate):
            yield table_line([named(quota, rate), *row])
    yield "".join(f"\nThe accelerator's part of a core is {how}.\n" for how in bench.how_held_back)


def _settled(bench: Bench, quota: float, rate: float) -> Iterator[list[str]]:
    """Rows of the policies after they have settled, with one quota and one rate."""
    settle, measured = bench.options.settle, bench.options.measured
    rounds: dict[str, list[_Round]] = {"joint": [], "hyscale": []}
    best = None
    for _ in range(bench.options.rounds):
        alone_s = bench.alone_s()
        with bench.running("accelerator:1", "static", quota, rate) as run:
            accelerator_s = statistics.median(run(measured)[5:])
        # Seeds a second of both, each by itbench.
        both_s = 1 / (1 / alone_s + 1 / accelerator_s)
        for policy, of_policy in rounds.items():
            with bench.running(DEVICES, policy, quota, rate) as run:
                run(settle)
                settled, moves = run.source.manager.assignment, run.moves
                part = settled.seeds[HOST] / settled.total
                # The best split does not depend on the policy.
                best = best or _best(bench, run, part)
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


def _best(bench: Bench, run: Run, near: float) -> float:
    """The processor's part of the seeds that makes the shortest iteration."""

    def seconds(part: float) -> float:
        run.fix(part)
        return statistics.median(run(bench.options.searched)[3:])

    found = {part: seconds(part) for part in (*GRID, near)}
    for step in REFINED:
        best = min(found, key=found.__getitem__)
        for part in (best - step, best + step):
            if 0 < part < 1 and part not in found:
                found[part] = seconds(part)
    return min(found, key=found.__getitem__)


def slowed(bench: Bench) -> Iterator[str]:
    """The table of the policies when the accelerator loses half of its core."""
    yield (
        "\n## A trainer that becomes half as fast\n\n| policy | iterations until within 10% of its later median | the rest of the epoch, s | "
        "static over this |\n|:--|--:|--:|--:|"
    )
    static_s = 0.0
    for policy in ("static", "joint", "hyscale"):
        with bench.running(DEVICES, policy, 1.0, bench.options.rates[-1]) as run:
            run(bench.options.settle)
            with held_back(run.pid, 0.5):
                times = run(2 * bench.options.measured)
        later = statistics.median(times[len(times) // 2 :])
        reached = next(at for at in range(len(times)) if statistics.median(times[at : at + 5]) <= 1.1 * later)
        static_s = static_s or sum(times)
        yield table_line([policy, str(reached), f"{sum(times):.2f}", f"{static_s / sum(times):.2f}"])


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


CASES = {"policies": balanced, "slowed": slowed}
"What makes the lines of each table."


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
    parser.add_argument("--rounds", type=int, default=3, help="turns of the policies")
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES), help="tables, all by default")
    parser.add_argument("--searched", type=int, default=10, help="iterations for each split that is tried")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
