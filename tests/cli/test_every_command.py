"""Every command, once, as a process of a given Python (``--python``): it succeeds, and nobody but us says anything.

`make newest` runs this with the newest releases of the packages that sagann needs.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
import typer

from sagann.cli.main import app
from tests.cli.test_main import commands

pytestmark = [pytest.mark.thorough, pytest.mark.slow]

_TRAIN = ("train", "graph", "--hidden", 8, "--epochs", 2)
COMMANDS: tuple[tuple[object, ...], ...] = (
    ("doctor",),
    ("machine",),
    ("data", "generate", "rmat", "rmat", "--vertices", 300, "--edges", 3000),
    ("data", "import", "edges.csv", "imported"),
    ("data", "info", "graph"),
    ("data", "check", "graph"),
    ("data", "reorder", "graph", "reordered"),
    ("plan", "graph"),
    ("plan", "graph", "--memory", "1MiB"),
    ("plan", "graph", "--sample", "3,3"),
    (*_TRAIN, "--model", "gat", "--out", "again", "--tensorboard"),
    (*_TRAIN, "--memory", "1MiB", "--out", "streamed"),
    (*_TRAIN, "--sample", "3,3", "--out", "sampled"),
    ("evaluate", "run"),
    ("predict", "run", "--out", "classes.parquet"),
    ("embed", "run", "--out", "rows.npy"),
)
"Each runs in a folder that :func:`folder` has filled."
_FILLING = (("data", "generate", "sbm", "graph", "--vertices", 300, "--features", 16), (*_TRAIN, "--out", "run"))
_FOREIGN = re.compile(r"warning|deprecat|leak|traceback|nanobind|site-packages", re.IGNORECASE)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    """A folder with a graph, a run and a table of edges."""
    path = tmp_path_factory.mktemp("commands")
    (path / "edges.csv").write_text("src,dst\n0,1\n1,2\n2,0\n")
    for arguments in _FILLING:
        _succeeds(arguments, path, request)
    return path


@pytest.mark.parametrize("arguments", COMMANDS, ids=lambda arguments: "-".join(map(str, arguments[:5])))
def test_a_command_says_nothing_that_is_not_ours(
    arguments: tuple[object, ...], folder: Path, request: pytest.FixtureRequest
) -> None:
    _succeeds(arguments, folder, request)


def test_every_command_is_run() -> None:
    run = [[*map(str, arguments)] for arguments in (*_FILLING, *COMMANDS)]
    assert [
        name for name in commands(typer.main.get_command(app)) if name not in [each[: len(name)] for each in run]
    ] == []


def _succeeds(arguments: tuple[object, ...], folder: Path, request: pytest.FixtureRequest) -> None:
    # Not what tests set for themselves.
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [request.config.getoption("--python"), "-m", "sagann", *map(str, arguments), "--quiet"]
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=240, check=False
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert [line for line in done.stdout.splitlines() if _FOREIGN.search(line)] == []
