"""Runs of two workers that are balanced by cost; run by test_balanced_runs.py as a program of its own.

python -m tests.train.balance_driver FOLDER

Seconds are those of a formula, so the same vertices move in every run.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

import torch

from sagann.errors import WorkerError
from sagann.graph import Graph, Topology, random_split
from sagann.nn import ModelConfig, build_model
from sagann.runtime.workers import Workers, move
from sagann.runtime.workers.stopwatch import Lap, Stopwatch
from sagann.train import TrainConfig, Trainer
from tests.plain import auto_dialect
from tests.runtime.workers.processes import join, run_workers, start_workers
from tests.train.runs import Heard

EPOCHS, SAVED = 14, 8
KILLED_CODES = [3, -signal.SIGKILL]


class Recorded(Stopwatch):
    """A stopwatch whose seconds are those of a part by a formula. The second worker takes three times as long."""

    trainer: Trainer

    def take(self) -> dict[str, Lap]:
        measured, part = super().take(), self.trainer.prepared.part
        edges_s, vertices_s = 0.01 * part.topology.num_edges, 0.02 * part.topology.num_dst
        factor = 3.0 if part.workers.rank else 1.0
        return {
            kind: Lap(row_bytes=lap.row_bytes, seconds=1e-6 + factor * (edges_s if lap.row_bytes else vertices_s))
            for kind, lap in measured.items()
        }


def graph() -> Graph:
    generator = torch.Generator().manual_seed(0)
    # The first vertices have most of the edges. A process that has generated an R-MAT graph cannot fork.
    dst = (400 * torch.rand(4000, generator=generator) ** 3).long()
    src = torch.randint(400, (4000,), generator=generator)
    found = Graph(
        topology=Topology.from_coo(src=src, dst=dst, num_src=400),
        features=torch.randn(400, 8, generator=generator, dtype=torch.float64),
        labels=torch.randint(3, (400,), generator=generator),
        num_classes=3,
    )
    return random_split(found, seed=0)


def trainer(
    workers: Workers | None, epochs: int, folder: Path | None = None, *, balance: str = "cost"
) -> tuple[Trainer, Heard]:
    torch.manual_seed(5)
    data, said = graph(), Heard()
    module = build_model(ModelConfig(model="gcn", hidden=8, dropout=0.5), data).double()
    if workers is not None:
        workers.balance, workers.stopwatch = balance, Recorded()
    config = TrainConfig(epochs=epochs, device="cpu", checkpoint_every=SAVED)
    found = Trainer(module, data, config, run_dir=folder, reporter=said, workers=workers)
    if workers is not None:
        workers.stopwatch.trainer = found
    return found, said


def train(workers: Workers | None, folder: Path, name: str, epochs: int = EPOCHS, *, resume: bool = False) -> None:
    """Train, and write the lines of the epochs, the weights and the messages."""
    run_dir = folder / name.partition(" ")[0] if workers is not None else None
    made, said = trainer(workers, epochs, run_dir)
    result = made.fit(resume=resume)
    found = {
        "history": [record.to_json() for record in result.history],
        "metrics": result.metrics,
        "weights": made.model.state_dict(),
        "predictions": made.predict(probabilities=True),
        "said": said.messages,
    }
    torch.save(found, folder / f"{name}, {0 if workers is None else workers.rank}.pt")


def die_in_a_move(workers: Workers, folder: Path) -> None:
    """The second worker is killed in the middle of the first move."""
    made, _ = trainer(workers, EPOCHS, folder / "killed")
    transfer, moves = workers.transfer, []

    def transfer_or_die(*arguments: object, **options: object) -> None:
        if move.DOING in arguments:
            moves.append(move.DOING)
            if workers.rank == 1 and len(moves) == 2:
                os.kill(os.getpid(), signal.SIGKILL)
                time.sleep(60)
        transfer(*arguments, **options)

    workers.transfer = transfer_or_die
    since_s = time.perf_counter()
    try:
        made.fit()
    except WorkerError as error:
        found = {"text": str(error), "seconds": time.perf_counter() - since_s}
        (folder / "killed.json").write_text(json.dumps(found))
        sys.stdout.flush()
        os._exit(3)


@auto_dialect("naive")
def main(folder: Path) -> None:
    torch.set_num_threads(1)
    # What is compiled here, every fork has.
    train(None, folder, "alone")
    run_workers(lambda workers: train(workers, folder, "first"), 2)
    run_workers(lambda workers: train(workers, folder, "again"), 2)
    run_workers(lambda workers: train(workers, folder, "halves", SAVED), 2)
    run_workers(lambda workers: train(workers, folder, "halves resumed", resume=True), 2)
    codes = join(start_workers(lambda workers: die_in_a_move(workers, folder), 2))
    assert codes == KILLED_CODES, codes


if __name__ == "__main__":
    main(Path(sys.argv[1]))
