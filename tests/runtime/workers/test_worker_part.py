"""Losses, gradients and logits of 2 and 3 workers, in memory and streamed, equal those of one process in memory."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path

import pytest
import torch

from tests.runtime.workers.exactness_driver import RUNS, Numbers, cases, cases_of, require_same
from tests.runtime.workers.processes import run_driver
from tests.shared import SharedFolder

pytestmark = [pytest.mark.distributed, pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def folder(shared_folder: SharedFolder) -> Path:
    return shared_folder("exactness", partial(run_driver, "exactness_driver"))


@pytest.fixture(scope="module")
def numbers(folder: Path) -> dict[str, dict[str, Numbers]]:
    return {file.stem: torch.load(file) for file in sorted(folder.glob("*.pt"))}


@pytest.mark.parametrize("name", [case.name for case in cases()])
def test_several_workers_compute_what_one_process_computes(
    numbers: dict[str, dict[str, Numbers]], name: str
) -> None:
    first_of: dict[str, Numbers] = {}
    for run, (size, _, _) in RUNS.items():
        for rank in range(size) if name in [case.name for case in cases_of(run)] else []:
            found = dict(numbers[f"{run}, worker {rank}"][name])
            found.pop("intervals", None)
            require_same(found, numbers["alone"][name], 1e-11, f"{run}, worker {rank}")
            # The same number of workers gives the same bits: at each of them, and in every run.
            first = first_of.setdefault(run.split(",")[0], found)
            assert all(torch.equal(value, first[key]) for key, value in found.items()), (run, rank)
    assert "2" in first_of


def test_workers_have_numbers_of_intervals_of_their_own(numbers: dict[str, dict[str, Numbers]]) -> None:
    of_workers = [numbers[f"3 streamed, first, worker {rank}"] for rank in range(3)]
    counts = [[int(found[name]["intervals"]) for found in of_workers] for name in of_workers[0]]
    assert max(map(max, counts)) > 2
    assert any(len(set(each)) > 1 for each in counts), counts


def test_a_budget_that_is_too_small_at_one_worker_ends_all(folder: Path) -> None:
    first, second = ((folder / f"refused-{rank}.txt").read_text() for rank in range(2))
    assert "the memory budget cannot be met: 100 bytes" in second
    assert first.startswith(
        "worker 1 has failed while cutting the graph: the memory budget cannot be met: 100 bytes"
    )
    assert "(in worker 0 of 2)" in first


def test_a_worker_that_is_killed_ends_the_others_and_leaves_nothing(folder: Path) -> None:
    assert (folder / "codes.txt").read_text() == "1 -9"
    text = (folder / "died-0.txt").read_text()
    assert text.startswith("worker 1 is gone: its connection was lost")
    assert re.search("while (adding (losses|gradients)|exchanging gradients of the halo)", text)
    assert not (folder / "run").exists()
    assert not (folder / "spill").exists()
