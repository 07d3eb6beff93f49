"""Kills training processes at random instants, or while they write, and resumes them; run by test_kill.py as a program of its own.

It imports everything once, then forks: a training process costs a fork, so hundreds of kills take seconds. One
thread from the start, because a fork takes only the calling thread with it.

    python -m tests.train.kill_driver FOLDER NUM_KILLS SEED whole|sampled|tiered|graphs

A tiered run reads its features from a file, through a hot tier that looks ahead.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sagann.graph import Graph, Topology
from sagann.runtime.tiered import Traffic
from sagann.storage import load_graph, save_graph
from sagann.train import TrainConfig, Trainer, saver
from sagann.train.checkpoint import CheckpointFolder, Position
from tests.forks import fork
from tests.train.graphs_of import graph_model, rings_and_stars
from tests.train.runs import TwoLayers, community_graph, seeded_model

CHECKPOINT_EVERY = 2
EPOCHS = 16
AIMED = 4
"One kill of so many comes while a file is written, which few random instants hit."


class Model(nn.Module):
    """Dropout between two linear maps: random numbers in every epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 16)
        self.second = nn.Linear(16, 3)

    def forward(self, hops: Sequence[Topology], x: Tensor) -> Tensor:
        return self.second(F.dropout(torch.relu(self.first(x)), 0.5, self.training))


UNLIKE = {"epoch_s", "mteps", *Traffic().to_json()}
"Values of a line of metrics.jsonl that depend on interruptions: a hot tier begins anew in each process."
WHOLE = TrainConfig(
    epochs=EPOCHS,
    checkpoint_every=CHECKPOINT_EVERY,
    keep_checkpoints=2,
    device="cpu",
    scheduler="ReduceLROnPlateau",
    scheduler_options={"patience": 1},
    monitor="val/loss",
)
# Ten batches an epoch.
SAMPLED = replace(WHOLE, epochs=8, sample=(3, 2), batch_size=1, batches_ahead=4)
TIERED = replace(SAMPLED, hot="20%", cache="look-ahead")
GRAPHS = replace(WHOLE, epochs=8, batch_size=4, batches_ahead=4)
MODELS: dict[str, Callable[[], nn.Module]] = {
    "whole": lambda: seeded_model(Model),
    "sampled": lambda: seeded_model(TwoLayers),
    "tiered": lambda: seeded_model(TwoLayers),
    "graphs": graph_model,
}


def start(run_dir: Path, make: Callable[[], nn.Module], graph: Graph, config: TrainConfig) -> int:
    """Fork a process that trains in ``run_dir``, resuming where something is; its process id."""
    # Scores have run parallel kernels.
    pid = fork(idle=1)
    if pid:
        return pid
    try:
        trainer = Trainer(make(), graph, config, run_dir=run_dir)
        trainer.fit(resume=(run_dir / "run.json").exists())
        os._exit(0)
    # A fork must never return into the code of its parent; the exit code tells that it failed.
    except BaseException:  # noqa: BLE001
        traceback.print_exc()
        sys.stderr.flush()
    os._exit(1)


def wait(pid: int) -> bool:
    """Whether the process ended by itself; anything but success or our kill is an error."""
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL, f"signal {os.WTERMSIG(status)}"
        return False
    assert os.WEXITSTATUS(status) == 0, "a training process failed; its traceback is above"
    return True


def wait_until_written(run_dir: Path, pid: int) -> None:
    """Wait until the process writes a file of its run, or has ended."""
    while not _has_unfinished(run_dir):
        if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
            return


def _has_unfinished(run_dir: Path) -> bool:
    """Whether the run has a file that is being written, or was when its process ended."""
    try:
        return any(run_dir.glob("**/.tmp-*"))
    except FileNotFoundError:
        # An old checkpoint was removed while its folder was read.
        return False


def outcome(run_dir: Path) -> dict[str, Any]:
    """What must not depend on interruptions."""
    summary = json.loads((run_dir / "metrics.json").read_text())
    lines = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    return {
        "weights": (run_dir / "model.safetensors").read_bytes().hex(),
        "metrics": {name: summary[name] for name in ("train", "val", "test", "best_epoch", "epochs")},
        "history": [{name: value for name, value in line.items() if name not in UNLIKE} for line in lines],
    }


def other_threads(config: TrainConfig, draw: random.Random) -> TrainConfig:
    """The same run with other threads and batches ahead."""
    if config.batch_size is None:
        return config
    if config.sample is None:
        return replace(config, batches_ahead=draw.randint(0, 4))
    return replace(config, sampling_threads=draw.randint(1, 3), batches_ahead=draw.randint(0, 4))


def check_after_kill(run_dir: Path) -> tuple[int, Position]:
    """Epochs trained and the position saved; every checkpoint that has a name must be whole."""
    folder = CheckpointFolder(run_dir / "checkpoints", keep=2)
    positions = folder.positions()
    for position in positions:
        folder.read(position)
    saved = max(positions, default=Position(0))
    history = run_dir / "metrics.jsonl"
    trained = history.read_bytes().count(b"\n") if history.exists() else 0
    assert trained - saved.epoch <= CHECKPOINT_EVERY, f"{trained} epochs trained, {saved} saved"
    return trained, saved


def main(folder: Path, num_kills: int, seed: int, name: str) -> None:
    torch.set_num_threads(1)
    draw = random.Random(seed)
    graph = rings_and_stars(70) if name == "graphs" else community_graph(30)
    make = MODELS[name]
    config = {"whole": WHOLE, "sampled": SAMPLED, "tiered": TIERED, "graphs": GRAPHS}[name]
    if name == "tiered":
        save_graph(graph, folder / "graph")
        graph = load_graph(folder / "graph")
    # Warm: what the first run imports, every fork has.
    if config.batch_size is not None:
        # As if a batch took seconds: after three times the time that a checkpoint takes, the next one is written.
        saver._MOST_UNSAVED_S, saver._LEAST_SPACING = 0.0, 3
    Trainer(make(), graph, config, run_dir=folder / "warm").fit()
    started_s = time.perf_counter()
    # Tiers must not change a bit, so the uninterrupted run has none.
    assert wait(start(folder / "whole", make, graph, replace(config, hot=None)))
    run_s = time.perf_counter() - started_s
    expected = outcome(folder / "whole")

    kills, runs, lost, unsaved, within = 0, 0, 0, 0, 0
    while kills < num_kills:
        run_dir = folder / f"run-{runs}"
        runs += 1
        while True:
            pid = start(run_dir, make, graph, other_threads(config, draw))
            time.sleep(draw.uniform(0, 0.7 * run_s))
            if kills % AIMED == AIMED - 1:
                wait_until_written(run_dir, pid)
            os.kill(pid, signal.SIGKILL)
            if wait(pid):
                break
            kills += 1
            trained, saved = check_after_kill(run_dir)
            lost = max(lost, trained - saved.epoch)
            within += saved.batch > 0
            unsaved += _has_unfinished(run_dir)
        assert outcome(run_dir) == expected, f"{run_dir} differs from the uninterrupted run"
    report = {
        "kills": kills,
        "runs": runs,
        "most_epochs_lost": lost,
        "kills_while_writing": unsaved,
        "kills_with_a_part_of_an_epoch_saved": within,
        "run_s": run_s,
    }
    sys.stdout.write(json.dumps(report))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
