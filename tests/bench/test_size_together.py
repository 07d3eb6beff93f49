"""The size benchmark of several workers: its whole command at a tiny scale, and what it says of a worker that was killed."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.size.contest import UNLIMITED, Result, Task
from bench.size.limit import Ended
from bench.size.together import Together, main, report
from tests.bench.test_size import ended, limited, result


def task(tmp_path: Path, limit_bytes: int = UNLIMITED) -> Task:
    return Task(
        dataset=tmp_path,
        work=tmp_path,
        hidden=8,
        epochs=2,
        lr=0.01,
        threads=1,
        memory="1GiB",
        limit_bytes=limit_bytes,
    )


def together(*workers: Ended, losses: tuple[float, ...] = (3.0, 2.5)) -> Together:
    found: Result = result("workers", losses)
    return Together(workers=workers, result=found)


def test_the_page_says_who_lived_and_what_each_held(tmp_path: Path) -> None:
    lines = report(task(tmp_path, 7 << 29), together(ended(), ended(own_bytes=5 << 20)))
    assert lines[0] == "2 workers, a budget of 1GiB each, a limit of 3.5 GiB each.\n"
    assert lines[2:4] == ["| 0 | ok | 3 | 4 | 9 |", "| 1 | ok | 5 | 4 | 9 |"]
    assert "The workers train, and the loss falls: they came to 2 epochs, 1.5 s each (median)" in lines[4]
    killed = together(ended(), ended(status=-9, kills=1))
    assert not killed.lives
    assert "| 1 | killed | 3 | 4 | 9 |" in report(task(tmp_path), killed)
    assert "no limit" in report(task(tmp_path), killed)[0]
    assert not together(ended(), ended(), losses=(2.0, 2.5)).lives
    assert "The workers do not train" in report(task(tmp_path), together(ended(), losses=()))[-1]


@pytest.mark.thorough
@pytest.mark.distributed
def test_two_workers_train_a_tiny_shape(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with limited(UNLIMITED, tmp_path):
        pass
    options = ["--scale", "0.0005", "--limit", "none", "--memory", "4MiB", "--hidden", "8", "--epochs", "2"]
    assert main(["--work", str(tmp_path), *options]) == 0, capsys.readouterr().err
    page = capsys.readouterr().out
    assert "The workers train, and the loss falls" in page
    assert page.count("| ok |") == 2
    assert not list((tmp_path / "at-4715" / "spill").glob("*"))
