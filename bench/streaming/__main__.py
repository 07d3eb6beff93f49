"""Training epochs inside a memory budget: ``python -m bench.streaming``. Prints a Markdown table.

For every model on every graph: the engine's epoch, the streamed one with P = 1 (in the usual loop, and with the loss
folded into the last stage), and with a budget of an eighth of the dense working set, the host in memory and on disk.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir

import torch

from bench.contest import Contestant, take_turns
from bench.epochs.graphs import DATASETS, SHAPES, specification_of, write_task
from bench.pages import command_line, parser_of
from bench.streaming.report import CHECKED_EPOCHS, HEADER, NOTES, rows_of
from bench.streaming.worker import WAYS
from sagann.nn import MODELS
from sagann.runtime.forecasting.probe import probe
from sagann.runtime.processor import processor_name

TURN_S = 0.5
"Short epochs are repeated within a turn until they take this long together, in seconds."


def main(given: Sequence[str] | None = None) -> int:
    """Measure and report."""
    arguments = _arguments(given)
    print(
        f"# Epochs inside a memory budget\n\n`{command_line('bench.streaming', given)}`; "
        f"{arguments.threads} threads, {processor_name()}, PyTorch {torch.__version__}.\n\n"
        "An epoch is forward, cross-entropy on the training vertices, backward, and a step of Adam: 2 layers, hidden "
        f"{arguments.hidden}, GAT 8 heads and 1 in the last layer, no dropout, no encoder (GG-NN: a linear one).\n{NOTES}\n\n{HEADER}",
        flush=True,
    )
    if arguments.work is not None:
        arguments.work.mkdir(parents=True, exist_ok=True)
    machine = _machine(arguments)
    contestants = [Contestant(name=way, command=(sys.executable, "-m", "bench.streaming.worker")) for way in WAYS]
    for dataset in arguments.datasets:
        with TemporaryDirectory(prefix="sagann_streaming_", dir=arguments.work) as folder:
            common = {
                "hidden": arguments.hidden,
                "threads": arguments.threads,
                "machine": machine,
                "folder": folder,
            }
            write_task(Path(folder), dataset, arguments.models, arguments.hidden)
            for model in arguments.models:
                turns = take_turns(
                    contestants,
                    lambda way, model=model, common=common: specification_of(model, way=way.name, **common),
                    first={"first": CHECKED_EPOCHS + 1},
                    request=lambda _, first: {"turn": _repetitions(min(first["seconds"]))},
                    rounds=arguments.rounds,
                    timeout_s=arguments.timeout,
                )
                print("\n".join(rows_of(dataset, model, turns)), flush=True)
    return 0


def _machine(arguments: argparse.Namespace) -> str:
    """The machine's rates, as TOML."""
    if arguments.machine is not None:
        return arguments.machine.read_text()
    torch.set_num_threads(arguments.threads)
    return probe(arguments.work or Path(gettempdir())).to_toml()


def _repetitions(seconds: float) -> int:
    return max(1, min(20, math.ceil(TURN_S / max(seconds, 1e-6))))


def _arguments(given: Sequence[str] | None) -> argparse.Namespace:
    parser = parser_of(__doc__, hidden=128, rounds=5, threads=2, work=None)
    parser.add_argument(
        "--datasets",
        nargs="+",
        choices=[*DATASETS, *(name for name in SHAPES if name not in DATASETS)],
        default=["reddit-small", "reddit-middle"],
        metavar="NAME",
    )
    parser.add_argument(
        "--models",
        nargs="+",
        choices=[name for name in MODELS if name != "mlp"],
        default=["gcn", "gated-gcn", "gat", "ggnn"],
    )
    parser.add_argument("--timeout", type=float, default=3600.0, help="longest wait for a turn, in seconds")
    parser.add_argument(
        "--machine", type=Path, help="rates, as `sagann machine` writes them; by default they are measured first"
    )
    return parser.parse_args(given)


if __name__ == "__main__":
    raise SystemExit(main())
