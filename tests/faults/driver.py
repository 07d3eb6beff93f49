"""Kills processes that train, and resumes them until they are done; run by test_kills.py as a program of its own.

Every other kill comes while files are written, which few random instants hit. The driver imports everything once, then forks, so that
a training process costs a fork. Everything goes through public names, but for the seconds between checkpoints.

    python -m tests.faults.driver FOLDER SOURCE NUM_KILLS SEED
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

import sagann
from sagann.nn import ModelConfig
from sagann.sampling import hold_out_links
from sagann.train import saver
from tests.forks import fork
from tests.graphs import labelled_graph
from tests.runtime.workers.processes import start_workers
from tests.train.graphs_of import rings_and_stars


@dataclass(frozen=True)
class Source:
    """What a run learns from."""

    graph: Callable[[], sagann.Graph]
    options: dict[str, Any]
    free: dict[str, list[Any]] = field(default_factory=dict)
    "Options that change no bit, with the values that a resumed run may have."
    workers: int = 1
    is_opened: bool = False
    "Whether the graph is opened from files."
    has_long_epochs: bool = False
    "Whether epochs are long enough to be resumed from within."


def _links() -> sagann.Graph:
    return hold_out_links(labelled_graph(), seed=0, negatives=5)


CHECKPOINT_EVERY = 2
_BATCHES: dict[str, list[Any]] = {"sampling_threads": [1, 2], "batches_ahead": [0, 3]}
SOURCES = {
    "whole graph": Source(labelled_graph, {}),
    "streamed": Source(labelled_graph, {"memory": "48KiB"}),
    "sampled": Source(labelled_graph, {"sample": (3, 2), "batch_size": 3}, _BATCHES, has_long_epochs=True),
    "hot tier": Source(
        labelled_graph,
        {"sample": (3, 2), "batch_size": 3},
        {"hot": [None, "20%"], "batches_ahead": [0, 3]},
        is_opened=True,
        has_long_epochs=True,
    ),
    "links": Source(_links, {"task": "link-prediction", "batch_size": 64}),
    "sampled links": Source(_links, {"task": "link-prediction", "sample": (3, 2), "batch_size": 64}, _BATCHES),
    "graphs": Source(rings_and_stars, {"batch_size": 4}, {"batches_ahead": [0, 3]}, has_long_epochs=True),
    "workers": Source(labelled_graph, {}, workers=2),
    "sampled by workers": Source(
        labelled_graph, {"sample": (3, 2), "batch_size": 3}, _BATCHES, workers=2, has_long_epochs=True
    ),
    "sampled links by workers": Source(
        _links, {"task": "link-prediction", "sample": (3, 2), "batch_size": 64}, _BATCHES, workers=2
    ),
    "graphs by workers": Source(rings_and_stars, {"batch_size": 4}, workers=2, has_long_epochs=True),
    "streamed workers": Source(labelled_graph, {"memory": "64KiB"}, workers=2),
    "links by workers": Source(_links, {"task": "link-prediction", "batch_size": 64}, workers=2),
}


def checkpoints(run_dir: Path) -> list[str]:
    """Names of the checkpoints of a run: epoch-000002.pt, or epoch-000002-batch-000001.pt within the third epoch."""
    return sorted(path.name for path in run_dir.glob("checkpoints/epoch-*"))


def is_writing(run_dir: Path) -> bool:
    """Whether a file of a run is being written, or was when its process ended."""
    with suppress(FileNotFoundError):
        return any(run_dir.glob("**/.tmp-*"))
    # A folder went while it was read.
    return False


def num_lost(run_dir: Path) -> int:
    """Epochs that a killed run has trained since its newest checkpoint."""
    history = run_dir / "metrics.jsonl"
    trained = history.read_bytes().count(b"\n") if history.exists() else 0
    return trained - max((int(name[6:12]) for name in checkpoints(run_dir)), default=0)


def outcome(trainer: sagann.Trainer, result: Any) -> dict[str, Any]:
    """What no interruption may change."""
    rows = [
        {name: row[name] for name in row if name in ("loss", "lr") or "/" in name} for row in trainer.history.rows()
    ]
    return {
        "weights": trainer.model.state_dict(),
        "metrics": result.metrics,
        "best": result.best_epoch,
        "rows": rows,
    }


def train(source: Source, graph: sagann.Graph, run_dir: Path, options: dict[str, Any], workers: Any) -> None:
    """Train from the newest checkpoint, or from the beginning; leave the outcome beside the run."""
    model = ModelConfig(model="sage", hidden=8, dropout=0.5)
    config = sagann.TrainConfig(epochs=8, checkpoint_every=CHECKPOINT_EVERY, device="cpu", seed=1, **options)
    trainer = sagann.Trainer(model, graph, config, run_dir=run_dir, progress=False, workers=workers)
    has_checkpoint = bool(checkpoints(run_dir))
    result = trainer.fit(resume=has_checkpoint, overwrite=not has_checkpoint)
    if workers is None or workers.is_first:
        torch.save(outcome(trainer, result), run_dir.with_suffix(".tmp"))
        run_dir.with_suffix(".tmp").rename(run_dir.with_suffix(".pt"))


def start(work: Callable[[Any], None], size: int) -> list[int]:
    """Fork the workers that train, or the one process; their process ids."""
    if size > 1:
        return start_workers(work, size, timeout_s=60)
    pid = fork(idle=1)
    if not pid:
        code = 1
        try:
            work(None)
            code = 0
        # A fork must never return into the code of its parent.
        except BaseException:  # noqa: BLE001
            traceback.print_exc()
        sys.stderr.flush()
        os._exit(code)
    return [pid]


def end(pids: list[int]) -> bool:
    """Kill the processes that still run; whether all had ended well before."""
    done = [os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None for pid in pids]
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
    assert all(code in (0, -signal.SIGKILL) for code in codes), f"exit codes {codes}; the traceback is above"
    return all(done) and not any(codes)


def main(folder: Path, name: str, num_kills: int, seed: int) -> None:
    torch.set_num_threads(1)
    source, draw = SOURCES[name], random.Random(seed)
    graph = source.graph()
    if source.is_opened:
        sagann.save_graph(graph, folder / "graph")
        graph = sagann.load_graph(folder / "graph")
    # As if a batch took seconds: checkpoints come within epochs, each after three times as long as the last one took.
    saver._MOST_UNSAVED_S, saver._LEAST_SPACING = 0.0, 3
    # What this run imports and compiles, every fork has.
    train(replace(source, workers=1), graph, folder / "warm", source.options, None)

    def run(run_dir: Path, **free: Any) -> list[int]:
        options = {**source.options, **free}
        return start(lambda workers: train(source, graph, run_dir, options, workers), source.workers)

    started_s = time.perf_counter()
    pids = run(folder / "whole")
    for pid in pids:
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert end(pids)
    run_s = time.perf_counter() - started_s
    expected = torch.load(folder / "whole.pt")
    kills, runs, resumed, torn, within, lost = 0, 0, 0, 0, 0, 0
    while kills < num_kills or not resumed or not torn or (source.has_long_epochs and not within):
        run_dir = folder / f"run-{runs}"
        runs += 1
        while True:
            resumed += bool(checkpoints(run_dir))
            pids = run(run_dir, **{option: draw.choice(values) for option, values in source.free.items()})
            limit_s = time.perf_counter() + (draw.uniform(0.1, 1.0) * run_s if kills < num_kills + runs else 240.0)
            while time.perf_counter() < limit_s or (kills % 2 and not is_writing(run_dir)):
                if all(os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) for pid in pids):
                    break
                time.sleep(0.002 if time.perf_counter() < limit_s else 0.0002)
            if end(pids):
                break
            kills += 1
            torn += is_writing(run_dir)
            within += any("batch" in checkpoint for checkpoint in checkpoints(run_dir))
            lost = max(lost, num_lost(run_dir))
        found = torch.load(run_dir.with_suffix(".pt"))
        for weight, right in expected["weights"].items():
            assert torch.equal(found["weights"][weight], right), f"{name}: {weight} differs after {kills} kills"
        for part in ("metrics", "best", "rows"):
            assert found[part] == expected[part], f"{name}: {part} differ after {kills} kills"
    report = {"kills": kills, "runs": runs, "resumed": resumed, "torn": torn, "within": within, "lost": lost}
    sys.stdout.write(json.dumps(report))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
