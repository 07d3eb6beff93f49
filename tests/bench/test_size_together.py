"""The size benchmark of several workers: its whole command at a tiny scale, and what it says of a worker that was killed."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.size.contest import UNLIMITED
from bench.size.together import main
from tests.bench.test_size import limited


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
