"""Sampled epochs against PyG and DGL: ``python -m bench.minibatches --dgl PYTHON``, and on a device ``--device cuda``. Prints a page.

The graph is R-MAT with random features and labels; every contestant is a process that keeps the graph, begins with the same weights, and
trains the same batches of seeds by Adam. The contestants take turns of one epoch, and every epoch ends when the device is done. "s / epoch" is
the median over the turns. The libraries pick different numbers of edges: PyG samples a vertex once, and not again for every hop.

On a device the graph lies in the host's memory, and other contestants take their turns. What fails is named on the page, and the others go on.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bench.contest import Contestant, take_turns
from bench.minibatches.page import EXPLAINED, Measured, summary_of, tables_of
from bench.minibatches.tasks import TASKS, Task, write_graph
from bench.pages import command_line, parser_of
from bench.timing import where
from bench.workers import ROOT
from sagann.errors import InputError
from sagann.runtime.places import device_named
from sagann.runtime.processor import num_cores


def main(given: Sequence[str] | None = None) -> int:
    """Print the page; 0 where every contestant of sagann ran."""
    options = parsed(given)
    try:
        device = device_named(options.device)
    except InputError as error:
        sys.stderr.write(f"There is nothing to measure. {error}\n")
        return 1
    print(f"# Sampled epochs\n\n`{command_line('bench.minibatches', given)}`; {where(device)}\n")
    print(
        f"R-MAT, {int(options.vertices):,} vertices, {int(options.edges):,} edges, {options.features} features; "
        f"{int(options.seeds):,} seeds in batches of {options.batch_size}; hidden {options.hidden}; "
        f"{options.threads} threads; {options.rounds} rounds.\n\n{EXPLAINED}"
    )
    measured = []
    with TemporaryDirectory(prefix="sagann_minibatches_", dir=options.work) as folder:
        write_graph(Path(folder), options)
        for task in options.tasks:
            measured.append(measure(task, contestants_of(options), Path(folder), options))
            print("\n".join(tables_of(measured[-1])), flush=True)
    print("\n".join(line for each in measured for line in summary_of(each)))
    return int(any(name.startswith("sagann") for each in measured for name in each.failures))


def contestants_of(options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """For each contestant's name, its options for the worker. The first one of sagann is what it does by default."""
    found: dict[str, dict[str, Any]] = {}
    if options.device == "cpu":
        ahead = {"calling": 0, "ahead": 4}
        # With more cores than two, batches are made ahead by default.
        for name in sorted(ahead, key=ahead.__getitem__, reverse=num_cores() > 2):
            found[f"sagann:{name}"] = {"ahead": ahead[name], "sampling_threads": 1}
        found |= {f"sagann:hot {hot}": {"hot": hot, "ahead": 4, "sampling_threads": 1} for hot in options.hot}
        for workers in (0, 2):
            found["pyg:workers" if workers else "pyg:loader"] = {
                "workers": workers,
                "is_resident": False,
            }
        names = ("dataloading", "workers", "graphbolt") if options.dgl is not None else ()
        return found | {f"dgl:{name}": {"variant": name} for name in names}
    places = [(None, threads) for threads in options.sampling_threads] + [
        (edges, 1) for edges in options.device_edges
    ]
    for edges, threads in places:
        for hot in (None, *options.hot):
            name = "copied" if hot is None else f"hot {hot}"
            name += "" if threads == 1 else f", {threads} threads"
            name += "" if edges is None else f", edges {edges}"
            # Each thread that samples has two batches on their way, so that its stage and the next one both have work.
            ahead = max(4, 2 * threads)
            found[f"sagann:{name}"] = {"hot": hot, "edges": edges, "sampling_threads": threads, "ahead": ahead}
    for workers in options.workers:
        for is_resident in (False, True):
            name = f"{workers} workers{', resident' if is_resident else ''}"
            found[f"pyg:{name}"] = {"workers": workers, "is_resident": is_resident}
    return found


def measure(
    task: Task, contestants: Mapping[str, dict[str, Any]], folder: Path, options: argparse.Namespace
) -> Measured:
    """Epochs of every contestant in alternation, after one that is not counted; then sagann's stages, each alone."""
    commands = {
        "sagann": (sys.executable, "-m", "bench.minibatches.sagann_worker"),
        "pyg": (sys.executable, "-m", "bench.minibatches.pyg_worker"),
        "dgl": (options.dgl, str(ROOT / "bench/standalone/dgl_minibatches.py")),
    }
    specification = task.specification(options, folder)
    turns = take_turns(
        [Contestant(name=name, command=commands[name.partition(":")[0]]) for name in contestants],
        lambda contestant: {"variant": contestant.variant, **specification, **contestants[contestant.name]},
        first={"epoch": 1},
        request=lambda *_: {"epoch": 1},
        rounds=options.rounds,
        last={
            name: {"alone": 1}
            for name, each in contestants.items()
            if each.get("sampling_threads") == 1 and each["ahead"]
        },
    )
    failures = {
        name: end.last_line if end.outcome == "unsupported" else f"{end.outcome}: {end.last_line}"
        for name, end in turns.failures.items()
    }
    return Measured(caption=task.caption, turns=turns.answers, alone=turns.last, failures=failures)


def parsed(given: Sequence[str] | None) -> argparse.Namespace:
    """The options of a command line."""
    parser = parser_of(
        __doc__,
        vertices=1000000.0,
        edges=20000000.0,
        features=128,
        hidden=256,
        batch_size=1024,
        rounds=5,
        threads=None,
        work=None,
    )
    parser.add_argument("--seeds", type=float, default=16_384, help="training vertices")
    parser.add_argument("--dgl", metavar="PYTHON", help="Python of an environment with DGL, for the processor")
    parser.add_argument(
        "--tasks", type=Task.named, nargs="+", default=TASKS, help="models and fanouts, such as sage:15,10,5"
    )
    parser.add_argument("--device", default="cpu", help="train there: cpu, cuda or cuda:N")
    group = parser.add_argument_group("on a device")
    group.add_argument("--hot", nargs="*", help="sizes of sagann's hot tier; 0%% 10%% 100%% by default")
    group.add_argument("--sampling-threads", type=int, nargs="+", default=[1, 4], help="threads of sagann's stages")
    group.add_argument(
        "--device-edges",
        nargs="*",
        default=[],
        help="parts of the edges in the device's memory, such as 0%% 100%%: the device samples too",
    )
    group.add_argument("--workers", type=int, nargs="*", default=[4, 8, 16], help="processes of PyG's loader")
    options = parser.parse_args(given)
    on_processor = options.device == "cpu"
    options.threads = options.threads or (2 if on_processor else num_cores())
    if options.hot is None:
        options.hot = [] if on_processor else ["0%", "10%", "100%"]
    return options


if __name__ == "__main__":
    raise SystemExit(main())
