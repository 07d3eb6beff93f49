"""What a streamed epoch moves, beside NGra and NeuGraph: ``python -m bench.papers.neugraph orders|visits|rows``. Prints a Markdown table.

- ``orders``: column, row and stage order (NGra, Fig. 14; NeuGraph, Fig. 16).
- ``visits``: sweeps that always ascend or zigzag column by column, strips of several columns, the same after simulated swaps, and strips of a
  grid twice as fine, as sub-chunks are with k = 2 (NeuGraph, Fig. 15).
- ``rows``: whole intervals, and picked rows where a chunk needs few of them (NeuGraph, Fig. 15).

All ways have one budget, a share of what the plan of P = 1 takes, raised where one of them cannot meet it, and one P, the least with which all
fit it. The loss is folded into the last stage. No epoch is run.

Swaps: a chunk whose copies take longer than its computation should come beside a chunk of the opposite kind. So within a strip the two most
unlike chunks change places, and the epoch is simulated. The swap stays if the epoch became shorter. Then the next two are tried, until no strip
gains or the limit of simulations is reached. Unlike NeuGraph (Sec. 3.2 and Fig. 6), we begin with an order that loads few bytes, not with a random
one, and simulate a whole epoch with its loads placed again, not one column.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import gettempdir
from typing import NamedTuple

import torch

from bench.epochs.graphs import DATASETS, SEED, SHAPES, graph_of, stored_graph
from bench.pages import command_line, head, mebibytes, parser_of, row
from bench.papers.rivals import ORDERS
from sagann.compiler.model_program import ModelProgram
from sagann.graph import Graph, Topology, relabel, sbm_graph
from sagann.nn import MODELS, ModelConfig, build_model
from sagann.partition import VERTEX_ORDERS, vertex_order
from sagann.plan.epoch import Planned, plan_epoch
from sagann.plan.fit import cutter, fitted_intervals, hop_sizes
from sagann.plan.gradients import Gradients
from sagann.plan.intervals import PartIntervals
from sagann.plan.machine import Machine
from sagann.plan.residency import BudgetError, place
from sagann.plan.selection import NEVER, Selection
from sagann.plan.simulate import StepSeconds, Tier, copy_rates, simulate
from sagann.plan.steps import FILES, MEMORY, UNLIMITED, Block, Move, Plan, Step
from sagann.plan.sweeps import PassKey, Traversal, chunk_ends
from sagann.plan.work import StepWork
from sagann.runtime.forecasting.forecast import forecast
from sagann.runtime.forecasting.probe import measured_selection, probe
from sagann.runtime.processor import processor_name
from sagann.runtime.streaming.capturing import captured
from sagann.saga.layer import count_hops

AMAZON = "amazon"
"""A hundredth of the shape that NeuGraph and ROC report, with its mean degree, in communities of a thousand vertices that nine edges in ten do
not leave."""
COLUMNS = "dataset | model | way | P | budget MiB | loaded MiB | stored MiB | times the first | simulated s"


class Way(NamedTuple):
    """A way to go through an epoch."""

    order: str = "column"
    traversal: Traversal | None = None
    "Order of sweeps and strips; None for the planner's."
    selection: Selection = NEVER
    finer: int = 1
    "Intervals of the grid, as a multiple of those of the other ways."


def main(given: Sequence[str] | None = None) -> int:
    arguments = _arguments(given)
    torch.set_num_threads(arguments.threads)
    arguments.work.mkdir(parents=True, exist_ok=True)
    rates = arguments.machine.read_text() if arguments.machine else probe(arguments.work).to_toml()
    machine = Machine.from_toml(rates, where="--machine")
    ways = ways_of(arguments.compare)
    print(f"`{command_line('bench.papers.neugraph', given)}`; {processor_name()}, PyTorch {torch.__version__}.\n")
    print(head(COLUMNS, words=("model", "way")), flush=True)
    for dataset in arguments.datasets:
        plain = _amazon() if dataset == AMAZON else graph_of(stored_graph(dataset))
        if arguments.by is not None:
            plain = relabel(plain, vertex_order(plain, arguments.by, seed=SEED))
        for name in arguments.models:
            config = ModelConfig(model=name, layers=2, hidden=arguments.hidden, dropout=0.0)
            model = build_model(config, plain)
            graph = model.prepare(plain)
            hops = list(graph.hops(count_hops(model)))
            assert graph.features is not None
            program = captured(model, hops, graph.features, x_is_constant=True)
            found = planned(program, hops, ways, arguments.share, on_disk=arguments.host == "disk")
            if arguments.compare == "visits":
                found["refined"] = refined(found["strips"], machine, most_simulations=arguments.simulations)
            first_bytes = next(iter(found.values())).plan.moved_bytes
            for way, each in found.items():
                simulated = forecast(each, machine, on_disk=arguments.host == "disk").timeline.seconds
                plan = each.plan
                sizes = (plan.budget_bytes, plan.loaded_bytes, plan.stored_bytes)
                cells = [plan.num_intervals, *(mebibytes(size, ".1f") for size in sizes)]
                times = f"{plan.moved_bytes / first_bytes:.2f}"
                print(row([dataset, name, way, *cells, times, f"{simulated:.4g}"]), flush=True)
    return 0


def ways_of(compare: str) -> Mapping[str, Way]:
    """The ways that a comparison has; the first one is what the others are compared with."""
    if compare == "orders":
        return {"column": Way(), "row": Way(order="row"), "stage": Way(order="stage")}
    if compare == "visits":
        return {
            "ascending": Way(traversal=Traversal(direction="ascending")),
            "zigzag": Way(traversal=Traversal()),
            "strips": Way(),
            "twice P": Way(finer=2),
        }
    return {"whole": Way(), "picked": Way(selection=measured_selection())}


def planned(
    program: ModelProgram, hops: Sequence[Topology], ways: Mapping[str, Way], share: int, *, on_disk: bool
) -> dict[str, Planned]:
    """Plans of the same epoch, by way."""
    gradients, whole = Gradients(program), PartIntervals.of_graph((0, hops[0].num_dst))
    beside = FILES if on_disk else MEMORY
    plan = partial(plan_epoch, program, gradients=gradients, folded=True, beside=beside)
    fit = partial(fitted_intervals, program, hops, gradients=gradients, beside=beside, is_square=True)
    budget_bytes = plan(hop_sizes(program, hops, whole), whole, UNLIMITED).plan.peak_bytes // share
    while True:
        try:
            orders = dict.fromkeys(way.order for way in ways.values())
            count = max(len(fit(budget_bytes, walks=ORDERS[order]).bounds) for order in orders) - 1
            found = {}
            for name, way in ways.items():
                part = PartIntervals.of_graph(cutter(program, hops[0])(way.finer * count))
                found[name] = plan(
                    hop_sizes(program, hops, part, way.selection),
                    part,
                    budget_bytes,
                    walks=ORDERS[way.order],
                    selection=way.selection,
                    traversal=way.traversal,
                )
        except BudgetError as error:
            budget_bytes = error.needed_bytes
        else:
            return found


def _amazon() -> Graph:
    features = {"num_features": 300, "feature_noise": 1.0}
    graph = sbm_graph(94_000, num_classes=94, average_degree=231 / 9.4, homophily=0.9, seed=SEED, **features)
    assert graph.labels is not None
    train = torch.rand(graph.num_vertices, generator=torch.Generator().manual_seed(SEED)) < 0.6
    return replace(graph, labels=graph.labels % 24, num_classes=24, splits={"train": train})


def _arguments(given: Sequence[str] | None) -> argparse.Namespace:
    parser = parser_of(
        __doc__,
        {"hidden": 128, "threads": 2, "work": Path(gettempdir()), "machine": None},
        datasets=(["reddit-small"], "graphs", {AMAZON, *SHAPES, *DATASETS}),
        by=(None, "order of the vertices; as they come by default", str, VERTEX_ORDERS),
        models=(["gcn", "gat", "ggnn", "maxpool-gcn", "gated-gcn"], "models", MODELS),
        share=(8, "divides what P = 1 takes by plan: the budget"),
        host=("disk", "where what is not in use lies", ("ram", "disk")),
        simulations=(50, "most simulations of swaps"),
    )
    parser.add_argument("compare", choices=["orders", "visits", "rows"])
    return parser.parse_args(given)


def revisited(found: Planned, traversal: Traversal) -> Planned:
    """The same epoch, which has a backward, with another order of sweeps and strips."""
    schedule = found.schedule.changed(traversal=traversal)
    plan = place(
        list(schedule.epoch()),
        bytes_of=schedule.sizes.of,
        initial=[*schedule.initial(), *schedule.upstream()],
        bounds=found.plan.bounds,
        budget_bytes=found.plan.budget_bytes,
    )
    return found._replace(schedule=schedule, plan=plan)


def refined(found: Planned, machine: Machine, *, most_simulations: int) -> Planned:
    """An epoch that was planned for files, with orders of its chunks that take less time on a machine's disk."""
    work = StepWork(found.schedule)
    traversal = refine(
        lambda traversal: revisited(found, traversal).plan,
        found.schedule.traversal,
        lambda step: work.of(step).seconds(machine),
        machine,
        tier="disk",
        most_simulations=most_simulations,
    )
    return revisited(found, traversal)


def refine(
    plan_of: Callable[[Traversal], Plan],
    traversal: Traversal,
    step_s: StepSeconds,
    machine: Machine,
    *,
    tier: Tier,
    most_simulations: int,
) -> Traversal:
    """Swap chunks as long as that makes the simulated epoch shorter; ``plan_of`` plans the epoch with a given traversal."""
    rate = copy_rates(machine, tier)["load"]

    def seconds(plan: Plan) -> float:
        return simulate(plan, step_s, machine, tier=tier).seconds

    plan = plan_of(traversal)
    best_s = seconds(plan)
    simulated, gained = 1, True
    while gained:
        gained = False
        for at, chunks in _strips(plan, traversal, step_s, rate).items():
            for order in _swapped(chunks):
                if simulated >= most_simulations:
                    return traversal
                tried = replace(traversal, refined={**traversal.refined, at: order})
                other = plan_of(tried)
                if other.operations == plan.operations:
                    # The chunks of this pass must come in ascending order.
                    break
                simulated += 1
                if (now_s := seconds(other)) < best_s:
                    plan, traversal, best_s, gained = other, tried, now_s, True
                    break
    return traversal


def _strips(
    plan: Plan, traversal: Traversal, step_s: StepSeconds, rate: float
) -> Mapping[tuple[PassKey, int], Mapping[int, float]]:
    """For each pass and number of a strip, the seconds of loads less those of steps, by other end of the chunk, in the order of the visit."""
    owns = _owns(plan)
    found: defaultdict[tuple[PassKey, int], dict[int, float]] = defaultdict(dict)
    pending: dict[Block, int] = {}
    for operation in plan.operations:
        if isinstance(operation, Move):
            if operation.kind == "load":
                pending[operation.block] = operation.num_bytes
            continue
        loaded = sum(pending.pop(block, 0) for block in operation.reads)
        ends = chunk_ends(operation)
        if ends is None:
            continue
        key, own, other = ends
        chunks = found[key, owns[key].index(own) // traversal.widths.get(key, 1)]
        chunks[other] = chunks.get(other, 0.0) + loaded / rate - step_s(operation)
    return found


def _swapped(chunks: Mapping[int, float]) -> Iterator[tuple[int, ...]]:
    """Orders in which a chunk with long loads and a chunk with long steps have changed places, the most unlike ones first."""
    order = list(chunks)
    ranked = sorted(order, key=lambda other: (chunks[other], other))
    for one, two in zip(ranked[: len(ranked) // 2], reversed(ranked), strict=False):
        places = {one: two, two: one}
        yield tuple(places.get(other, other) for other in order)


def _owns(plan: Plan) -> Mapping[PassKey, list[int]]:
    """The intervals of each pass's rows, in the order of its sweep, which is that of their finish."""
    found: defaultdict[PassKey, list[int]] = defaultdict(list)
    for operation in plan.operations:
        if isinstance(operation, Step):
            if operation.kind == "finish":
                found[PassKey("gather", operation.number)].append(operation.interval)
            elif operation.kind == "finish_grad":
                found[PassKey("gather_grad", operation.number, operation.backward_pass)].append(operation.interval)
    return found


if __name__ == "__main__":
    raise SystemExit(main())
