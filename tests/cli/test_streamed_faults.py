"""Faults in the middle of a streamed epoch: one message, nothing left behind, and the run goes on bitwise."""

from __future__ import annotations

import errno
import os
import signal
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest

from sagann.runtime.blocks import spill
from tests.cli.conftest import Invoke, Outcome
from tests.cli.mischief import at_load
from tests.cli.warm import Warm
from tests.threads import left_threads

EPOCHS = 3
Arguments = tuple[object, ...]
RUN_FILES = {
    "checkpoints",
    "config.toml",
    "metrics.json",
    "metrics.jsonl",
    "model.safetensors",
    "run.json",
    ".lock",
}


@pytest.fixture(scope="module")
def finished(blocks: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    """A run that nothing happens to, and how many blocks it loads."""
    from sagann.cli.main import main

    path = tmp_path_factory.mktemp("whole") / "run"
    with at_load(0, lambda: None) as loads:
        assert main([*map(str, training(blocks, path)), "--quiet"]) == 0
    return path, loads[0]


@pytest.fixture(scope="module")
def whole(finished: tuple[Path, int]) -> tuple[bytes, int]:
    """The weights of that run, and how many blocks it loads."""
    path, num_loads = finished
    return (path / "model.safetensors").read_bytes(), num_loads


def training(blocks: Path, out: Path) -> Arguments:
    options = ("--hidden", 8, "--epochs", EPOCHS, "--dropout", 0.3, "--memory", "14kB", "--checkpoint-every", 1)
    return ("train", "--data", blocks, *options, "--out", out)


def check_left(out: Path) -> None:
    """Nothing of a run's streaming is left."""
    assert not {path.name for path in out.iterdir()} - RUN_FILES
    assert not left_threads()


def check_message(ended: Outcome, *words: str) -> None:
    assert ended.code == 2
    message, hint = (line for line in ended.err.splitlines() if line.startswith(("Error:", "  hint:")))
    for word in words:
        assert word in message
    assert "(in '" in message
    assert len(hint) > len("  hint: ")
    assert "Traceback" not in ended.err


def check_resumed(invoke: Invoke, blocks: Path, out: Path, weights: bytes) -> None:
    """The run goes on, and ends as if nothing had happened."""
    ended = invoke(*training(blocks, out), "--resume")
    assert ended.code == 0, ended.err
    assert (out / "model.safetensors").read_bytes() == weights
    check_left(out)


def test_a_disk_that_fails_midway(
    invoke: Invoke, blocks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: tuple[bytes, int]
) -> None:
    def failing(*arguments: object) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with at_load(whole[1] // 2, lambda: monkeypatch.setattr(spill, "read_bytes", failing)):
        ended = invoke(*training(blocks, tmp_path / "run"))
    check_message(ended, "a spill folder cannot be read: Input/output error")
    monkeypatch.undo()
    check_resumed(invoke, blocks, tmp_path / "run", whole[0])


def test_a_disk_that_fills_up_midway(
    invoke: Invoke, blocks: Path, tmp_path: Path, small_disk: Path, whole: tuple[bytes, int]
) -> None:

    def fill() -> None:
        with (small_disk / "others").open("wb", buffering=0) as file, suppress(OSError):
            while True:
                file.write(bytes(4096))

    arguments = (*training(blocks, tmp_path / "run"), "--spill", small_disk / "spill")
    # Early: each epoch writes anew, what comes late in one may all stay in memory.
    with at_load(whole[1] // 4, fill):
        ended = invoke(*arguments)
    check_message(ended, "a spill folder cannot be written: No space left on device")
    # What the folder is made of is said at the start.
    assert "lies in memory (tmpfs)" in ended.err
    assert [path.name for path in small_disk.iterdir()] == ["others"]


def test_ctrl_c_finishes_the_epoch(invoke: Invoke, blocks: Path, tmp_path: Path, whole: tuple[bytes, int]) -> None:
    weights, num_loads = whole
    with at_load(num_loads // 2, lambda: signal.raise_signal(signal.SIGINT)):
        ended = invoke(*training(blocks, tmp_path / "run"))
    assert ended.code == 130
    assert "Stopping after this epoch" in ended.err
    assert f"Interrupted after epoch {EPOCHS // 2 + 1}, and saved." in ended.err
    check_left(tmp_path / "run")
    check_resumed(invoke, blocks, tmp_path / "run", weights)


@pytest.mark.slow
def test_a_second_ctrl_c_stops_in_the_midst_of_an_epoch(
    invoke: Invoke, blocks: Path, tmp_path: Path, whole: tuple[bytes, int]
) -> None:
    weights, num_loads = whole
    main_thread = threading.main_thread().ident
    assert main_thread is not None

    def press() -> None:
        for _ in range(2):
            signal.pthread_kill(main_thread, signal.SIGINT)
            threading.Event().wait(0.2)

    with at_load(num_loads // 2, press):
        ended = invoke(*training(blocks, tmp_path / "run"))
    assert ended.code == 130
    assert "Stopping after this epoch" in ended.err
    assert "Interrupted after" not in ended.err
    assert "Traceback" not in ended.err
    check_left(tmp_path / "run")
    check_resumed(invoke, blocks, tmp_path / "run", weights)


@pytest.mark.slow
def test_kill_9_in_the_midst_of_an_epoch(
    invoke: Invoke, warm: Warm, blocks: Path, tmp_path: Path, whole: tuple[bytes, int]
) -> None:
    weights, num_loads = whole
    out = tmp_path / "run"
    ended, _ = signalled(warm, "KILL", num_loads // 2, 0.0, training(blocks, out))
    assert ended.code == -signal.SIGKILL
    check_left(out)
    check_resumed(invoke, blocks, out, weights)


def signalled(
    warm: Warm, names: str, num_loads: int, later_s: float, arguments: Arguments
) -> tuple[Outcome, float]:
    """Run a command that sends itself signals at a load, after which loads are slow; how it ended, and seconds until then."""
    with warm.start(names, num_loads, later_s, *arguments, module="tests.cli.mischief") as process:
        out, err = process.communicate()
    seconds = time.monotonic() - float(out.splitlines()[0])
    assert process.returncode is not None
    return Outcome(code=process.returncode, out=out, err=err), seconds


def check_terminated(ended: Outcome, out: Path) -> None:
    assert ended.code == 143, ended.err
    assert "Traceback" not in ended.err
    check_left(out)


@pytest.mark.slow
def test_sigterm_finishes_an_epoch_that_takes_seconds(
    invoke: Invoke, warm: Warm, blocks: Path, tmp_path: Path, whole: tuple[bytes, int]
) -> None:
    weights, num_loads = whole
    out = tmp_path / "run"
    ended, seconds = signalled(warm, "TERM", num_loads // 2, 0.0, training(blocks, out))
    check_terminated(ended, out)
    assert seconds < 60
    assert f"Interrupted after epoch {EPOCHS // 2 + 1}, and saved." in ended.err
    check_resumed(invoke, blocks, out, weights)


@pytest.mark.slow
def test_a_second_sigterm_gives_an_epoch_up(
    invoke: Invoke, warm: Warm, blocks: Path, tmp_path: Path, whole: tuple[bytes, int]
) -> None:
    weights, num_loads = whole
    out = tmp_path / "run"
    ended, seconds = signalled(warm, "TERM,TERM", num_loads // 2, 0.5, training(blocks, out))
    check_terminated(ended, out)
    assert seconds < 60
    assert ended.err.count("Error: terminated\n") == 1
    assert [path.name for path in (out / "checkpoints").iterdir()] == [f"epoch-{EPOCHS // 2:06d}.pt"]
    check_resumed(invoke, blocks, out, weights)


@pytest.mark.slow
@pytest.mark.parametrize("command", ["evaluate", "predict"])
def test_sigterm_while_a_model_is_used(
    finished: tuple[Path, int], warm: Warm, tmp_path: Path, command: str
) -> None:
    run, spill, out = finished[0], tmp_path / "spill", tmp_path / "results" / "out.npy"
    out.parent.mkdir()
    arguments: Arguments = (command, "--run", run, "--spill", spill)
    if command != "evaluate":
        arguments += ("--out", out)
    ended, seconds = signalled(warm, "TERM", 3, 0.5, arguments)
    check_terminated(ended, run)
    assert seconds < 60
    assert not spill.exists()
    assert list(out.parent.iterdir()) == []
