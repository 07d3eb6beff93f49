"""Bytes and seconds of a streamed epoch with and without picked rows: ``python -m bench.selective``. A Markdown table."""

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

from bench.origin import commit
from bench.selective.graphs import AMAZON, DATASETS, graph_named, ordered
from bench.selective.plans import Compared, compare
from bench.streaming.worker import Folded
from bench.timing import alternate, median_ratio
from sagann.graph import Graph, Topology
from sagann.nn import MODELS, ModelConfig, build_model
from sagann.partition import VERTEX_ORDERS
from sagann.plan.selection import NEVER, Selection
from sagann.runtime.forecasting.probe import measured_selection
from sagann.runtime.processor import processor_name
from sagann.runtime.streaming.capturing import captured
from sagann.runtime.streaming.streamed import StreamedModel
from sagann.saga.layer import count_hops

LEAST = 2.6
"Times fewer bytes on a sparse graph in an order with locality; NeuGraph, Sec. 5, reports 2.6 times the speed on amazon."
COLUMNS = (
    "dataset",
    "vertices by",
    "model",
    "P",
    "budget MiB",
    "whole MiB",
    "picked MiB",
    "of that rows",
    "times fewer",
)
TIMED = ("whole s", "picked s", "times faster")
"Where epochs are run."
NUM_WORDS = 3
"Columns that begin the table with words, not numbers."


def main(given: Sequence[str] | None = None) -> int:
    """Plan, run and report."""
    arguments = _arguments(given)
    torch.set_num_threads(arguments.threads)
    selection = measured_selection()
    columns = COLUMNS + (TIMED if arguments.run else ())
    print(
        f"`python -m {' '.join(['bench.selective', *(sys.argv[1:] if given is None else given)])}` at {commit()}; "
        f"{arguments.threads} threads, {processor_name()}, PyTorch {torch.__version__}."
    )
    print(
        f"{arguments.layers} layers, hidden {arguments.hidden}; the budget is 1/{arguments.share} of what the plan of P = 1 "
        f"takes; amazon is 1/{arguments.scale} of its shape; rows are picked where less than {selection.share:.0%} are needed."
    )
    print(f"\n{_line(columns)}")
    print(_line(["---"] * NUM_WORDS + ["--:"] * (len(columns) - NUM_WORDS)), flush=True)
    for dataset in arguments.datasets:
        plain = graph_named(dataset, arguments.scale)
        for by in arguments.orders:
            shuffled = ordered(plain, by)
            for name in arguments.models:
                model = build_model(
                    ModelConfig(model=name, layers=arguments.layers, hidden=arguments.hidden, dropout=0.0), shuffled
                )
                graph = model.prepare(shuffled)
                hops = list(graph.hops(count_hops(model)))
                assert graph.features is not None
                program = captured(model, hops, graph.features, x_is_constant=True)
                compared = compare(program, hops, arguments.share, selection, on_disk=arguments.host == "disk")
                cells = [dataset, by, name, *cells_of(compared)]
                if arguments.run:
                    seconds = _seconds(model, graph, hops, compared, selection, arguments)
                    cells += [f"{median(seconds[way]):.3g}" for way in ("whole", "picked")]
                    cells.append(f"{median_ratio(seconds['whole'], seconds['picked']):.2f}")
                print(_line(cells), flush=True)
    return 0


def cells_of(compared: Compared) -> list[str]:
    """A line of the table, after dataset, order and model."""
    return [
        str(len(compared.bounds) - 1),
        _mebibytes(compared.budget_bytes) + (" (raised)" if compared.is_raised else ""),
        _mebibytes(compared.whole.moved_bytes),
        _mebibytes(compared.picking.moved_bytes),
        _mebibytes(compared.picking.picked_bytes),
        f"{compared.times_fewer:.2f}",
    ]


def _seconds(
    model: nn.Module,
    graph: Graph,
    hops: Sequence[Topology],
    compared: Compared,
    selection: Selection,
    arguments: argparse.Namespace,
) -> Mapping[str, list[float]]:
    """Seconds of an epoch with whole intervals and with picked rows, in turns."""
    assert graph.features is not None
    assert graph.labels is not None
    train = graph.splits["train"].nonzero().squeeze(1)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="sagann_selective_", dir=arguments.work)))
        epochs = {}
        for way, which in (("whole", NEVER), ("picked", selection)):
            streamed = StreamedModel(
                model,
                hops,
                compared.bounds,
                budget_bytes=compared.budget_bytes,
                spill=None if arguments.host == "ram" else folder / way,
                selection=which,
            )
            stack.callback(streamed.close)
            epochs[way] = Folded(streamed, graph.features, graph.labels, train).run
        return alternate(epochs, repetitions=arguments.rounds)


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _mebibytes(count: int) -> str:
    return f"{count / 2**20:.1f}"


def _arguments(given: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--datasets", nargs="+", choices=DATASETS, default=[AMAZON, "reddit-small"], metavar="NAME")
    parser.add_argument("--scale", type=int, default=100, help="divides the vertices and edges of amazon")
    parser.add_argument("--orders", nargs="+", choices=VERTEX_ORDERS, default=["metis"])
    parser.add_argument(
        "--models",
        nargs="+",
        choices=[name for name in MODELS if name != "mlp"],
        default=["gcn", "maxpool-gcn", "gated-gcn", "gat"],
    )
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--share", type=int, default=16, help="divides what P = 1 takes by plan: the budget")
    parser.add_argument("--run", action="store_true", help="run epochs too, and print their seconds")
    parser.add_argument("--host", choices=["ram", "disk"], default="ram", help="where what is not in use lies")
    parser.add_argument("--rounds", type=int, default=5, help="epochs of each way, in alternation")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--work", type=Path, help="folder for what is spilled, deleted after use; on a disk")
    return parser.parse_args(given)


if __name__ == "__main__":
    raise SystemExit(main())
