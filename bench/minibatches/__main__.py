"""Sampled epochs in memory, against PyG and DGL: ``python -m bench.minibatches --dgl PYTHON``.

The graph is R-MAT with random features and labels; every contestant is a process that keeps the graph, begins with the same weights, and
trains the same batches of seeds by Adam. The contestants take turns of one epoch. "s / epoch" is the median over the turns. The
libraries pick different numbers of edges: PyG samples a vertex once, and not again for every hop.

The second table of each task has sagann's stages: seconds of an epoch on the calling thread, stage by stage, and the epoch with the pipeline.

With ``--device cuda`` models are trained on a device, and other contestants take their turns: see :mod:`bench.minibatches.on_device`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from bench.contest import Contestant, take_turns
from bench.minibatches import on_device
from bench.minibatches.tasks import TASKS, described, specification_of, task_named, write_graph, write_task
from bench.workers import ROOT
from sagann.runtime.processor import num_cores

Turns = Mapping[str, Sequence[Mapping[str, Any]]]
"For each contestant, what its worker said of each epoch."


def main(given: Sequence[str] | None = None) -> int:
    """Print two tables for each task; the exit status."""
    options = parsed(given)
    if options.device is not None:
        return on_device.main(options, sys.argv[1:] if given is None else given)
    with TemporaryDirectory(prefix="sagann_minibatches_", dir=options.work) as name:
        folder = Path(name)
        write_graph(folder, options)
        print(f"{described(options)}\n")
        for task in options.tasks:
            write_task(folder, task, options)
            print(f"{task.caption}:\n")
            turns = measure(contestants_of(options.dgl), specification_of(task, options, folder), options.rounds)
            print("\n".join([*rows_of(turns), "", *stages_of(turns), ""]), flush=True)
    return 0


def parsed(given: Sequence[str] | None) -> argparse.Namespace:
    """The options of a command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vertices", type=float, default=1e6)
    parser.add_argument("--edges", type=float, default=20e6)
    parser.add_argument("--features", type=int, default=128)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--seeds", type=float, default=16_384, help="training vertices")
    parser.add_argument("--batch-size", type=int, default=1024, help="seeds of a batch")
    parser.add_argument("--rounds", type=int, default=5, help="epochs of every contestant")
    parser.add_argument(
        "--threads", type=int, help="threads of every contestant; 2, or with --device those of all cores"
    )
    parser.add_argument("--dgl", help="Python of an environment with DGL")
    parser.add_argument(
        "--work", type=Path, help="folder for the graph; the system's for temporary files by default"
    )
    parser.add_argument(
        "--tasks", type=task_named, nargs="+", default=TASKS, help="models and fanouts, such as sage:15,10,5"
    )
    on_device.add_options(parser)
    options = parser.parse_args(given)
    if options.threads is None:
        options.threads = 2 if options.device is None else num_cores()
    return options


def contestants_of(dgl: str | None) -> list[Contestant]:
    """Everyone who runs."""
    commands: dict[str, tuple[str, ...]] = {
        "sagann": (sys.executable, "-m", "bench.minibatches.sagann_worker"),
        "pyg": (sys.executable, "-m", "bench.minibatches.pyg_worker"),
    }
    # The first one is what sagann does by default with as many cores.
    sagann = ("ahead", "calling") if num_cores() > 2 else ("calling", "ahead")
    variants = {"sagann": sagann, "pyg": ("loader", "workers")}
    if dgl is not None:
        commands["dgl"] = (dgl, str(ROOT / "bench/standalone/dgl_minibatches.py"))
        variants["dgl"] = ("dataloading", "workers", "graphbolt")
    return [
        Contestant(name=f"{system}:{variant}", command=commands[system])
        for system in commands
        for variant in variants[system]
    ]


def measure(
    contestants: Sequence[Contestant], specification: Mapping[str, Any], rounds: int
) -> dict[str, list[dict[str, Any]]]:
    """Epochs of every contestant that lives through them, in alternation."""
    epoch = {"epoch": 1}
    return take_turns(
        contestants,
        lambda contestant: {**specification, "variant": contestant.variant},
        first=epoch,
        request=epoch,
        rounds=rounds,
    )


def rows_of(turns: Turns) -> list[str]:
    """A row for each contestant. Ratios are to sagann's first variant, the default one."""
    seconds = {name: [turn["seconds"] for turn in each] for name, each in turns.items()}
    ours = next((each for name, each in seconds.items() if name.startswith("sagann")), None)
    rows = ["| contestant | s / epoch | edges / epoch | loss | it / sagann |", "|---|--:|--:|--:|--:|"]
    for name, each in turns.items():
        ratio = median(b / a for a, b in zip(ours, seconds[name], strict=True)) if ours else float("nan")
        edges = median(turn["edges"] for turn in each)
        row = [name, f"{median(seconds[name]):.2f}", f"{edges:,.0f}", f"{each[-1]['loss']:.3f}", f"{ratio:.2f}"]
        rows.append(f"| {' | '.join(row)} |")
    return rows


def stages_of(turns: Turns) -> list[str]:
    """Seconds of each of sagann's stages alone, and of the epoch in which they overlap."""
    alone, together = turns.get("sagann:calling"), turns.get("sagann:ahead")
    if not alone or not together:
        return []
    stages = {name: median(turn["stages"][name] for turn in alone) for name in alone[0]["stages"]}
    stages["train"] = median(turn["step_s"] for turn in alone)
    epoch_s = median(turn["seconds"] for turn in together)
    names = [*stages, "epoch", "epoch / slowest stage"]
    values = [
        *(f"{value:.2f}" for value in stages.values()),
        f"{epoch_s:.2f}",
        f"{epoch_s / max(stages.values()):.2f}",
    ]
    return [f"| {' | '.join(names)} |", "|" + "--:|" * len(names), f"| {' | '.join(values)} |"]


if __name__ == "__main__":
    raise SystemExit(main())
