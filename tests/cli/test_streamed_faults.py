"""Faults in the middle of a streamed epoch: one message, nothing left behind, and the run goes on bitwise."""

from __future__ import annotations

import signal
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from tests.cli.conftest import Invoke, Outcome
from tests.cli.mischief import at_load
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


def test_a_disk_that_fills_up_midway(
    invoke: Invoke, blocks: Path, tmp_path: Path, small_disk: Path, whole: tuple[bytes, int]
) -> None:

    def fill() -> None:
        with (small_disk / "others").open("wb", buffering=0) as file, suppress(OSError):
            while True:
                file.write(bytes(4096))

    arguments = (*training(blocks, tmp_path / "run"), "--spill", small_disk / "spill")
    # Early: each epoch writes anew, what comes late in one may all stay in memory.
    with at_load(1, fill):
        ended = invoke(*arguments)
    check_message(ended, "a spill folder cannot be written: No space left on device")
    # What the folder is made of is said at the start.
    assert "lies in memory (tmpfs)" in ended.err
    assert [path.name for path in small_disk.iterdir()] == ["others"]


@pytest.mark.slow
def test_a_second_ctrl_c_stops_in_the_midst_of_an_epoch(
    invoke: Invoke, blocks: Path, tmp_path: Path, whole: tuple[bytes, int]
) -> None:
    weights, num_loads = whole
    main_thread = threading.main_thread().ident

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
