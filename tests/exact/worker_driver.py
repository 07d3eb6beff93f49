"""The numbers of several workers, for test_exact.py: a program of its own, which forks them once it has imported everything.

python -m tests.exact.worker_driver FOLDER WAY EVERY
python -m tests.exact.worker_driver FOLDER batches SIZE
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch

from sagann.runtime.workers import Workers
from tests.exact.cases import BATCHES, GRAPHS, MODELS, MODES, Case, numbers_of, numbers_of_batches, why_not
from tests.runtime.workers.processes import run_workers

SIZES = {"2 workers": 2, "3 workers": 3, "2 streamed workers": 2, "3 sampled workers": 3}
"Numbers of workers of each way."
_BUDGET = "64KiB"


def cases(way: str, every: int) -> list[Case]:
    """Every model on one of ``every`` so many graphs, the modes in turn; in the other mode where numbers differ in the one."""
    modes = list(MODES)
    found = []
    for first, model in enumerate(MODELS):
        for second, graph in enumerate(GRAPHS):
            if (first + second + SIZES[way]) % every == 0:
                turn = (first + second) % 2
                both = [Case(way, model, graph, mode) for mode in (modes[turn], modes[1 - turn])]
                found += [case for case in both if why_not(case) is None][:1]
    return found


def of_batches(folder: Path, size: int) -> None:
    """Runs in batches by so many workers, each twice."""

    def work(workers: Workers) -> None:
        found = {name: [numbers_of_batches(name, workers) for _ in range(2)] for name in BATCHES}
        if workers.is_first:
            torch.save(found, folder / "batches.pt")

    run_workers(work, size)


def main(folder: Path, way: str, every: int) -> None:
    torch.set_num_threads(1)
    if way == "batches":
        of_batches(folder, every)
        return

    def work(workers: Workers) -> None:
        given: dict[str, Any] = {"memory": _BUDGET, "spill": str(folder)} if "streamed" in way else {}
        if "sampled" in way:
            given = {"sample": (-1, -1), "batch_size": 1000}
        found = {
            case: numbers_of(case.model, case.graph, case.mode, workers=workers, **given)
            for case in cases(way, every)
        }
        if workers.is_first:
            torch.save(found, folder / f"{way}.pt")

    run_workers(work, SIZES[way])


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
