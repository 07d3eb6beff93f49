"""What it saves to compute while the halo's rows travel: ``python -m bench.balance.overlap --work FOLDER``.

Two workers of one thread each train over a link of a stated rate, in memory or streaming, by turns as they do by default, and with nothing
computed during an exchange. A ratio is the median of the rounds'. Workers on the loopback stand beside them: there, what travels is
work of the same cores. Needs root (:mod:`bench.balance.slow_link`).
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from contextlib import ExitStack
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

import torch

from bench.balance.group import Group
from bench.balance.slow_link import slow_link
from bench.epochs.graphs import SHAPES, generate, graph_of
from bench.origin import command_line
from bench.result_tables import table_line
from sagann.runtime.processor import processor_name
from sagann.storage import save_graph

LOOPBACK = "loopback"


def main() -> None:
    """Print the table."""
    options = _options()
    print(
        f"# Computing while the halo travels\n\n`{command_line('bench.balance.overlap', sys.argv[1:])}`; "
        f"{processor_name()}; PyTorch {torch.__version__}. Two workers of one thread each; medians of {options.rounds} turns of "
        f"{options.epochs} epochs. Waits are those of the worker that waits longer, in all exchanges of an epoch.\n\n"
        "| graph | model | parts | link | nothing meanwhile, s | by default, s | ratio | waits with nothing meanwhile, s | waits by default, s | sent, MB |\n"
        "|:--|:--|:--|:--|--:|--:|--:|--:|--:|--:|",
        flush=True,
    )
    with tempfile.TemporaryDirectory(prefix="sagann_overlap_", dir=options.work) as folder:
        path = Path(folder) / options.graph
        save_graph(graph_of(generate(SHAPES[options.graph])), path)
        for model, share in product(options.models, options.memory_shares):
            parts = f"stream in {share:.0%} of an epoch's memory" if share else "in memory"
            specification = {"folder": str(path), "model": model, "hidden": options.hidden, "memory_share": share}
            for link in (LOOPBACK, *options.rates):
                row = measured(specification, link, options)
                print(table_line([options.graph, model, parts, link, *row]), flush=True)


def measured(specification: dict[str, Any], link: str, options: argparse.Namespace) -> list[str]:
    """Seconds of an epoch and of its waits, without and with the overlap, and the bytes that both workers send."""
    found: dict[bool, list[tuple[float, float]]] = {False: [], True: []}
    with ExitStack() as stack:
        places = () if link == LOOPBACK else stack.enter_context(slow_link(link))
        group = stack.enter_context(Group(specification, size=2, threads=1, places=places))
        for _ in range(options.rounds):
            for meanwhile, turns in found.items():
                # What is kept for the one way is made anew after the other.
                group.ask(meanwhile=meanwhile)
                group.ask(epochs=1)
                answers = group.ask(epochs=options.epochs)
                waited_s = max(each["waited_s"] for each in answers)
                turns.append((median(answers[0]["seconds"]), waited_s))
    nothing, default = ([median(column) for column in zip(*turns, strict=True)] for turns in found.values())
    ratio = median(one[0] / other[0] for one, other in zip(found[True], found[False], strict=True))
    sent = sum(each["sent_bytes"] for each in answers) / 1e6
    return [
        f"{nothing[0]:.3f}",
        f"{default[0]:.3f}",
        f"{ratio:.2f}",
        f"{nothing[1]:.3f}",
        f"{default[1]:.3f}",
        f"{sent:.1f}",
    ]


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graph", choices=list(SHAPES), default="reddit-small")
    parser.add_argument("--models", nargs="+", default=["gcn", "gated-gcn"])
    parser.add_argument("--rates", nargs="*", default=["10gbit", "1gbit"], help="of the links, as tc takes them")
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument(
        "--memory-shares",
        nargs="+",
        type=float,
        default=[0.0, 0.3],
        help="of an epoch's memory, within which parts stream; 0 for parts in memory",
    )
    parser.add_argument("--rounds", type=int, default=5, help="turns of each in alternation")
    parser.add_argument("--epochs", type=int, default=3, help="epochs in a turn")
    parser.add_argument("--work", type=Path, help="folder for the graph, which is deleted after use")
    return parser.parse_args()


if __name__ == "__main__":
    main()
