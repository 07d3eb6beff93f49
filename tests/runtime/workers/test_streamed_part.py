"""Streamed parts of two and three workers compute what one process computes in memory, each within a budget of its own."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import torch

from tests.runtime.workers.epochs import Numbers
from tests.runtime.workers.processes import run_driver
from tests.runtime.workers.streamed_driver import AGAIN, RUNS, cases
from tests.shared import SharedFolder
from tests.tolerances import largest

pytestmark = [pytest.mark.distributed, pytest.mark.slow, pytest.mark.timeout(900)]
RELATIVE = 1e-11
NAMES = [name for name, *_ in cases()]


def runs_of(name: str) -> list[tuple[str, int]]:
    """Names of a case's runs, and their numbers of workers."""
    return [(run, size) for run, (size, names) in RUNS.items() if names is None or name in names]


@pytest.fixture(scope="module")
def folder(shared_folder: SharedFolder) -> Path:
    return shared_folder("streamed_part", partial(run_driver, "streamed_driver"))


@pytest.fixture(scope="module")
def numbers(folder: Path) -> dict[str, dict[str, Numbers]]:
    return {file.stem: torch.load(file) for file in sorted(folder.glob("*.pt"))}


@pytest.mark.parametrize("name", NAMES)
def test_streamed_parts_compute_what_one_process_computes(
    numbers: dict[str, dict[str, Numbers]], name: str
) -> None:
    expected = numbers["alone"][name]
    scale = {
        key: max(1.0, largest(*(expected[other] for other in expected if other.split()[-1] == key.split()[-1])))
        for key in expected
    }
    compared = [f"{run}, worker {rank}" for run, size in runs_of(name) for rank in range(size)]
    for run in compared:
        found = dict(numbers[run][name])
        del found["intervals"]
        assert list(found) == list(expected), run
        for key, value in found.items():
            torch.testing.assert_close(
                value,
                expected[key],
                rtol=RELATIVE,
                atol=RELATIVE * scale[key],
                msg=lambda text, at=(run, key): f"{at}: {text}",
            )


@pytest.mark.parametrize("name", NAMES)
def test_the_same_number_of_workers_and_intervals_gives_the_same_bits(
    numbers: dict[str, dict[str, Numbers]], name: str
) -> None:
    assert len(runs_of(name)) == (3 if name in AGAIN else 1)
    for run, size in runs_of(name):
        first = numbers[f"{run.split(',')[0]}, first, worker 0" if size == 2 else f"{run}, worker 0"][name]
        for rank in range(size):
            found = numbers[f"{run}, worker {rank}"][name]
            for key, value in found.items():
                assert key == "intervals" or torch.equal(value, first[key]), (run, rank, key)


def test_workers_have_numbers_of_intervals_of_their_own(numbers: dict[str, dict[str, Numbers]]) -> None:
    counts = {name: [int(numbers[f"3, worker {rank}"][name]["intervals"]) for rank in range(3)] for name in NAMES}
    assert max(max(each) for each in counts.values()) > 2
    assert any(len(set(each)) > 1 for each in counts.values()), counts


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
    assert "while adding the loss" in text or "while exchanging gradients of the halo" in text
    assert not (folder / "run").exists()
    assert not (folder / "spill").exists()
