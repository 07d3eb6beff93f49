"""Bytes that a streamed epoch moves, by the order of the chunks: ``python -m bench.orders``. Prints a Markdown table.

The plans say; no epoch is run, unless ``--run`` asks for their seconds too, with the host in a spill folder on disk.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import torch
from torch import nn

from bench.epochs.graphs import SHAPES, graph_of, stored_graph
from bench.orders.plans import ORDERS, Compared, compare
from bench.origin import commit
from bench.result_tables import table_line
from bench.standalone.stored import Stored
from bench.streaming.worker import Folded
from bench.timing import alternate, median_ratio
from sagann.graph import Graph, Topology
from sagann.nn import MODELS, ModelConfig, build_model
from sagann.plan.memory import MEMORY_POLICIES
from sagann.plan.orders import Order
from sagann.runtime.processor import processor_name
from sagann.runtime.streaming.capturing import captured
from sagann.runtime.streaming.streamed import StreamedModel
from sagann.saga.layer import count_hops

LEAST: Mapping[Order, float] = {"row": 1.6, "stage": 1.25}
"""Times column order's bytes. The papers report times in seconds: NGra, Fig. 14, 1.60 to 1.93 for dest-order (our row) and
1.25 to 1.35 stage-based; NeuGraph, Fig. 16, 1.4 to 1.7 for row-column-oriented."""
COLUMNS = (
    "dataset",
    "model",
    "P",
    "budget MiB",
    "order",
    "loaded MiB",
    "stored MiB",
    "total MiB",
    "times column",
    "target",
)
TIMED = ("s", "times column, s")
"Where epochs are run."
NUM_WORDS = 2
"Columns that begin the table with words, not numbers."
NOTES = """\
The loss is folded into the last stage. All orders have one budget, raised where one of them cannot meet it to the least
that all can, and one P, the least with which all fit it. Counted is an epoch: what constant features give is gathered once
before, and is not."""


def main(given: Sequence[str] | None = None) -> int:
    """Plan and report."""
    arguments = _arguments(given)
    torch.set_num_threads(arguments.threads)
    columns = COLUMNS + (TIMED if arguments.run else ())
    print(
        f"`python -m {' '.join(['bench.orders', *(sys.argv[1:] if given is None else given)])}` at {commit()}",
        end="",
    )
    print(
        f"; {arguments.threads} threads, {processor_name()}, PyTorch {torch.__version__}." if arguments.run else "."
    )
    print(
        f"2 layers, hidden {arguments.hidden}; the budget is 1/{arguments.share} of what the plan of P = 1 takes."
    )
    print(f"{NOTES}\n")
    print(table_line(columns))
    print(table_line(["---"] * NUM_WORDS + ["--:"] * (len(columns) - NUM_WORDS)), flush=True)
    for dataset in arguments.datasets:
        stored = stored_graph(dataset)
        for name in arguments.models:
            model, graph = prepared(name, arguments.hidden, stored)
            hops = list(graph.hops(count_hops(model)))
            assert graph.features is not None
            program = captured(model, hops, graph.features, x_is_constant=True)
            compared = compare(program, hops, arguments.share, arguments.memory_policy)
            seconds = _seconds(model, graph, hops, compared, arguments) if arguments.run else {}
            for order in ORDERS:
                cells = [dataset, name, *cells_of(compared, order)]
                if order in seconds:
                    times = median_ratio(seconds[order], seconds["column"])
                    cells += [f"{median(seconds[order]):.4g}", f"{times:.2f}"]
                print(table_line(cells), flush=True)
    return 0


def cells_of(compared: Compared, order: Order) -> list[str]:
    """A line of the table for an order, after dataset and model."""
    plan, times = compared.plans[order], compared.times_column(order)
    raised = "" if compared.budget_bytes == compared.wanted_bytes else " (raised)"
    return [
        str(plan.num_intervals),
        mebibytes(compared.budget_bytes) + raised,
        order,
        mebibytes(plan.loaded_bytes),
        mebibytes(plan.stored_bytes),
        mebibytes(plan.moved_bytes),
        f"{times:.2f}",
        verdict(order, times),
    ]


def verdict(order: Order, times: float) -> str:
    """Whether an order moves as many times column order's bytes as it should."""
    if order not in LEAST:
        return "-"
    return f"at least {LEAST[order]}: {'yes' if times >= LEAST[order] else '**no**'}"


def prepared(name: str, hidden: int, stored: Stored) -> tuple[nn.Module, Graph]:
    """A model of the zoo, and the graph as it wants it."""
    graph = graph_of(stored)
    model = build_model(ModelConfig(model=name, layers=2, hidden=hidden, dropout=0.0), graph)
    return model, model.prepare(graph)


def _seconds(
    model: nn.Module, graph: Graph, hops: Sequence[Topology], compared: Compared, arguments: argparse.Namespace
) -> Mapping[str, list[float]]:
    """Seconds of an epoch by order, in turns."""
    assert graph.features is not None
    assert graph.labels is not None
    train = graph.splits["train"].nonzero().squeeze(1)
    if arguments.work is not None:
        arguments.work.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="sagann_orders_", dir=arguments.work)))
        epochs = {}
        for order in ORDERS:
            streamed = StreamedModel(
                model,
                hops,
                compared.bounds,
                budget_bytes=compared.budget_bytes,
                spill=folder / order,
                order=order,
                memory_policy=arguments.memory_policy,
            )
            stack.callback(streamed.close)
            epochs[order] = Folded(streamed, graph.features, graph.labels, train).run
        return alternate(epochs, repetitions=arguments.rounds)


def mebibytes(count: int) -> str:
    return f"{count / 2**20:.1f}"


def _arguments(given: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--datasets", nargs="+", choices=list(SHAPES), default=["reddit-small", "reddit-middle"], metavar="SHAPE"
    )
    parser.add_argument(
        "--models",
        nargs="+",
        choices=[name for name in MODELS if name != "mlp"],
        default=["gcn", "commnet", "maxpool-gcn", "gated-gcn", "ggnn"],
    )
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--share", type=int, default=8, help="divides what P = 1 takes by plan: the budget")
    parser.add_argument("--memory-policy", choices=list(MEMORY_POLICIES), default="belady")
    parser.add_argument("--run", action="store_true", help="run epochs too, and print their seconds")
    parser.add_argument("--rounds", type=int, default=5, help="epochs of each order, in alternation")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--work", type=Path, help="folder for what is spilled, deleted after use; on a disk")
    return parser.parse_args(given)


if __name__ == "__main__":
    raise SystemExit(main())
