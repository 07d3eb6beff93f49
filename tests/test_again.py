"""What fails runs once more, alone: a stable failure fails, an unstable one is named, and many fail at once."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.again import MOST_UNSTABLE

ROOT = Path(__file__).parents[1]
# Fails where it runs first, and passes where it runs again. Its parameter is what a command line could take apart.
UNSTABLE = """
import pathlib, pytest

@pytest.mark.parametrize("value", ["a b[::]/c"])
def test_unstable(value):
    ran = pathlib.Path(__file__).with_name("ran")
    again = ran.exists()
    ran.touch()
    assert again
"""
STABLE = "def test_stable():\n    assert False\n"
PASSING = "def test_passing():\n    pathlib = __import__('pathlib')\n    open(pathlib.Path(__file__).with_name('passed'), 'a').write('x')\n"
CRASHING = "import os\n\ndef test_crashing():\n    os._exit(1)\n"
MANY = f"import pytest\n\n@pytest.mark.parametrize('number', range({MOST_UNSTABLE + 1}))\ndef test_many(number):\n    assert False\n"


def run(folder: Path, *texts: str, processes: int = 0) -> subprocess.CompletedProcess[str]:
    """Run tests with these texts, each a file of its own."""
    for number, text in enumerate(texts):
        (folder / f"test_{number}.py").write_text(text)
    (folder / "pytest.ini").write_text("[pytest]\n")
    beside = ("-n", str(processes)) if processes else ("-p", "no:xdist")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    return subprocess.run(
        [sys.executable, "-m", "tests.again", "-q", "-p", "no:cacheprovider", *beside, str(folder)],
        cwd=folder,
        env={**environment, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_what_passes_alone_is_named_and_the_run_passes(tmp_path: Path) -> None:
    ended = run(tmp_path, UNSTABLE, PASSING, processes=2)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "==== UNSTABLE: failed beside others and passed alone." in ended.stdout
    assert ended.stdout.splitlines()[-1] == "  test_0.py::test_unstable[a b[::]/c]"
    assert (tmp_path / "passed").read_text() == "x", "what has passed does not run again"


def test_what_fails_twice_fails(tmp_path: Path) -> None:
    ended = run(tmp_path, STABLE, UNSTABLE)
    assert ended.returncode == 1
    assert "UNSTABLE" not in ended.stdout
    assert "==== Failed twice, or could not run again: see above.\n  test_0.py::test_stable\n" in ended.stdout


def test_many_failures_have_a_cause_and_do_not_run_again(tmp_path: Path) -> None:
    ended = run(tmp_path, MANY)
    assert ended.returncode == 1
    assert f"No test runs again: {MOST_UNSTABLE + 1} tests or set-ups failed" in ended.stdout


def test_a_crash_fails(tmp_path: Path) -> None:
    ended = run(tmp_path, CRASHING, processes=1)
    assert ended.returncode == 1, ended.stdout + ended.stderr
    assert "No test runs again: a process crashed, or" in ended.stdout
