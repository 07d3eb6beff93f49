"""Sampled epochs against PyG and DGL: ``python -m bench.minibatches --dgl PYTHON``, and on a device ``--device cuda``. Prints a page.

The graph is R-MAT with random features and labels; every contestant is a process that keeps the graph, begins with the same weights, and
trains the same batches of seeds by Adam. The contestants take turns of one epoch, and every epoch ends when the device is done. "s / epoch" is
the median over the turns. The libraries pick different numbers of edges: PyG samples a vertex once, and not again for every hop.

On a device the graph lies in the host's memory, and other contestants take their turns. The page names contestants that fail; the others go on.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from bench.contest import Turns, take_turns, variant_of
from bench.epochs.graphs import power_law, specification_of, write_graph, write_weights
from bench.epochs.sagann_worker import config_of
from bench.pages import command_line, head, parser_of, row
from bench.timing import device_to_measure, median_ratio, where
from bench.workers import ROOT
from sagann.runtime.processor import num_cores

EXPLAINED = """\
Contestants:

- `calling`: each batch is made in the training step. `ahead`: four batches are made ahead of it. `loader`: PyG samples on the calling thread.
- `copied`: features lie in the host's memory. The processor gathers those of a batch, and they are copied with the batch. This is the default
  of `sagann.MiniBatches(device="cuda")`.
- `hot 10%`: a `DeviceFeatures` keeps the 10% of the rows with the highest score `vip` on the device. The device reads the others in place, from
  pinned memory of the host.
- `edges 100%`: the device samples, with so much of the edges in its memory; it reads the others in place. Else the processor samples.
- `4 threads`: so many threads sample, and so many load features; 1 by default.
- `pyg:8 workers`: a `NeighborLoader` with so many processes, which stay between epochs. For a device they pin memory, and batches are copied with
  `non_blocking=True`. PyG samples a vertex once, and not again for every hop, which gives fewer edges.
- `resident`: all features lie on the device, which takes the rows of each batch.

"it / sagann" is the median over rounds of a contestant over sagann's first one, its default, in the same round. *Alone* lists the
seconds per epoch of each of sagann's stages, run separately on one thread until the device is done; `calls` is the part of `train` until the host
has queued the step. The bottleneck is the stage with the most seconds.
"""
NUM_CLASSES = 40


def main(given: Sequence[str] | None = None) -> int:
    options = parsed(given)
    device = device_to_measure(options.device)
    print(f"# Sampled epochs\n\n`{command_line('bench.minibatches', given)}`; {where(device)}\n")
    print(
        f"R-MAT, {int(options.vertices):,} vertices, {int(options.edges):,} edges, {options.features} features; "
        f"{int(options.seeds):,} seeds in batches of {options.batch_size}; hidden {options.hidden}; "
        f"{options.threads} threads; {options.rounds} rounds.\n\n{EXPLAINED}"
    )
    failed = set[str]()
    with TemporaryDirectory(prefix="sagann_minibatches_", dir=options.work) as folder:
        size = int(options.vertices), int(options.edges), options.features
        write_graph(Path(folder), power_law(*size, NUM_CLASSES, train=int(options.seeds)))
        for task in options.tasks:
            model, _, fanouts = task.partition(":")
            caption = f"{model}, fanouts {', '.join(fanouts.split(','))}"
            turns = measure(model, [int(each) for each in fanouts.split(",")], folder, options)
            print("\n".join(tables_of(caption, turns)), flush=True)
            failed |= turns.failures.keys()
    return int(any(name.startswith("sagann") for name in failed))


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
            found["pyg:workers" if workers else "pyg:loader"] = {"workers": workers, "is_resident": False}
        names = ("dataloading", "workers", "graphbolt") if options.dgl is not None else ()
        return found | {f"dgl:{name}": {"variant": name} for name in names}
    places = [(None, threads) for threads in options.sampling_threads]
    for edges, threads in [*places, *((edges, 1) for edges in options.device_edges)]:
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


def measure(model: str, fanouts: list[int], folder: str, options: argparse.Namespace) -> Turns:
    """Epochs of every contestant in alternation, after one that is not counted; then sagann's stages, each alone."""
    commands = {
        "sagann": (sys.executable, "-m", "bench.minibatches.sagann_worker"),
        "pyg": (sys.executable, "-m", "bench.minibatches.pyg_worker"),
        "dgl": (options.dgl, str(ROOT / "bench/standalone/dgl_minibatches.py")),
    }
    told = specification_of(model, layers=len(fanouts), fanouts=fanouts, folder=folder)
    told |= {name: getattr(options, name) for name in ("hidden", "batch_size", "threads", "device")}
    write_weights(Path(folder), [config_of(told)], options.features, NUM_CLASSES)
    contestants = contestants_of(options)
    staged = [name for name, each in contestants.items() if each.get("sampling_threads") == 1 and each["ahead"]]
    return take_turns(
        {name: commands[name.partition(":")[0]] for name in contestants},
        lambda name: {**told, "variant": variant_of(name), **contestants[name]},
        first={"epoch": 1},
        request=lambda *_: {"epoch": 1},
        rounds=options.rounds,
        last={name: {"alone": 1} for name in staged},
    )


def seconds_of(turns: Turns) -> dict[str, list[float]]:
    return {name: [turn["seconds"] for turn in each] for name, each in turns.answers.items()}


def tables_of(caption: str, turns: Turns) -> Iterator[str]:
    """All tables of a task, and what did not run."""
    yield from (f"{caption}:", "", *epoch_rows(turns), "")
    if turns.last:
        yield from ("Alone:", "", *alone_rows(turns), "")
    names: dict[str, list[str]] = {}
    for name, end in turns.failures.items():
        why = end.last_line if end.outcome == "unsupported" else f"{end.outcome}: {end.last_line}"
        names.setdefault(why, []).append(f"`{name}`")
    if names:
        yield from (*(f"- {', '.join(each)} did not run: {why}." for why, each in names.items()), "")


def epoch_rows(turns: Turns) -> Iterator[str]:
    seconds = seconds_of(turns)
    first = next((name for name in seconds if name.startswith("sagann")), None)
    yield head(["contestant", "s / epoch", "from", "to", "edges / epoch", "loss", "it / sagann"])
    for name, own in seconds.items():
        answers = turns.answers[name]
        ratio = "-" if first is None else f"{median_ratio(own, seconds[first]):.2f}"
        cells = [name, *(f"{value:.3f}" for value in (median(own), min(own), max(own)))]
        yield row(
            [*cells, f"{median(each['edges'] for each in answers):,.0f}", f"{answers[-1]['loss']:.3f}", ratio]
        )


def alone_rows(turns: Turns) -> Iterator[str]:
    """Seconds of stages, each by itself, with the slowest one."""
    names = [name for name in next(iter(turns.last.values())) if name not in ("calls", "train")]
    yield head(["contestant", *names, "train", "calls", "bottleneck", "s / epoch", "epoch / slowest"])
    for name, seconds in turns.last.items():
        stages = {stage: value for stage, value in seconds.items() if stage != "calls"}
        slowest = max(stages, key=stages.__getitem__)
        epoch_s = median(seconds_of(turns)[name])
        cells = [name, *(f"{seconds[stage]:.3f}" for stage in (*names, "train", "calls"))]
        yield row([*cells, slowest, f"{epoch_s:.3f}", f"{epoch_s / stages[slowest]:.2f}"])


def parsed(given: Sequence[str] | None) -> argparse.Namespace:
    options = parser_of(
        __doc__,
        {"vertices": 1e6, "edges": 2e7, "features": 128, "hidden": 256, "batch_size": 1024}
        | {"rounds": 5, "threads": None, "work": None, "dgl": None, "device": "cpu"},
        seeds=(16_384.0, "training vertices"),
        tasks=(["sage:25,10", "gat:25,10", "sage:15,10,5"], "models and fanouts"),
        hot=([], "sizes of sagann's hot tier; 0%% 10%% 100%% on a device", str),
        sampling_threads=([1, 4], "on a device: threads of sagann's stages"),
        device_edges=([], "on a device: parts of the edges in its memory, such as 0%% 100%%: it samples too", str),
        workers=([4, 8, 16], "on a device: processes of PyG's loader"),
    ).parse_args(given)
    on_processor = options.device == "cpu"
    options.threads = options.threads or (2 if on_processor else num_cores())
    options.hot = options.hot or ([] if on_processor else ["0%", "10%", "100%"])
    return options


if __name__ == "__main__":
    raise SystemExit(main())
