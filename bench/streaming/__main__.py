"""Training epochs inside a memory budget: ``python -m bench.streaming``. Prints a Markdown table.

For every model on every graph: the engine's epoch, the streamed one with P = 1 (in the usual loop, and with the loss
folded into the last stage), and with a budget of an eighth of the dense working set, the host in memory and on disk.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir

import torch

from bench.epochs.graphs import DATASETS, SHAPES, stored_graph, write_graph, write_weights
from bench.epochs.sagann_worker import config_of
from bench.streaming.contest import Measured, measure
from bench.streaming.report import HEADER, NOTES, PARTS_HEADER, PARTS_NOTES, parts_of, rows_of
from bench.workers import Worker
from sagann.nn import MODELS
from sagann.runtime.forecasting.probe import probe
from sagann.runtime.processor import processor_name

COMMAND = (sys.executable, "-m", "bench.streaming.worker")


def main(given: Sequence[str] | None = None) -> int:
    """Measure and report."""
    arguments = _arguments(given)
    report = [
        "# Epochs inside a memory budget",
        "",
        f"`python -m {' '.join(['bench.streaming', *(sys.argv[1:] if given is None else given)])}`; "
        f"{arguments.threads} threads, {processor_name()}, PyTorch {torch.__version__}.",
        "",
        "An epoch is forward, cross-entropy on the training vertices, backward, and a step of Adam: 2 layers, hidden "
        f"{arguments.hidden}, GAT 8 heads and 1 in the last layer, no dropout, no encoder (GG-NN: a linear one).",
        NOTES,
        "",
        HEADER,
    ]
    print("\n".join(report), flush=True)
    tasks: dict[tuple[str, str], dict[str, Measured]] = {}
    if arguments.work is not None:
        arguments.work.mkdir(parents=True, exist_ok=True)
    machine = _machine(arguments)
    for dataset in arguments.datasets:
        with TemporaryDirectory(prefix="sagann_streaming_", dir=arguments.work) as folder:
            _prepare(Path(folder), dataset, arguments)
            for model in arguments.models:
                ways = measure(_starter(arguments, model, folder, machine), arguments.rounds)
                tasks[dataset, model] = ways
                rows = rows_of(dataset, model, ways)
                print("\n".join(rows), flush=True)
                report += rows
                _write(arguments.out, report)
    parts = [line for (dataset, model), ways in tasks.items() for line in parts_of(dataset, model, ways)]
    rest = ["", PARTS_NOTES, "", PARTS_HEADER, *parts]
    report += rest
    print("\n".join(rest))
    _write(arguments.out, report)
    return 0


def _write(out: Path | None, report: Sequence[str]) -> None:
    """What is known so far."""
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text("\n".join(report) + "\n")


def _prepare(folder: Path, dataset: str, arguments: argparse.Namespace) -> None:
    stored = stored_graph(dataset)
    write_graph(folder, stored)
    configs = [config_of(specification(arguments, model, str(folder), "")) for model in arguments.models]
    write_weights(folder, configs, stored.features.shape[1], stored.num_classes)


def _machine(arguments: argparse.Namespace) -> str:
    """The machine's rates, as TOML."""
    if arguments.machine is not None:
        return arguments.machine.read_text()
    torch.set_num_threads(arguments.threads)
    return probe(arguments.work or Path(gettempdir())).to_toml()


def _starter(arguments: argparse.Namespace, model: str, folder: str, machine: str) -> Callable[[str], Worker]:
    def start(way: str) -> Worker:
        asked = specification(arguments, model, folder, way) | {"machine": machine}
        return Worker(COMMAND, asked, timeout_s=arguments.timeout)

    return start


def specification(arguments: argparse.Namespace, model: str, folder: str, way: str) -> dict[str, object]:
    """What a worker is told."""
    return {
        "model": model,
        "way": way,
        # Of the engine: what a user gets.
        "variant": "",
        "layers": 2,
        "hidden": arguments.hidden,
        "heads": 8,
        "encoder": False,
        "defaults": False,
        "dropout": 0.0,
        "sparse": False,
        "threads": arguments.threads,
        "folder": folder,
    }


def _arguments(given: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
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
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=5, help="turns of each in alternation")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--timeout", type=float, default=3600.0, help="longest wait for a turn, in seconds")
    parser.add_argument(
        "--work", type=Path, help="folder for graphs and what is spilled, both deleted after use; on a disk"
    )
    parser.add_argument(
        "--machine", type=Path, help="rates, as `sagann machine` writes them; by default they are measured first"
    )
    parser.add_argument("--out", type=Path, help="write the report there too, as far as it is known")
    return parser.parse_args(given)


if __name__ == "__main__":
    raise SystemExit(main())
