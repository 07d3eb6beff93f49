"""What the order of visits gains: ``python -m bench.visits``. Prints a Markdown table.

Every model's epoch is planned within one budget, its intervals and chunks visited in several ways, and simulated by a
machine's rates, the host on disk. No epoch is run, unless ``--run`` asks for their seconds too, in alternation.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory, gettempdir

import torch
from torch import nn

from bench.epochs.graphs import SHAPES, stored_graph
from bench.orders.__main__ import mebibytes, prepared
from bench.origin import commit
from bench.result_tables import table_line
from bench.streaming.worker import Folded
from bench.timing import alternate, median_ratio
from sagann.compiler.model_program import ModelProgram
from sagann.graph import Graph, Topology
from sagann.nn import MODELS
from sagann.plan.epoch import Planned, plan_epoch, revisited
from sagann.plan.fit import cutter, fitted_intervals, hop_sizes
from sagann.plan.gradients import Gradients
from sagann.plan.machine import Machine
from sagann.plan.residency import BudgetError
from sagann.plan.steps import UNLIMITED
from sagann.plan.sweeps import Traversal
from sagann.runtime.forecasting.forecast import forecast, refined
from sagann.runtime.forecasting.probe import probe
from sagann.runtime.streaming.capturing import captured
from sagann.runtime.streaming.streamed import StreamedModel
from sagann.saga.layer import count_hops

COLUMNS = ("dataset", "model", "visits", "P", "budget MiB", "loaded MiB", "stored MiB", "times ascending")
SIMULATED = ("simulated s",)
TIMED = ("s", "times ascending, s")
NUM_WORDS = 3
"Columns that begin the table with words, not numbers."
NOTES = """\
*ascending* and *zigzag* by strips of one interval; *strips* by strips as wide as moves the fewest bytes, the default; *refined*:
the same after simulated swaps; *twice P*: strips of a grid twice as fine, as sub-chunks are (k = 2)."""


def main(given: Sequence[str] | None = None) -> int:
    """Plan, simulate and report."""
    arguments = _arguments(given)
    torch.set_num_threads(arguments.threads)
    arguments.work.mkdir(parents=True, exist_ok=True)
    machine = (
        probe(arguments.work)
        if arguments.machine is None
        else Machine.from_toml(arguments.machine.read_text(), where=str(arguments.machine))
    )
    print(
        f"`python -m {' '.join(['bench.visits', *(sys.argv[1:] if given is None else given)])}` at {commit()}; rates of "
        f"{machine.name}. 2 layers, hidden {arguments.hidden}; the budget is 1/{arguments.share} of what P = 1 takes.\n"
        f"{NOTES}\n"
    )
    columns = COLUMNS + SIMULATED + (TIMED if arguments.run else ())
    print(table_line(columns))
    print(table_line(["---"] * NUM_WORDS + ["--:"] * (len(columns) - NUM_WORDS)), flush=True)
    for dataset in arguments.datasets:
        stored = stored_graph(dataset)
        for name in arguments.models:
            model, graph = prepared(name, arguments.hidden, stored)
            hops = list(graph.hops(count_hops(model)))
            assert graph.features is not None
            found = _planned(captured(model, hops, graph.features, x_is_constant=True), hops, machine, arguments)
            seconds = _seconds(model, graph, hops, found, arguments) if arguments.run else {}
            for visits, plan in found.items():
                cells = [dataset, name, visits, *_cells(plan, found["ascending"], machine)]
                if visits in seconds:
                    ratio = median_ratio(seconds[visits], seconds["ascending"])
                    cells += [f"{median(seconds[visits]):.4g}", f"{ratio:.2f}"]
                print(table_line(cells), flush=True)
    return 0


def _planned(
    program: ModelProgram, hops: Sequence[Topology], machine: Machine, arguments: argparse.Namespace
) -> dict[str, Planned]:
    """An epoch with the loss folded, by what its visits are called."""
    gradients = Gradients(program)
    whole = (0, hops[0].num_dst)
    plan = partial(plan_epoch, program, gradients=gradients, folded=True, same_memory=False)
    budget_bytes = plan(hop_sizes(program, hops, whole), whole, UNLIMITED).plan.peak_bytes // arguments.share
    while True:
        try:
            bounds = fitted_intervals(program, hops, budget_bytes, gradients=gradients, same_memory=False).bounds
            sizes = hop_sizes(program, hops, bounds)
            strips = plan(sizes, bounds, budget_bytes)
            break
        except BudgetError as error:
            if error.needed_bytes <= budget_bytes:
                raise
            budget_bytes = error.needed_bytes
    finer = cutter(program, hops[0], "bytes")(2 * (len(bounds) - 1))
    better = refined(strips, machine, on_disk=True, most_simulations=arguments.simulations)
    return {
        "ascending": plan(sizes, bounds, budget_bytes, traversal=Traversal(direction="ascending")),
        "zigzag": plan(sizes, bounds, budget_bytes, traversal=Traversal()),
        "strips": strips,
        "refined": revisited(strips, better),
        "twice P": plan(hop_sizes(program, hops, finer), finer, budget_bytes),
    }


def _seconds(
    model: nn.Module,
    graph: Graph,
    hops: Sequence[Topology],
    found: Mapping[str, Planned],
    arguments: argparse.Namespace,
) -> Mapping[str, list[float]]:
    """Seconds of an epoch, in turns."""
    assert graph.features is not None
    assert graph.labels is not None
    train = graph.splits["train"].nonzero().squeeze(1)
    epochs = {}
    with ExitStack() as stack:
        spill = Path(stack.enter_context(TemporaryDirectory(prefix="sagann_visits_", dir=arguments.work)))
        for name, (_, schedule, plan) in found.items():
            streamed = StreamedModel(
                model,
                hops,
                plan.bounds,
                budget_bytes=plan.budget_bytes,
                traversal=schedule.traversal,
                spill=spill / name,
            )
            stack.callback(streamed.close)
            epochs[name] = Folded(streamed, graph.features, graph.labels, train).run
        return alternate(epochs, repetitions=arguments.rounds)


def _cells(found: Planned, ascending: Planned, machine: Machine) -> list[str]:
    plan = found.plan
    times = plan.moved_bytes / ascending.plan.moved_bytes
    return [
        str(plan.num_intervals),
        mebibytes(plan.budget_bytes),
        mebibytes(plan.loaded_bytes),
        mebibytes(plan.stored_bytes),
        f"{times:.2f}",
        f"{forecast(found, machine, on_disk=True).timeline.seconds:.4g}",
    ]


def _arguments(given: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--datasets", nargs="+", choices=list(SHAPES), default=["reddit-small"], metavar="SHAPE")
    parser.add_argument(
        "--models",
        nargs="+",
        choices=[name for name in MODELS if name != "mlp"],
        default=["gcn", "gat", "ggnn", "maxpool-gcn", "gated-gcn"],
    )
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--share", type=int, default=8, help="divides what P = 1 takes by plan: the budget")
    parser.add_argument("--simulations", type=int, default=50, help="most simulations of swaps")
    parser.add_argument(
        "--machine", type=Path, help="rates, as `sagann machine` writes them; by default measured first"
    )
    parser.add_argument("--run", action="store_true", help="run epochs too, and print seconds")
    parser.add_argument("--rounds", type=int, default=5, help="epochs of each, in alternation")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--work", type=Path, default=Path(gettempdir()), help="folder on the disk that is measured and spilled to"
    )
    return parser.parse_args(given)


if __name__ == "__main__":
    raise SystemExit(main())
