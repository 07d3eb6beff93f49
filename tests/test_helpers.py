"""What all tests share: failed tests run once more, covers of few cases, and folders that one process fills."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from itertools import combinations, product
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from tests.again import MOST_UNSTABLE
from tests.cover import cover
from tests.shared import filled_once

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


AXES = ("model", "order", "policy", "dtype")


def cross_product(*sizes: int) -> list[dict[str, int]]:
    return [dict(zip(AXES, values, strict=False)) for values in product(*map(range, sizes))]


@given(sizes=st.lists(st.integers(1, 4), min_size=1, max_size=4), strength=st.integers(1, 3))
def test_every_combination_is_there(sizes: list[int], strength: int) -> None:
    cases = cross_product(*sizes)
    taken = [cases[position] for position in cover(cases, strength)]
    for axes in combinations(AXES[: len(sizes)], min(strength, len(sizes))):
        assert {tuple(case[axis] for axis in axes) for case in taken} == {
            tuple(case[axis] for axis in axes) for case in cases
        }


_TESTS = """
import pytest

values = pytest.mark.parametrize

@pytest.mark.cover(2)
@values("a", range(3))
@values("b", range(3))
@values("c", range(3))
def test_pairs(a, b, c): pass

@values("a", range(3))
@values("b", range(3))
def test_values(a, b): pass

@pytest.mark.cover(3)
@values("a", range(2))
@values("b", range(2))
@values("c", range(2))
def test_all(a, b, c): pass

@values(("a", "b", "c"), [(0, 0, 0), (0, 0, 1), (0, 1, 0), (0, 1, 1), (1, 0, 0), (1, 0, 1), (1, 1, 0), (1, 1, 1)])
def test_stated_together(a, b, c): pass

@pytest.mark.thorough
def test_long(): pass

def test_plain(): pass
"""


def test_what_is_outside_of_a_cover_is_thorough(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(
        "from tests.cover import mark_the_rest\n\ndef pytest_collection_modifyitems(items):\n    mark_the_rest(items)\n"
    )
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n    cover: strength\n    thorough: left out\n")
    (tmp_path / "test_some.py").write_text(_TESTS)
    listed = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", "-m", "not thorough"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert listed.returncode == 0, listed.stdout + listed.stderr
    kept = Counter(re.findall(r"::(\w+)", listed.stdout))
    assert 9 <= kept.pop("test_pairs") <= 12
    assert kept == {"test_values": 3, "test_all": 8, "test_stated_together": 8, "test_plain": 1}


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
