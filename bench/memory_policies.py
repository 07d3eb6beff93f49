"""Bytes that a streamed epoch moves, and its simulated seconds, by memory policy: ``python -m bench.memory_policies``.

Prints Markdown. Models and shapes are ROC's, and three models more. Only plans are made, of the shapes alone: no graph exists, every
chunk has equally many edges, and no epoch runs. All policies place the same steps within the same budget.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import NamedTuple

import torch

from bench.epochs.graphs import Shape
from bench.pages import command_line, head, parser_of, row
from bench.papers.rivals import place_recent, place_uncached
from sagann.compiler.model_program import ModelProgram
from sagann.graph import Graph, Topology
from sagann.nn import MODELS, ModelConfig, build_model
from sagann.plan.dynamic_program import place_by_program
from sagann.plan.epoch import PlacementPolicy, Planned, plan_epoch, replaced
from sagann.plan.gaps import gaps_of, prices_of
from sagann.plan.gradients import Gradients
from sagann.plan.hops import EdgesOfType, HopSize, gathered_hops, read_data, topology_of
from sagann.plan.intervals import PartIntervals, equal_vertices
from sagann.plan.machine import Machine
from sagann.plan.residency import BudgetError, place
from sagann.plan.simulate import simulate
from sagann.plan.steps import FILES, UNLIMITED, Plan, Step
from sagann.plan.work import StepWork
from sagann.runtime.streaming.capturing import captured
from sagann.saga.layer import count_hops

POLICIES: Mapping[str, PlacementPolicy] = {
    "none": place_uncached,
    "lru": place_recent,
    "belady": place,
    "dp": place_by_program,
}
"Rivals, the default and the dynamic program."
SHARES = {"1/4": 0.25, "1/2": 0.5, "3/4": 0.75}
"Budgets, as parts of what the plan of P = 1 takes."
DEEP_LAYERS = 8
COLUMNS = f"dataset | model | P | budget | {' MB | '.join(POLICIES)} MB | least MB | compulsory MB | {' s | '.join(POLICIES)} s | fastest"
NOTES = f"""
2 layers ({DEEP_LAYERS} for residual-gcn) of width {{hidden}}, loss folded, column order. The shapes are those of ROC, Table 4, whole; every chunk has
equally many edges. P is the least power of two, from the given one, with which the least budget can be met. Bytes are *loaded + stored*, in
10^6 bytes. *least* is a lower bound for the same steps, *compulsory* a weaker one: what moves whatever is kept (`sagann/plan/gaps.py`).
"""
PAPER = 1.4
"The least factor that ROC states against streaming and LRU."
MOST_INTERVALS = 64
P100 = Path(__file__).with_name("p100.toml")


SHAPES = {
    "pubmed": Shape(vertices=19_717, edges=108_365, features=500, classes=3),
    "ppi": Shape(vertices=56_944, edges=1_612_348, features=700, classes=121),
    "reddit": Shape(vertices=232_965, edges=114_848_857, features=602, classes=41),
    "amazon": Shape(vertices=9_430_088, edges=231_594_310, features=300, classes=24),
}
"The graphs of ROC, Table 4."


class Case(NamedTuple):
    """An epoch within a budget, placed by every policy."""

    dataset: str
    model: str
    budget: str
    "Part of what P = 1 takes."
    num_intervals: int
    plans: Mapping[str, Plan]
    seconds: Mapping[str, float]
    least_bytes: int
    "No policy moves fewer bytes for these steps."
    compulsory_bytes: int
    "Bytes that are moved whatever is kept."

    @property
    def fastest(self) -> str:
        """The policy that takes the fewest simulated seconds."""
        return min(POLICIES, key=lambda policy: (self.seconds[policy], self.plans[policy].moved_bytes))

    def times(self, rival: str) -> float:
        """How many times the bytes of "dp" a rival moves."""
        return self.plans[rival].moved_bytes / self.plans["dp"].moved_bytes

    def cells(self) -> list[str]:
        copied = [(self.plans[policy].loaded_bytes, self.plans[policy].stored_bytes) for policy in POLICIES]
        moved = [f"{megabytes(loaded)} + {megabytes(stored)}" for loaded, stored in copied]
        moved += [megabytes(self.least_bytes), megabytes(self.compulsory_bytes)]
        seconds = [f"{self.seconds[policy]:.3g}" for policy in POLICIES]
        return [self.dataset, self.model, str(self.num_intervals), self.budget, *moved, *seconds, self.fastest]


def main(given: Sequence[str] | None = None) -> int:
    arguments = _arguments(given)
    machine = Machine.from_toml(arguments.machine.read_text(), where=str(arguments.machine))
    named = product(arguments.datasets, arguments.models)
    cases = [case for each in named for case in cases_of(*each, arguments.hidden, arguments.intervals, machine)]
    print("# What memory policies move\n")
    print(f"`{command_line('bench.memory_policies', given)}`; rates of {machine.name}.\n")
    print("\n".join(summary(cases)))
    print(NOTES.format(hidden=arguments.hidden))
    print(head(COLUMNS, words=("model",)))
    for case in cases:
        print(row(case.cells()))
    return 0


def cases_of(dataset: str, model: str, hidden: int, num_intervals: int, machine: Machine) -> Iterator[Case]:
    """The cases of a model on a shape, all with as many intervals as the least budget needs."""
    shape = SHAPES[dataset]
    layers = DEEP_LAYERS if model == "residual-gcn" else 2
    config = ModelConfig(model=model, layers=layers, hidden=hidden, dropout=0.0)
    program, topology_hops = captured_for(shape, config)
    plan = partial(plan_epoch, program, gradients=Gradients(program), folded=True, beside=FILES)

    def planned(count: int, budget_bytes: int) -> Planned:
        part = PartIntervals.of_graph(equal_vertices(shape.vertices, count))
        return plan(sizes_for(program, topology_hops, shape, count), part, budget_bytes)

    whole_bytes = planned(1, UNLIMITED).plan.peak_bytes
    while True:
        try:
            found = {budget: planned(num_intervals, int(share * whole_bytes)) for budget, share in SHARES.items()}
            break
        except BudgetError:
            if num_intervals >= MOST_INTERVALS:
                raise
            num_intervals *= 2
    for budget, each in found.items():
        plans = {name: replaced(each, policy, ahead=True).plan for name, policy in POLICIES.items()}
        work = StepWork(each.schedule)
        steps = [operation for operation in each.plan.operations if isinstance(operation, Step)]
        step_s = {step: work.of(step).seconds(machine) for step in steps}
        gaps = gaps_of(steps, each.schedule.sizes.of, each.plan.budget_bytes)
        yield Case(
            dataset=dataset,
            model=model,
            budget=budget,
            num_intervals=num_intervals,
            plans=plans,
            seconds={policy: simulate(plan, step_s.__getitem__, machine).seconds for policy, plan in plans.items()},
            least_bytes=prices_of(gaps, plans["dp"].moved_bytes).least_bytes,
            compulsory_bytes=gaps.compulsory_bytes,
        )


def captured_for(
    shape: Shape, config: ModelConfig, *, x_is_constant: bool = True
) -> tuple[ModelProgram, Sequence[Topology]]:
    """A model's program for graphs of a shape, captured on two vertices, and what it walks there."""
    graph = Graph(
        topology=Topology.from_coo(src=torch.tensor([0, 1]), dst=torch.tensor([1, 0]), num_src=2),
        features=torch.zeros(2, shape.features),
        num_classes=shape.classes,
    )
    module = build_model(config, graph)
    graph = module.prepare(graph)
    hops = list(graph.hops(count_hops(module)))
    assert isinstance(graph.features, torch.Tensor)
    return captured(module, hops, graph.features, x_is_constant=x_is_constant), hops


def sizes_for(
    program: ModelProgram, hops: Sequence[Topology], shape: Shape, num_intervals: int
) -> dict[int, HopSize]:
    """Sizes of a grid whose chunks have equally many edges."""
    found, read = {}, read_data(program)
    gathered = gathered_hops(program, hops)
    num_types = sum(isinstance(hop, EdgesOfType) for hop in gathered.values())
    for number, hop in gathered.items():
        edges = shape.edges // (num_types if isinstance(hop, EdgesOfType) else 1)
        at = [(src, dst) for src in range(num_intervals) for dst in range(num_intervals)]
        known = HopSize.of(topology_of(hop), {}).with_data(topology_of(hop), read[number])
        found[number] = replace(known, num_edges=edges, edges=dict.fromkeys(at, max(1, edges // len(at))))
    return found


def summary(cases: Sequence[Case]) -> Iterator[str]:
    for rival in ("none", "lru", "belady"):
        times = [case.times(rival) for case in cases]
        reached = sum(each >= PAPER for each in times)
        yield f"- `{rival}` moves {spread(times)} times the bytes of `dp`; at least {PAPER} times in {reached} of {len(cases)} cases."
    shares = [100 * case.compulsory_bytes / case.plans["lru"].moved_bytes for case in cases]
    yield f"- Of the bytes of `lru`, {spread(shares, 0)} percent are compulsory."
    beyond = [
        [case.plans[policy].moved_bytes - case.compulsory_bytes for policy in ("lru", "dp")] for case in cases
    ]
    yield f"- Beyond the compulsory bytes, `lru` moves {spread([lru / dp for lru, dp in beyond if dp])} times those of `dp`."
    least = [min(each.moved_bytes for each in case.plans.values()) for case in cases]
    fewest = sum(case.plans["dp"].moved_bytes == bound for case, bound in zip(cases, least, strict=True))
    yield f"- `dp` moves the fewest bytes in {fewest} of {len(cases)} cases."
    above = [100 * (case.plans["dp"].moved_bytes / case.least_bytes - 1) for case in cases]
    yield f"- `dp` moves {spread(above, 1)} percent more than a lower bound for all policies."
    counts = Counter(case.fastest for case in cases)
    yield f"- Fastest by simulation: {', '.join(f'`{policy}` {counts[policy]}' for policy in POLICIES)}."
    slower = [case.seconds["belady"] / case.seconds[case.fastest] for case in cases]
    yield f"- `belady`, the default, takes {spread(slower)} times the seconds of the fastest."


def spread(values: Sequence[float], digits: int = 2) -> str:
    """The least and the largest value, and the median."""
    ordered = sorted(values)
    least, median, most = (f"{ordered[at]:.{digits}f}" for at in (0, len(ordered) // 2, -1))
    return f"{least} to {most} (median {median})"


def megabytes(count: int) -> str:
    return f"{count / 1e6:.4g}" if count < 1e10 else f"{count / 1e6:.0f}"


def _arguments(given: Sequence[str] | None) -> argparse.Namespace:
    return parser_of(
        __doc__,
        {"hidden": 128, "machine": P100},
        datasets=(list(SHAPES), "shapes", SHAPES),
        models=(["gcn", "gin", "commnet", "residual-gcn", "gat", "ggnn", "gated-gcn"], "models", MODELS),
        intervals=(8, "the fewest intervals, P"),
    ).parse_args(given)


if __name__ == "__main__":
    raise SystemExit(main())
