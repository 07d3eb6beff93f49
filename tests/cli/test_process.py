"""The program as a process: what only shows there (signals, exit codes, pipes, start-up).

Importing PyTorch takes seconds. What follows such a process, or is compared with it, runs in this process (``invoke``), and a
process whose start is not what is tried is a fork (``warm``).
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from tests.cli.conftest import Invoke
from tests.cli.warm import Warm, WarmProcess
from tests.forks import run_fresh
from tests.train.runs import written_lines

PROGRAM = (sys.executable, "-m", "sagann")
DEADLINE_S = 240
WITHIN_S = 60
"Seconds after a signal within which a process has ended beside other load; what it does would take longer."


def start(*arguments: object, before: Sequence[str] = (), **options: Any) -> subprocess.Popen[str]:
    """Start the program; ``before`` stands before its command, ``env`` adds variables."""
    return subprocess.Popen(
        [*before, *PROGRAM, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A group of its own, with all that it starts.
        start_new_session=True,
        **{**options, "env": os.environ | options.get("env", {})},
    )


def run(*arguments: object, **options: Any) -> tuple[int, str, str]:
    with start(*arguments, **options) as process:
        out, err = process.communicate(timeout=DEADLINE_S)
    return process.returncode, out, err


def wait_until(is_so: Callable[[], bool], process: subprocess.Popen[str] | WarmProcess) -> None:
    """Wait for something that a process does before it ends."""
    limit_s = time.monotonic() + DEADLINE_S
    while not is_so():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < limit_s
        time.sleep(0.005)


def has_files(path: Path) -> bool:
    """Whether there is something in a folder."""
    return path.is_dir() and any(not entry.name.startswith(".") for entry in path.iterdir())


def test_help_does_not_wait_for_torch() -> None:
    run_fresh(
        "import sys; from sagann.cli.main import main\n"
        "for arguments in ([], ['train'], ['data', 'import'], ['doctor']): main([*arguments, '--help'])\n"
        "heavy = {'torch', 'numba', 'pyarrow', 'numpy'} & set(sys.modules)\n"
        "sys.exit(f'imported: {heavy}' if heavy else 0)"
    )


def test_a_command_is_light_on_collector_and_cores(blocks: Path) -> None:
    """PyTorch and Numba make so many objects that Python would look through all of them for garbage five times, and three times at the end."""
    code = (
        "import atexit, gc, sys; from sagann.__main__ import main\n"
        "sys.argv[0] = 'sagann'\n"
        "atexit.register(lambda: print(gc.isenabled(), gc.get_freeze_count() > 10**5, gc.get_stats()[2]['collections'] < 3))\n"
        "main()"
    )
    command = [sys.executable, "-c", code, "data", "check", blocks]
    settings = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
    environment = {name: value for name, value in os.environ.items() if name not in settings}
    environment["OMP_DISPLAY_ENV"] = "verbose"
    ended = subprocess.run(
        command, capture_output=True, text=True, timeout=DEADLINE_S, env=environment, check=False
    )
    assert (ended.returncode, ended.stdout.splitlines()[-1]) == (0, "True True True"), ended.stdout + ended.stderr
    if sys.platform == "linux":
        # Threads that wait for each other sleep soon, on whichever machine.
        assert "GOMP_SPINCOUNT = '1000'" in ended.stderr


def test_libraries_that_report_what_is_left_leave_nothing() -> None:
    said = run_fresh(
        "import gc; from sagann.processes import end_quickly\n"
        "end_quickly(); print(gc.get_freeze_count() > 0)\n"
        "bound = type('nb_func', (), {'__module__': 'nanobind'})\n"
        "end_quickly(); print(gc.get_freeze_count())"
    )
    assert said.split() == ["True", "0"]


def test_a_run_and_its_evaluation(blocks: Path, tmp_path: Path, warm: Warm) -> None:
    code, out, err = run("train", "--data", blocks, "--hidden", 8, "--epochs", 5, "--out", "run", cwd=tmp_path)
    assert (code, "accuracy" in out) == (0, True)
    # One line of progress at most, and nothing that a terminal would act on.
    assert len(err.splitlines()) <= 1
    assert "\x1b" not in out + err
    with warm.start("evaluate", "--run", "run", cwd=tmp_path) as process:
        out, err = process.communicate(timeout=DEADLINE_S)
    assert (process.returncode, " test " in out, err) == (0, True, "")


def test_an_environment_in_which_numba_cannot_start(tmp_path: Path) -> None:
    arguments = ("train", "--data", "demo", "--epochs", 1, "--hidden", 4, "--out", "run")
    code, out, err = run(*arguments, cwd=tmp_path, env={"NUMBA_THREADING_LAYER": "fast"})
    assert (code, out) == (2, "")
    assert err.startswith("Error: Numba cannot start its threads: The threading layer requested 'fast'")
    assert "NUMBA_THREADING_LAYER" in err


def test_a_reader_that_goes_away(blocks: Path) -> None:
    process = start("data", "info", blocks)
    process.stdout.close()
    assert process.wait(timeout=DEADLINE_S) == 0
    assert process.stderr.read() == ""
    process.stderr.close()


@pytest.mark.skipif(os.name == "nt", reason="needs a POSIX shell")
@pytest.mark.parametrize("closed", [pytest.param(">&-", marks=pytest.mark.thorough), "<&- >&- 2>&-"])
def test_streams_that_are_closed_do_no_harm(blocks: Path, tmp_path: Path, closed: str) -> None:
    arguments = ("train", "--data", str(blocks), "--hidden", "4", "--epochs", "2", "--out", str(tmp_path / "run"))
    command = f"exec {shlex.join([*PROGRAM, *arguments])} {closed}"
    ended = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=DEADLINE_S)
    assert (ended.returncode, ended.stdout) == (0, ""), ended.stderr
    assert json.loads((tmp_path / "run" / "metrics.json").read_text())["epochs"] == 2


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs Linux's /dev/full")
def test_a_result_that_cannot_be_shown_is_no_loss_of_the_run(blocks: Path, tmp_path: Path) -> None:
    arguments = ("train", "--data", str(blocks), "--hidden", "4", "--epochs", "2", "--out", str(tmp_path / "run"))
    with Path("/dev/full").open("w") as full:
        ended = subprocess.run(
            [*PROGRAM, *arguments, "-q"], stdout=full, stderr=subprocess.PIPE, text=True, timeout=DEADLINE_S
        )
    assert ended.returncode == 2
    assert ended.stderr.startswith(
        "Error: the result cannot be shown: No space left on device (in standard output)\n"
    )
    assert "Files that the command writes are complete" in ended.stderr
    assert len(ended.stderr.splitlines()) == 2
    assert (tmp_path / "run" / "metrics.json").exists()


def endless(blocks: Path, folder: Path) -> tuple[object, ...]:
    """The arguments of a run without an end."""
    options = ("--hidden", 8, "--epochs", 10**9, "--checkpoint-every", 3)
    return ("train", "--data", blocks, *options, "--out", folder)


def test_ctrl_c_saves_and_exits_130(blocks: Path, tmp_path: Path, invoke: Invoke) -> None:
    folder = tmp_path / "run"
    with start(*endless(blocks, folder)) as process:
        wait_until(lambda: has_files(folder / "checkpoints"), process)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 130, err
    assert out == ""
    assert f"sagann train --resume --out {folder}" in err
    assert "Traceback" not in err
    last = written_lines(folder)[-1]["epoch"]
    # The epoch at which it stopped was saved, not only the last that was due.
    assert (folder / "checkpoints" / f"epoch-{last:06d}.pt").is_file()
    resumed = invoke("train", "--resume", "--out", folder, "--epochs", last + 2)
    assert resumed.code == 0, resumed.err
    assert json.loads((folder / "metrics.json").read_text())["epochs"] == last + 2


def test_sigterm_before_the_first_epoch(blocks: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with start(*endless(blocks, folder)) as process:
        wait_until(lambda: has_files(folder), process)
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=DEADLINE_S)
    assert (process.returncode, out) == (143, ""), err
    assert "Traceback" not in err


def test_sigterm_leaves_no_part_of_an_import(tmp_path: Path, warm: Warm) -> None:
    pairs = np.random.default_rng(0).integers(10**6, size=(2_000_000, 2))
    (tmp_path / "edges").mkdir()
    table = pa.table({"src": pairs[:, 0], "dst": pairs[:, 1]})
    pyarrow.parquet.write_table(table, tmp_path / "edges" / "all.parquet")
    (tmp_path / "out").mkdir()
    with warm.start("data", "import", tmp_path / "edges", tmp_path / "out" / "graph") as process:
        wait_until(lambda: any((tmp_path / "out").glob(".*/new")), process)
        process.send_signal(signal.SIGTERM)
        began_s = time.monotonic()
        out, err = process.communicate(timeout=DEADLINE_S)
    assert time.monotonic() - began_s < WITHIN_S
    said = "Edges go from column 'src' to column 'dst'.\n"
    assert (process.returncode, out, err) == (143, "", f"{said}Error: terminated\n")
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs Linux's list of what a process has loaded")
def test_ctrl_c_while_starting_exits_130(blocks: Path, tmp_path: Path) -> None:
    with start(*endless(blocks, tmp_path / "run")) as process:
        # From here on PyTorch is being imported.
        wait_until(lambda: "libtorch" in Path(f"/proc/{process.pid}/maps").read_text(), process)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 130, err
    # Before there is a command, nothing is said.
    assert err in ("", "Error: interrupted\n")
