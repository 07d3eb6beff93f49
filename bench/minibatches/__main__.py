"""Sampled epochs in memory, against PyG and DGL: ``python -m bench.minibatches --dgl PYTHON``.

The graph is R-MAT with random features and labels; every contestant is a process that keeps the graph, begins with the same weights, and
trains the same batches of seeds by Adam. The contestants take turns of one epoch. "s / epoch" is the median over the turns. The
libraries pick different numbers of edges: PyG samples a vertex once, and not again for every hop.

The second table of each task has sagann's stages: seconds of an epoch on the calling thread, stage by stage, and the epoch with the pipeline.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import torch

from bench.contest import Contestant
from bench.epochs.graphs import write_weights
from bench.standalone.stored import Stored, write_stored
from bench.workers import ROOT, Worker, WorkerEndedError
from sagann.graph import Topology, rmat_edges
from sagann.nn import ModelConfig
from sagann.runtime.processor import num_cores

NUM_CLASSES = 40
REHEARSAL = (3000, 30_000)
"Vertices and edges of the graph on which workers compile and import."
Turns = Mapping[str, Sequence[Mapping[str, Any]]]
"For each contestant, what its worker said of each epoch."


@dataclass(frozen=True, kw_only=True)
class Task:
    """A model, and how it is sampled."""

    model: str
    "Name in the zoo."
    fanouts: tuple[int, ...]
    "Number of in-edges that a destination of each hop gives; the first one is that of the hop nearest the seeds."

    @property
    def name(self) -> str:
        """Name in the table and on the command line."""
        return f"{self.model}:{','.join(map(str, self.fanouts))}"


TASKS = (
    Task(model="sage", fanouts=(25, 10)),
    Task(model="gat", fanouts=(25, 10)),
    Task(model="sage", fanouts=(15, 10, 5)),
)


def main() -> None:
    """Print two tables for each task."""
    options = _options()
    with TemporaryDirectory(prefix="sagann_minibatches_", dir=options.work) as name:
        folder = Path(name)
        graph = generated(int(options.vertices), int(options.edges), options.features, int(options.seeds))
        write_stored(folder, graph)
        write_stored(folder / "rehearsal", generated(*REHEARSAL, options.features, options.batch_size))
        print(
            f"R-MAT, {int(options.vertices):,} vertices, {int(options.edges):,} edges, {options.features} features; "
            f"{int(options.seeds):,} seeds in batches of {options.batch_size}; hidden {options.hidden}; "
            f"{options.threads} threads; {options.rounds} rounds.\n"
        )
        for task in options.tasks:
            config = ModelConfig(
                model=task.model, layers=len(task.fanouts), hidden=options.hidden, dropout=0.0, encoder="none"
            )
            write_weights(folder, [config], options.features, NUM_CLASSES)
            print(f"{task.model}, fanouts {', '.join(map(str, task.fanouts))}:\n")
            turns = measure(contestants_of(options.dgl), specification_of(task, options, folder), options.rounds)
            print("\n".join([*rows_of(turns), "", *stages_of(turns), ""]), flush=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vertices", type=float, default=1e6)
    parser.add_argument("--edges", type=float, default=20e6)
    parser.add_argument("--features", type=int, default=128)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--seeds", type=float, default=16_384, help="training vertices")
    parser.add_argument("--batch-size", type=int, default=1024, help="seeds of a batch")
    parser.add_argument("--rounds", type=int, default=5, help="epochs of every contestant")
    parser.add_argument("--threads", type=int, default=2, help="threads of every contestant")
    parser.add_argument("--dgl", help="Python of an environment with DGL")
    parser.add_argument(
        "--work", type=Path, help="folder for the graph; the system's for temporary files by default"
    )
    parser.add_argument(
        "--tasks", type=task_named, nargs="+", default=TASKS, help="models and fanouts, such as sage:15,10,5"
    )
    return parser.parse_args()


def task_named(text: str) -> Task:
    """The task that MODEL:FANOUTS names."""
    model, _, fanouts = text.partition(":")
    return Task(model=model, fanouts=tuple(map(int, fanouts.split(","))))


def generated(num_vertices: int, num_edges: int, num_features: int, num_seeds: int) -> Stored:
    """A power-law graph with random features, labels and training vertices."""
    src, dst = rmat_edges(num_vertices, num_edges, seed=0)
    topology = Topology.from_coo(src=src, dst=dst, num_src=num_vertices)
    generator = torch.Generator().manual_seed(0)
    order = torch.randperm(num_vertices, generator=generator)
    return Stored(
        indptr=topology.indptr,
        src=topology.indices,
        features=torch.randn(num_vertices, num_features, generator=generator),
        labels=torch.randint(NUM_CLASSES, (num_vertices,), generator=generator),
        train=order[:num_seeds].sort().values,
        val=order[num_seeds : num_seeds + 1],
        num_classes=NUM_CLASSES,
    )


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


def specification_of(task: Task, options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """What a worker is told, besides its variant."""
    return {
        "model": task.model,
        "fanouts": list(task.fanouts),
        "layers": len(task.fanouts),
        "hidden": options.hidden,
        "heads": 8,
        "dropout": 0.0,
        "encoder": False,
        "batch_size": options.batch_size,
        "threads": options.threads,
        "folder": str(folder),
    }


def measure(
    contestants: Sequence[Contestant], specification: Mapping[str, Any], rounds: int
) -> dict[str, list[dict[str, Any]]]:
    """Epochs of every contestant that lives through them, in alternation."""
    turns: dict[str, list[dict[str, Any]]] = {}
    with ExitStack() as stack:
        workers: dict[str, Worker] = {}
        for each in contestants:
            try:
                worker = Worker(each.command, {**specification, "variant": each.variant})
                workers[each.name] = stack.enter_context(worker)
                workers[each.name].ask({"epoch": 1})
                turns[each.name] = []
            except WorkerEndedError as end:
                print(f"{each.name} does not run: {end}", file=sys.stderr)
        for _ in range(rounds):
            for name in turns:
                turns[name].append(workers[name].ask({"epoch": 1}))
    return turns


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
    main()
