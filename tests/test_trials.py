"""Trials are counted by kind: as promised, otherwise, or not at all."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.other_user import ROOT
from tests.trials import KINDS

TESTS = """
import pytest

@pytest.mark.tries("kill")
def test_many(record_property):
    record_property("trials", 60)

@pytest.mark.tries("kill")
@pytest.mark.parametrize("number", range(3))
def test_some(number):
    assert number < 2

@pytest.mark.tries("spill")
def test_skipped():
    pytest.skip("not here")

@pytest.fixture
def broken():
    raise OSError

@pytest.mark.tries("disk")
def test_broken(broken):
    pass

def test_other():
    pass
"""


def counted(folder: Path, content: str, *options: str) -> subprocess.CompletedProcess[str]:
    """A session of tests that has the hooks of this one, and does not wait for PyTorch."""
    (folder / "conftest.py").write_text(
        "from tests.trials import note_kinds as pytest_collection_modifyitems, pytest_addoption, pytest_configure\n"
    )
    (folder / "pytest.ini").write_text("[pytest]\n")
    (folder / "test_it.py").write_text(content)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--rootdir",
        folder,
        *options,
        folder,
    ]
    return subprocess.run([*map(str, command)], cwd=ROOT, capture_output=True, text=True, timeout=240, check=False)


@pytest.mark.slow
@pytest.mark.parametrize("options", [(), ("-n", "2")])
def test_trials_are_counted_by_kind(tmp_path: Path, options: tuple[str, ...]) -> None:
    ended = counted(tmp_path, TESTS, "--trials", str(tmp_path / "trials.json"), *options)
    assert ended.returncode == 1, ended.stderr
    rows = {
        row["tried"]: (row["times"], row["otherwise"]) for row in json.loads((tmp_path / "trials.json").read_text())
    }
    expected = {tried: (0, 0) for tried, _ in KINDS.values()}
    assert rows == expected | {KINDS["kill"][0]: (62, 1), KINDS["disk"][0]: (0, 1)}


def test_a_kind_that_is_not_known_is_refused(tmp_path: Path) -> None:
    ended = counted(tmp_path, TESTS.replace('"spill"', '"poke"'))
    assert ended.returncode != 0
    assert "tries 'poke', expected one of kill, " in ended.stdout + ended.stderr


@pytest.mark.tries("flip")
def test_this_session_has_the_hooks(
    request: pytest.FixtureRequest, record_property: Callable[[str, object], None]
) -> None:
    # It tries nothing itself.
    record_property("trials", 0)
    assert ("tries", "flip") in request.node.user_properties
    assert request.config.getoption("--trials", default="unknown") != "unknown"
