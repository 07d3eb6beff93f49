"""Ctrl-C while modules are imported, kernels are compiled, and strings are evaluated."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

# A module that is interrupted while it is imported, or while it does something, as often as the line above it says.
SLOW = """
import os, signal, time
def work():
    for _ in range(PRESSED):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.2)
"""

PROGRAM = """
import os, signal, sys, time
sys.path.insert(0, "")
from sagann.cli.ctrl_c import ctrl_c_at_safe_moments
done = False
try:
    with ctrl_c_at_safe_moments():
        {body}
        done = True
        time.sleep(10)
except KeyboardInterrupt:
    print(done, signal.getitimer(signal.ITIMER_REAL), signal.getsignal(signal.SIGALRM) is signal.SIG_DFL)
"""


def run(folder: Path, body: str, *, name: str = "slow", module: str = "", before: str = "") -> str:
    (folder / f"{name}.py").write_text(module)
    program = before + PROGRAM.format(body=body)
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=folder, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stderr == ""
    return done.stdout


@pytest.mark.parametrize(("pressed", "finished"), [(1, True), (2, False)])
def test_an_import_is_finished_first_unless_pressed_again(tmp_path: Path, pressed: int, *, finished: bool) -> None:
    module = f"PRESSED = {pressed}\n{SLOW}\nwork()"
    assert run(tmp_path, "import slow", module=module) == f"{finished} (0.0, 0.0) False\n"


def test_a_compilation_is_finished_first(tmp_path: Path) -> None:
    module = f"PRESSED = 1\n{SLOW}"
    assert run(tmp_path, "import numba; numba.work()", name="numba", module=module) == "True (0.0, 0.0) False\n"


@pytest.mark.parametrize("built_in", ["eval", "exec"])
def test_a_string_is_evaluated_first(tmp_path: Path, built_in: str) -> None:
    body = f"{built_in}('(os.kill(os.getpid(), signal.SIGINT), time.sleep(0.2))')"
    assert run(tmp_path, body) == "True (0.0, 0.0) False\n"


def test_it_comes_at_once_though_the_program_itself_is_a_string(tmp_path: Path) -> None:
    # As with python -m cProfile.
    body = "os.kill(os.getpid(), signal.SIGINT); time.sleep(5)"
    (tmp_path / "program.py").write_text(PROGRAM.format(body=body))
    done = subprocess.run(
        [sys.executable, "-c", "exec('import program')"], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert done.stdout == "False (0.0, 0.0) True\n"


def test_elsewhere_it_comes_at_once(tmp_path: Path) -> None:
    # No timer was ever set.
    assert run(tmp_path, "os.kill(os.getpid(), signal.SIGINT); time.sleep(5)") == "False (0.0, 0.0) True\n"


def test_ignored_stays_ignored(tmp_path: Path) -> None:
    before = "import signal, time\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\ntime.sleep = lambda s: None\n"
    assert run(tmp_path, "import slow", module=f"PRESSED = 3\n{SLOW}\nwork()", before=before) == ""


@pytest.mark.parametrize(("raised", "code"), [("KeyboardInterrupt", 130), ("ValueError", 2)])
def test_what_a_library_makes_of_an_interrupt(tmp_path: Path, raised: str, code: int) -> None:
    (tmp_path / "model.py").write_text(
        f"try:\n    raise {raised}\nexcept {raised}:\n    raise RuntimeError('half made') from None\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "sagann", "train", "--data", "demo", "--model", "model.py:Model"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == code, done.stderr
    assert (done.stderr == "Error: interrupted\n") == (code == 130)
