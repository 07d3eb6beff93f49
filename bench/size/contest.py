"""Who trains a 2-layer GCN on a dataset folder, and how: sagann by its command line, its peers by workers."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.epochs.graphs import SEED, write_weights
from bench.size.limit import Ended, Limit, drop_cached
from bench.workers import ROOT, THREAD_VARIABLES
from sagann.nn import ModelConfig
from sagann.storage import dataset_info

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
    "Of the processes' control group."


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


def run_sagann(task: Task) -> Result:
    """``sagann train`` within its budget."""
    run = task.work / "run"
    ended = _run(task, [sys.executable, "-m", "sagann", *train_command(task, run)])
    return result_of("sagann", run, ended)


def train_command(task: Task, run: Path) -> list[str]:
    """The words after ``sagann`` that train into a run folder."""
    options = {
        "--epochs": task.epochs,
        "--lr": task.lr,
        "--seed": SEED,
        "--weight-decay": 0,
        "--eval-every": task.epochs,
        "--out": run,
        "--spill": task.work / "spill",
    }
    return ["train", *_asked(task), *(str(word) for option in options.items() for word in option), "--overwrite"]


def result_of(name: str, run: Path, ended: Ended) -> Result:
    """What became of a run, from its folder."""
    history = run / "metrics.jsonl"
    epochs = [json.loads(line) for line in history.read_text().splitlines()] if history.exists() else []
    return Result(
        name=name,
        ended=ended,
        losses=tuple(epoch["loss"] for epoch in epochs),
        epoch_s=tuple(epoch["epoch_s"] for epoch in epochs),
        got_to=_got_to(len(epochs), bool(epochs)),
    )


def run_plan(task: Task, machine: Path | None) -> Ended:
    """``sagann plan`` of the same epoch, with a machine's rates or this one's."""
    rates = [] if machine is None else ["--machine", str(machine)]
    return _run(task, [sys.executable, "-m", "sagann", "plan", *_asked(task), "--spill", str(task.work), *rates])


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
    ended = _run(task, [python or sys.executable, *script, json.dumps(asked)])
    said = [json.loads(line) for line in ended.output.splitlines() if line.startswith("{")]
    epochs = [each for each in said if "loss" in each]
    return Result(
        name=name,
        ended=ended,
        losses=tuple(epoch["loss"] for epoch in epochs),
        epoch_s=tuple(epoch["epoch_s"] for epoch in epochs),
        got_to=_got_to(len(epochs), bool(said)),
    )


def write_first_weights(task: Task) -> None:
    """The weights that ``sagann train`` draws, for the others."""
    info = dataset_info(task.dataset)
    config = ModelConfig(model="gcn", layers=2, hidden=task.hidden, dropout=0.0)
    task.work.mkdir(parents=True, exist_ok=True)
    write_weights(task.work, [config], info["num_features"], info["num_classes"])


def _asked(task: Task) -> list[str]:
    model = ["--model", "gcn", "--layers", "2", "--hidden", str(task.hidden), "--dropout", "0"]
    return ["--data", str(task.dataset), *model, "--memory", task.memory]


def _run(task: Task, command: list[str]) -> Ended:
    environment = dict.fromkeys(THREAD_VARIABLES, str(task.threads)) | {"PYTHONPATH": str(ROOT)}
    # Every contestant has a group of its own, and finds no file in the cache that another group pays for.
    drop_cached(task.dataset)
    with Limit(f"sagann-size-{task.work.name}", task.limit_bytes) as limit:
        return limit.run(command, environment)


def _got_to(epochs: int, loaded: bool) -> str:
    if epochs:
        return f"{epochs} epochs"
    return "the first epoch" if loaded else "loading"
