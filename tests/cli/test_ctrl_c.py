"""Ctrl-C while modules are imported."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

# A module that is interrupted while it is imported, as often as the line above it says.
SLOW = """
import os, signal, time
for _ in range(PRESSED):
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(0.2)
done = True
"""

PROGRAM = """
import sys, time
from sagann.cli.ctrl_c import CTRL_C
try:
    with CTRL_C.at_safe_moments():
        import slow
        time.sleep(10)
except KeyboardInterrupt:
    print("slow" in sys.modules, CTRL_C.pressed)
"""


def run(folder: Path, *, pressed: int, before: str = "") -> tuple[int, str]:
    (folder / "slow.py").write_text(f"PRESSED = {pressed}\n{SLOW}")
    done = subprocess.run(
        [sys.executable, "-c", before + PROGRAM], cwd=folder, capture_output=True, text=True, timeout=60
    )
    assert done.stderr == ""
    return done.returncode, done.stdout


@pytest.mark.parametrize(("pressed", "imported"), [(1, True), (2, False)])
def test_the_import_is_finished_first_unless_pressed_again(tmp_path: Path, pressed: int, *, imported: bool) -> None:
    assert run(tmp_path, pressed=pressed) == (0, f"{imported} True\n")


def test_at_safe_moments_it_comes_at_once(tmp_path: Path) -> None:
    assert run(
        tmp_path,
        pressed=0,
        before="import os, signal, threading\nthreading.Timer(1, os.kill, (os.getpid(), 2)).start()\n",
    ) == (0, "True True\n")


def test_ignored_stays_ignored(tmp_path: Path) -> None:
    before = "import signal, time\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\ntime.sleep = lambda s: None\n"
    assert run(tmp_path, pressed=3, before=before) == (0, "")


def test_what_fails_after_it_was_interrupted(tmp_path: Path) -> None:
    """A library that makes an error of its own of the interrupt."""
    (tmp_path / "model.py").write_text(
        "import os, signal\ntry:\n    [os.kill(os.getpid(), signal.SIGINT) for _ in range(2)]\n"
        "    import time; time.sleep(5)\nexcept KeyboardInterrupt:\n    raise RuntimeError('half made') from None\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "sagann", "train", "--data", "demo", "--model", "model.py:Model"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (130, "Error: interrupted\n")
