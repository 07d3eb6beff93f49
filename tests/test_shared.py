"""Processes that ask for the same folder at once: one fills it, the others find it full."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.shared import filled_once

ASKING = """
import sys, time
from pathlib import Path
from tests.shared import filled_once

def fill(folder):
    with (folder / "log").open("a") as log:
        log.write(sys.argv[2])
    time.sleep(0.3)
    (folder / "last").touch()

folder = filled_once(Path(sys.argv[1]), "costly", fill)
assert (folder / "last").exists()
"""


def test_one_of_several_processes_fills_a_folder(tmp_path: Path) -> None:
    programs = [
        subprocess.Popen([sys.executable, "-c", ASKING, tmp_path, name], cwd=Path(__file__).parents[1])
        for name in "ab"
    ]
    assert [program.wait(timeout=240) for program in programs] == [0, 0]
    assert (tmp_path / "costly" / "log").read_text() in ("a", "b")


def test_a_folder_that_could_not_be_filled_is_filled_anew(tmp_path: Path) -> None:
    def fail(folder: Path) -> None:
        (folder / "half").touch()
        raise OSError("the disk is full")

    with pytest.raises(OSError, match="the disk is full"):
        filled_once(tmp_path, "costly", fail)
    folder = filled_once(tmp_path, "costly", lambda folder: (folder / "whole").touch())
    assert [path.name for path in folder.iterdir()] == ["whole"]
    assert filled_once(tmp_path, "costly", fail) == folder
