"""HyScale-GNN by simulation, beside its paper: ``python -m bench.hyscale``.

Prints Markdown: Table VI's epochs on two EPYC 7763 and four U250 with the error of each, what every refinement of the equations changes,
figure 11's steps, and 1 to 16 accelerators (figure 9). Nothing is trained; machines are those of
``sagann/machines``, and batches have the sizes expected by degree laws.

Graphs and layers have the sizes of Table III, and training vertices come from the Open Graph Benchmark. The paper states no degrees, so they follow a
log-normal law: a hundredth of ogbn-papers100M's vertices has 32% of the edges (Data Tiering 2021, Sec. 5.2). For ogbn-products the part is that of
AmazonComputers, another graph of products bought together.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace
from functools import cache, partial
from itertools import permutations, product
from statistics import geometric_mean
from typing import NamedTuple

from bench.hyscale.batches import DegreeLaw, expected_counts, log_normal_law
from bench.pages import command_line, head, parser_of, row
from sagann.hybrid.assignment import HOST, Assignment, split_evenly
from sagann.hybrid.forecast import (
    AS_PRINTED,
    Job,
    Prediction,
    Refinements,
    Widths,
    accelerator_names,
    best_split,
    with_accelerators,
)
from sagann.machines import published_machine
from sagann.plan.machine import Machine

SAMPLED_EDGES_PER_S = 1e7
"Edges that a thread samples per second: an assumption, since the paper measures it and does not print it."
SEEDS = 1024
"Seeds of a mini-batch on each accelerator (Sec. VI-A2)."
ALL = Refinements()


class Dataset(NamedTuple):
    law: DegreeLaw
    num_train: int
    features: int
    classes: int


DATASETS = {
    # Undirected: its 61,859,140 edges count twice.
    "ogbn-products": Dataset(
        log_normal_law(num_vertices=2_449_029, mean=2 * 61_859_140 / 2_449_029, top_share=0.14, symmetric=True),
        num_train=196_615,
        features=100,
        classes=47,
    ),
    "ogbn-papers100M": Dataset(
        log_normal_law(num_vertices=111_059_956, mean=1_615_685_872 / 111_059_956, top_share=0.32, symmetric=False),
        num_train=1_207_179,
        features=128,
        classes=172,
    ),
}


class Case(NamedTuple):
    rival: str
    "System whose sample and width are taken."
    dataset: str
    model: str
    fanouts: tuple[int, ...]
    "Sample size (Table V), taken as nearest the seeds first."
    hidden: int
    paper_s: float
    "Seconds of an epoch of HyScale-GNN (Table VI)."

    def job(self, machine: Machine, refinements: Refinements = ALL, *, deduplicated: bool = True) -> Job:
        """What is trained, on a machine; without ``deduplicated`` a vertex counts for every edge that reaches it."""
        dataset = DATASETS[self.dataset]
        hidden = [self.hidden] * (len(self.fanouts) - 1)
        return Job(
            machine=machine,
            counts=cache(partial(expected_counts, dataset.law, self.fanouts, deduplicated=deduplicated)),
            num_train=dataset.num_train,
            widths=Widths(features=(dataset.features, *hidden, dataset.classes), concatenates=self.model == "SAGE"),
            sampled_edges_per_s=SAMPLED_EDGES_PER_S,
            refinements=refinements,
        )


CASES = [
    Case(rival, dataset, model, fanouts, hidden, paper_s)
    for rival, fanouts, hidden, seconds in (
        ("PaGraph", (25, 10), 256, (0.27, 0.49, 0.58, 1.91)),
        ("P3", (25, 10), 32, (0.27, 0.28, 0.57, 0.59)),
        ("DistDGLv2", (15, 10, 5), 256, (None, 1.69, None, 3.67)),
    )
    for (dataset, model), paper_s in zip(product(DATASETS, ("GCN", "SAGE")), seconds, strict=True)
    if paper_s is not None
]
"The ten epochs of Table VI, rows 'This Work'."
FIGURE_11 = CASES[:4]
"The cases of figures 9 and 11: two layers of width 256, as in Sec. VI-A2."

MACHINE = "epyc-7763-u250"
NUM_ACCELERATORS = 4
CLOSE, FAR = 0.25, 0.40
COUNTS = (1, 2, 4, 8, 12, 16)
"Numbers of accelerators of figure 9."
EPOCH_COLUMNS = "as | dataset | model | sample | hidden | paper s | simulated s | error | host seeds | bottleneck"
EFFECT_COLUMNS = "equations | seconds, times | within 25% | within 40%"
STEP_COLUMNS = "dataset | model | offload s | hybrid | + management | + two stages"
STEPS = ("hybrid", "management", "two stages")
SCALE_COLUMNS = ("dataset", "model", *(f"{count}" for count in COUNTS), "stopped at 16 by")


def main(given: Sequence[str] | None = None) -> int:
    parser_of(__doc__, {}).parse_args(given)
    machine = published_machine(MACHINE)
    print("# HyScale-GNN by simulation\n")
    print(f"`{command_line('bench.hyscale', given)}`; rates of {machine.name}.\n")
    for section in (epochs, _effects, _steps, _scale):
        print("\n".join(section(machine)), end="\n\n")
    return 0


def epoch_of(
    machine: Machine, case: Case, refinements: Refinements = ALL, *, deduplicated: bool = True
) -> Prediction:
    """An epoch of HyScale-GNN: hybrid, with two stages of prefetch, and the split that management finds."""
    return _best(case.job(machine, refinements, deduplicated=deduplicated), NUM_ACCELERATORS)


def error_of(prediction: Prediction, case: Case) -> float:
    return prediction.epoch_s / case.paper_s - 1


def epochs(machine: Machine) -> Iterator[str]:
    """The section of Table VI."""
    found = [(case, epoch_of(machine, case)) for case in CASES]
    errors = [abs(error_of(prediction, case)) for case, prediction in found]
    yield "## Epochs of Table VI\n"
    yield (
        f"- {sum(each <= CLOSE for each in errors)} of {len(errors)} within {CLOSE:.0%}, "
        f"{sum(each <= FAR for each in errors)} within {FAR:.0%}; the largest error is {max(errors):.0%}."
    )
    yield ""
    yield head(EPOCH_COLUMNS, words=("dataset", "model", "sample", "hidden"))
    for case, prediction in found:
        share = prediction.assignment.seeds[HOST] / prediction.assignment.total
        cells = [case.rival, case.dataset, case.model, f"({', '.join(map(str, case.fanouts))})", case.hidden]
        cells += [f"{case.paper_s:.2f}", f"{prediction.epoch_s:.2f}", f"{error_of(prediction, case):+.0%}"]
        yield row([*cells, f"{share:.0%}", prediction.times.bottleneck])


def _effects(machine: Machine) -> Iterator[str]:
    yield "## What the equations leave out\n"
    yield "Each refinement is left out alone; seconds are over those with all of them, in the geometric mean of the ten epochs.\n"
    yield head(EFFECT_COLUMNS)
    variants = {"all refinements": (ALL, True), "without deduplication": (ALL, False)}
    variants |= {f"without {each.name}": (replace(ALL, **{each.name: False}), True) for each in fields(Refinements)}
    variants["as printed"] = (AS_PRINTED, False)
    base = [epoch_of(machine, case).epoch_s for case in CASES]
    for name, (refinements, deduplicated) in variants.items():
        found = [epoch_of(machine, case, refinements, deduplicated=deduplicated) for case in CASES]
        errors = [abs(error_of(each, case)) for each, case in zip(found, CASES, strict=True)]
        times = geometric_mean([each.epoch_s / seconds for each, seconds in zip(found, base, strict=True)])
        within = [str(sum(error <= limit for error in errors)) for limit in (CLOSE, FAR)]
        yield row([name, f"{times:.2f}", *within])


def steps_of(machine: Machine, case: Case, refinements: Refinements = ALL) -> Mapping[str, float]:
    """Seconds of an epoch of figure 11's designs, from the baseline on.

    The baseline trains on accelerators alone, with one stage of prefetch. Static hybrid training has the split that the equations as
    printed ask for. Management is taken to find the best split, which is searched.
    """
    total, names = SEEDS * NUM_ACCELERATORS, accelerator_names(NUM_ACCELERATORS)
    job = case.job(machine, refinements)
    alone = best_split(job, total=total, accelerators=names, uses_host=False).assignment
    static = best_split(case.job(machine, AS_PRINTED), total=total, accelerators=names).assignment
    # A search that begins with few seeds on the processor finds splits where it should hardly train.
    few = _with_host(alone, SEEDS // 16)
    managed, prefetched = (
        min((searched(job, each, stages) for each in (static, few)), key=lambda split: pace_s(job, split, stages))
        for stages in (1, 2)
    )
    splits = {
        "offload": (searched(job, alone, 1), 1),
        "hybrid": (static, 1),
        "management": (managed, 1),
        "two stages": (prefetched, 2),
    }
    num_iterations = -(-job.num_train // total)
    return {name: num_iterations * pace_s(job, split, stages) for name, (split, stages) in splits.items()}


def pace_s(job: Job, assignment: Assignment, stages: int) -> float:
    """Seconds of the slowest stage; with one stage of prefetch, loading and copying are one."""
    times = job.times(assignment)
    fetched_s = times.load + max(times.transfer.values()) if stages == 1 else 0.0
    trained_s = max(times.train.values()) + job.synchronise_s(list(job.counts_of(assignment)))
    return max(times.slowest, trained_s, fetched_s)


def searched(job: Job, start: Assignment, stages: int) -> Assignment:
    """The split at which no move of seeds or of threads is faster, from a given one; accelerators share their seeds equally.

    A processor without seeds gets none.
    """

    def moved(split: Assignment) -> Iterator[Assignment]:
        for step in (256, 64, 16, 4):
            for seeds in (split.seeds[HOST] - step, split.seeds[HOST] + step):
                if start.seeds[HOST] and 0 < seeds < split.total:
                    yield _with_host(split, seeds)
            for giver, taker in permutations(("sample", "load", "train"), 2):
                given, taken = getattr(split.threads, giver), getattr(split.threads, taker)
                count = min(max(1, step // 8), given - 1)
                yield replace(split, threads=replace(split.threads, **{giver: given - count, taker: taken + count}))

    best, best_s = start, pace_s(job, start, stages)
    while True:
        found = min(moved(best), key=lambda each: pace_s(job, each, stages))
        found_s = pace_s(job, found, stages)
        if found_s >= best_s * (1 - 1e-6):
            return best
        best, best_s = found, found_s


def _with_host(split: Assignment, seeds: int) -> Assignment:
    others = split_evenly(split.total - seeds, len(split.accelerators))
    return replace(split, seeds={HOST: seeds, **dict(zip(split.accelerators, others, strict=True))})


def _steps(machine: Machine) -> Iterator[str]:
    found = [(case, steps_of(machine, case)) for case in FIGURE_11]
    yield "## Steps of figure 11\n"
    yield (
        "Times as fast as offloading. The paper states up to 1.13 for hybrid training, 1.33 with management, 1.79 with two stages. Static "
        "training has the split of the equations as printed; management is taken to find the best split, which is searched.\n"
    )
    printed = [(case, steps_of(machine, case, AS_PRINTED)) for case in FIGURE_11]
    for named, each in (("Here", found), ("By the equations as printed, with vertices that count once,", printed)):
        most = {name: max(steps["offload"] / steps[name] for _, steps in each) for name in STEPS}
        yield f"- {named} up to {', '.join(f'{most[name]:.2f} ({name})' for name in STEPS)}."
    yield ""
    yield head(STEP_COLUMNS, words=("model",))
    for case, steps in found:
        speeds = [f"{steps['offload'] / steps[name]:.2f}" for name in STEPS]
        yield row([case.dataset, case.model, f"{steps['offload']:.2f}", *speeds])


def _scale(machine: Machine) -> Iterator[str]:
    yield "## Accelerators of figure 9\n"
    yield f"Times as fast as one accelerator with the processor; {SEEDS} seeds for each accelerator.\n"
    yield head(SCALE_COLUMNS, words=("model",))
    for case in FIGURE_11:
        found = [_best(case.job(with_accelerators(machine, count)), count) for count in COUNTS]
        speeds = [f"{found[0].epoch_s / each.epoch_s:.2f}" for each in found]
        yield row([case.dataset, case.model, *speeds, found[-1].times.bottleneck])


def _best(job: Job, count: int) -> Prediction:
    return best_split(job, total=SEEDS * count, accelerators=accelerator_names(count))


if __name__ == "__main__":
    raise SystemExit(main())
