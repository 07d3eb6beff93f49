"""Who trains a 2-layer GCN on a dataset folder, and how: sagann by its command line, its peers by scripts."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.epochs.graphs import SEED, write_weights
from bench.size.limit import Ended, Limit, drop_cached
from bench.workers import ROOT, THREAD_VARIABLES, free_port
from sagann.nn import ModelConfig
from sagann.storage import open_graph

UNLIMITED = 1 << 50
"Bytes: a limit that nobody hits, for looking at what is held."


@dataclass(frozen=True, kw_only=True)
class Task:
    """What everybody does."""

    dataset: Path
    "Folder of the graph."
    work: Path
    "Folder for what is made on the way."
    hidden: int
    "Width of the hidden layer."
    epochs: int
    "That are trained."
    lr: float
    "Of Adam."
    threads: int
    "Of each process."
    memory: str
    "sagann's budget."
    limit_bytes: int
    "Of each process's control group."
    workers: int
    "Processes of sagann, each with a part of the graph."


@dataclass(frozen=True, kw_only=True)
class Result:
    """What became of a contestant."""

    name: str
    "Who."
    ended: Ended
    "How its process ended."
    losses: tuple[float, ...]
    "Before each step, of the epochs that ended."
    epoch_s: tuple[float, ...]
    "Seconds of each."
    got_to: str
    "How far it came."


def run_sagann(task: Task) -> list[Result]:
    """``sagann train`` within its budget, by one process or by several workers: what became of each."""
    run = task.work / "run"
    # The losses of a run before are not this one's.
    shutil.rmtree(run, ignore_errors=True)
    options = {
        "--epochs": task.epochs,
        "--lr": task.lr,
        "--seed": SEED,
        "--weight-decay": 0,
        "--eval-every": task.epochs,
        "--out": run,
        "--spill": task.work / "spill",
    }
    words = ["train", *_asked(task), *(str(word) for option in options.items() for word in option), "--overwrite"]
    address = {"WORLD_SIZE": task.workers, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
    places = [{"RANK": rank, **address} if task.workers > 1 else {} for rank in range(task.workers)]
    ended = _run(task, [sys.executable, "-m", "sagann", *words], *places)
    history = run / "metrics.jsonl"
    epochs = [json.loads(line) for line in history.read_text().splitlines()] if history.exists() else []
    names = ["sagann"] if task.workers == 1 else [f"worker {rank}" for rank in range(task.workers)]
    return [_result(name, each, epochs, bool(epochs)) for name, each in zip(names, ended, strict=True)]


def run_plan(task: Task, machine: Path | None) -> Ended:
    """``sagann plan`` of the same epoch, with a machine's rates or this one's."""
    rates = [] if machine is None else ["--machine", str(machine)]
    (ended,) = _run(
        task, [sys.executable, "-m", "sagann", "plan", *_asked(task), "--spill", str(task.work), *rates]
    )
    return ended


def run_peer(task: Task, name: str, python: str | None) -> Result:
    """PyG in one of its forms, or DGL by its own Python."""
    system, _, variant = name.partition(":")
    script = (
        [str(ROOT / "bench" / "standalone" / "dgl_large.py")]
        if system == "dgl"
        else ["-m", "bench.size.pyg_worker"]
    )
    asked: dict[str, Any] = {
        "dataset": str(task.dataset.absolute()),
        "weights": str(task.work.absolute()),
        "variant": variant,
        "epochs": task.epochs,
        "lr": task.lr,
        "threads": task.threads,
    }
    (ended,) = _run(task, [python or sys.executable, *script, json.dumps(asked)])
    said = [json.loads(line) for line in ended.output.splitlines() if line.startswith("{")]
    return _result(name, ended, [each for each in said if "loss" in each], bool(said))


def write_first_weights(task: Task) -> None:
    """The weights that ``sagann train`` draws, for the others."""
    graph = open_graph(task.dataset)
    config = ModelConfig(model="gcn", layers=2, hidden=task.hidden, dropout=0.0)
    task.work.mkdir(parents=True, exist_ok=True)
    write_weights(task.work, [config], graph.num_features, graph.num_classes)


def _asked(task: Task) -> list[str]:
    model = ["--model", "gcn", "--layers", "2", "--hidden", str(task.hidden), "--dropout", "0"]
    return ["--data", str(task.dataset), *model, "--memory", task.memory]


def _run(task: Task, command: list[str], *places: Mapping[str, object]) -> list[Ended]:
    """Run a command once for each place, all at the same time; a place is more variables of the environment."""
    environment = dict.fromkeys(THREAD_VARIABLES, str(task.threads)) | {"PYTHONPATH": str(ROOT)}
    # Every process has a group of its own, and finds no file in the cache that another group pays for.
    drop_cached(task.dataset)
    places = places or ({},)
    with ExitStack() as stack:
        threads = stack.enter_context(ThreadPoolExecutor(len(places)))
        limits = [
            stack.enter_context(Limit(f"sagann-size-{task.work.name}-{number}", task.limit_bytes))
            for number in range(len(places))
        ]
        started = [
            threads.submit(limit.run, command, {**environment, **{name: str(each) for name, each in place.items()}})
            for limit, place in zip(limits, places, strict=True)
        ]
        return [each.result() for each in started]


def _result(name: str, ended: Ended, epochs: Sequence[Mapping[str, float]], loaded: bool) -> Result:
    return Result(
        name=name,
        ended=ended,
        losses=tuple(epoch["loss"] for epoch in epochs),
        epoch_s=tuple(epoch["epoch_s"] for epoch in epochs),
        got_to=f"{len(epochs)} epochs" if epochs else "the first epoch" if loaded else "loading",
    )
