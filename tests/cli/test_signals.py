"""Ctrl-C and SIGTERM while modules are imported, kernels are compiled, strings are evaluated, and kernels run for long."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
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
from sagann.cli.signals import Signals
done = False
try:
    with Signals().handled():
        {body}
        done = True
        time.sleep(10)
except KeyboardInterrupt:
    print(done, signal.getitimer(signal.ITIMER_REAL), signal.getsignal(signal.SIGALRM) is signal.SIG_DFL)
"""

# Python forgets what is raised while it frees an object, as by the callbacks of a WeakValueDictionary.
FREED = """
class Freed:
    def __del__(self): work()
del_me = Freed()
"""
FREED_IN_CALLBACK = """
import weakref
class Freed: pass
del_me = Freed()
reference = weakref.ref(del_me, lambda gone: work())
"""


def run(folder: Path, body: str, *, name: str = "slow", module: str = "", before: str = "") -> str:
    (folder / f"{name}.py").write_text(module)
    program = before + PROGRAM.format(body=body)
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=folder, capture_output=True, text=True, timeout=240, check=True
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
        [sys.executable, "-c", "exec('import program')"], cwd=tmp_path, capture_output=True, text=True, timeout=240
    )
    assert done.stdout == "False (0.0, 0.0) True\n"


def test_elsewhere_it_comes_at_once(tmp_path: Path) -> None:
    # No timer was ever set.
    assert run(tmp_path, "os.kill(os.getpid(), signal.SIGINT); time.sleep(5)") == "False (0.0, 0.0) True\n"


@pytest.mark.parametrize("pressed", [1, 2])
@pytest.mark.parametrize("freed", [FREED, FREED_IN_CALLBACK], ids=["object", "callback"])
def test_one_that_is_lost_while_an_object_is_freed_comes_again(tmp_path: Path, freed: str, pressed: int) -> None:
    before = f"PRESSED = {pressed}\n{SLOW}\n{freed}\n"
    assert run(tmp_path, "del del_me", before=before) == "True (0.0, 0.0) False\n"


def test_other_errors_of_an_object_that_is_freed_are_shown(tmp_path: Path) -> None:
    freed = "class Freed:\n    def __del__(self): raise ValueError('own')\ndel_me = Freed()\n"
    program = freed + PROGRAM.format(body="del del_me; done = True; raise KeyboardInterrupt")
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "ValueError: own" in done.stderr


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
        timeout=240,
    )
    assert done.returncode == code, done.stderr
    assert (done.stderr == "Error: interrupted\n") == (code == 130)


@pytest.mark.parametrize("number", ["SIGINT", "SIGTERM"])
def test_what_an_interrupt_kept_from_being_removed_is_removed_at_the_end(tmp_path: Path, number: str) -> None:
    program = f"""
import os, signal, sys, time
from pathlib import Path
from sagann.cli.signals import Signals
from sagann.temporary import Removal
kept, num_calls = Path(sys.argv[1]), 0
def remove():
    global num_calls
    num_calls += 1
    if num_calls == 1:
        os.kill(os.getpid(), signal.{number})
        time.sleep(5)
    kept.rmdir()
kept.mkdir()
try:
    with Signals().handled():
        Removal(remove)()
except BaseException as error:
    print(type(error).__name__, num_calls, kept.exists(), signal.getsignal(signal.{number}) in (
        signal.SIG_DFL, signal.default_int_handler))
"""
    done = subprocess.run(
        [sys.executable, "-c", program, tmp_path / "kept"], capture_output=True, text=True, timeout=240, check=True
    )
    name = {"SIGINT": "KeyboardInterrupt", "SIGTERM": "Terminated"}[number]
    assert (done.stdout, done.stderr) == (f"{name} 2 False True\n", "")


NATIVE = """
import sys
from pathlib import Path
import numpy as np
from sagann.cli.signals import Signals
from sagann.jit import compiled
from sagann.runtime.blocks.spill import SpillFolder

@compiled()
def spin(numbers):
    for turn in range(10**12):
        numbers[turn % 8] += numbers[(turn + 1) % 8]

with Signals().handled():
    folder = SpillFolder(Path(sys.argv[1]))
    print("begun", flush=True)
    spin(np.ones(8))
"""


@pytest.mark.alone
@pytest.mark.parametrize(("num_signals", "within_s"), [(1, 10.0), (2, 7.0)])
def test_sigterm_ends_a_native_kernel_that_returns_much_later(
    tmp_path: Path, num_signals: int, within_s: float
) -> None:
    (tmp_path / "program.py").write_text(NATIVE)
    with subprocess.Popen(
        [sys.executable, "program.py", tmp_path / "spill"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        # The kernel is compiled, and runs.
        time.sleep(3)
        assert (tmp_path / "spill").exists()
        began_s = time.monotonic()
        for _ in range(num_signals):
            process.send_signal(signal.SIGTERM)
            time.sleep(0.2)
        _, err = process.communicate(timeout=240)
    assert time.monotonic() - began_s < within_s
    assert (process.returncode, err) == (143, "Error: terminated\n")
    assert not (tmp_path / "spill").exists()
