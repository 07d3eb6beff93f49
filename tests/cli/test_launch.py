"""`sagann train` by several workers, as processes: the same numbers, a killed worker, workers that disagree.

Importing PyTorch takes seconds in each of them, so launchers are forks, and so are workers whose launcher is not what is tried
(``by_hand``).
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path

import pytest
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

from bench.workers import free_port
from sagann.cli.failure import failure_of
from sagann.cli.launch import joined, launch_workers
from sagann.cli.options import Shared
from sagann.errors import WorkerError
from sagann.free_space import Memory
from sagann.runtime.workers import Workers
from tests.cli.conftest import Invoke
from tests.cli.test_process import DEADLINE_S, run, wait_until
from tests.cli.warm import Warm, WarmProcess
from tests.hosts import Host, listening
from tests.hybrid.processes import is_running
from tests.shared import SharedFolder
from tests.train.runs import lines_of

pytestmark = [pytest.mark.distributed, pytest.mark.slow]
EPOCHS = 12
OPTIONS = ("--model", "gcn", "--hidden", 8, "--checkpoint-every", 3, "--device", "cpu")
ENVIRONMENT = {"OMP_NUM_THREADS": "1"}


def workers_of(launcher: subprocess.Popen[str] | WarmProcess) -> list[int]:
    """Process ids of the workers that a launcher has started, in the order of the ranks."""
    found: dict[int, int] = {}
    for children in Path(f"/proc/{launcher.pid}/task").glob("*/children"):
        for pid in map(int, children.read_text().split()):
            variables = dict(
                each.split("=", 1) for each in Path(f"/proc/{pid}/environ").read_text().split("\0") if "=" in each
            )
            if "RANK" in variables:
                found[int(variables["RANK"])] = pid
    return [found[rank] for rank in sorted(found)]


def wait_for_epochs(folder: Path, num_epochs: int, process: subprocess.Popen[str] | WarmProcess) -> None:
    path = folder / "metrics.jsonl"
    wait_until(lambda: path.exists() and path.read_bytes().count(b"\n") >= num_epochs, process)


@pytest.fixture(scope="module")
def together(blocks: Path, shared_folder: SharedFolder) -> Path:
    """The folder of a run of two workers."""

    def train(folder: Path) -> None:
        options = (*OPTIONS, "--epochs", EPOCHS, "--workers", 2, "--out", folder / "run")
        code, out, err = run("train", "--data", blocks, *options, env=ENVIRONMENT)
        assert code == 0, err
        # One worker reports, and the launcher says nothing.
        assert out.count("Run saved in") == 1
        assert len(err.splitlines()) <= 1, err

    return shared_folder("together", train) / "run"


def test_two_workers_train_what_one_trains(together: Path, blocks: Path, tmp_path: Path, invoke: Invoke) -> None:
    alone = tmp_path / "alone"
    ended = invoke("train", "--data", blocks, *OPTIONS, "--epochs", EPOCHS, "--out", alone)
    assert ended.code == 0, ended.err
    found, expected = lines_of(together), lines_of(alone)
    assert len(found) == EPOCHS
    for mine, theirs in zip(found, expected, strict=True):
        assert mine == pytest.approx(theirs, rel=1e-5)
    assert json.loads((together / "run.json").read_text())["versions"]["workers"] == 2
    # A run of workers is evaluated by one process, as any run.
    assert invoke("evaluate", "--run", together).code == 0


def test_a_killed_worker_ends_the_run_which_resumes(
    together: Path, blocks: Path, tmp_path: Path, warm: Warm
) -> None:
    folder = tmp_path / "killed"
    # So many epochs that the run does not end before the kill.
    arguments = ("train", "--data", blocks, *OPTIONS, "--epochs", 100000, "--workers", 2, "--out", folder)
    with warm.start(*arguments, env=ENVIRONMENT) as process:
        wait_for_epochs(folder, 4, process)
        pids = workers_of(process)
        assert len(pids) == 2
        # Nobody from outside can take part: the launcher's store and the sockets of both workers listen on the loopback alone.
        assert all(listening([pid]) == {"127.0.0.1"} for pid in (process.pid, *pids))
        os.kill(pids[1], signal.SIGKILL)
        since_s = time.monotonic()
        out, err = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 2, err
    assert time.monotonic() - since_s < 45
    assert "Error: worker 1 of 2 was killed: SIGKILL" in err
    assert f"sagann train --resume --out {folder}" in err
    assert "Traceback" not in err
    assert out == ""
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
    done = len(lines_of(folder))
    resume = ("train", "--resume", "--out", folder, "--epochs", max(EPOCHS, done))
    for code, _, err in by_hand(warm, commands=[resume, resume]):
        assert code == 0, err
    # Bit for bit: the same number of workers gives the same run.
    assert lines_of(folder)[:EPOCHS] == lines_of(together)


SAMPLED = ("--model", "sage", "--hidden", 8, "--sample", "5,3", "--batch-size", 16, "--device", "cpu")


@pytest.mark.parametrize("signum", [signal.SIGKILL, pytest.param(signal.SIGSTOP, marks=pytest.mark.thorough)])
def test_a_sampled_worker_that_is_lost_is_named_and_leaves_nothing(
    signum: signal.Signals, blocks: Path, tmp_path: Path, warm: Warm
) -> None:
    folder = tmp_path / "lost"
    arguments = ("train", "--data", blocks, *SAMPLED, "--epochs", 100000, "--workers", 2, "--worker-timeout", 2)
    with warm.start(*arguments, "--out", folder, env=ENVIRONMENT) as process:
        wait_for_epochs(folder, 4, process)
        pids = workers_of(process)
        # The sockets on which mini-batches are exchanged are connected, and listen no more.
        assert all(listening([pid]) == {"127.0.0.1"} for pid in (process.pid, *pids))
        os.kill(pids[1], signum)
        out, err = process.communicate(timeout=DEADLINE_S)
    assert (process.returncode, out) == (2, ""), err
    named = (
        "worker 1 of 2 was killed: SIGKILL"
        if signum == signal.SIGKILL
        else "worker 1 is gone: no answer within 2 s"
    )
    assert f"Error: {named}" in err
    assert "--resume" in err
    assert "Traceback" not in err
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


@pytest.mark.thorough
def test_a_sampled_run_goes_on_with_any_number_of_workers(
    blocks: Path, tmp_path: Path, warm: Warm, invoke: Invoke
) -> None:
    folder, alone = tmp_path / "run", tmp_path / "alone"
    assert invoke("train", "--data", blocks, *SAMPLED, "--epochs", EPOCHS, "--out", alone).code == 0
    command: tuple[object, ...] = ("train", "--data", blocks, *SAMPLED, "--out", folder)
    for part, size in enumerate((3, 1, 4, 2), 1):
        words = (*command, "--epochs", part * EPOCHS // 4)
        if size == 1:
            assert invoke(*words).code == 0
        else:
            assert [code for code, *_ in by_hand(warm, commands=[words] * size)] == [0] * size
        command = ("train", "--resume", "--out", folder)
    found, expected = lines_of(folder), lines_of(alone)
    assert len(found) == EPOCHS
    for mine, theirs in zip(found, expected, strict=True):
        # A vertex that the shares of two workers reach has its edges at both.
        assert mine.pop("num_edges") >= 0.9 * theirs.pop("num_edges")
        assert mine == pytest.approx(theirs, rel=1e-5)


@pytest.mark.thorough
def test_torchrun_starts_the_same_run(together: Path, blocks: Path, tmp_path: Path) -> None:
    torchrun = (
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc-per-node=2",
        "--master-port",
        str(free_port()),
    )
    arguments = ("train", "--data", blocks, *OPTIONS, "--epochs", EPOCHS, "--out", tmp_path / "run")
    command = [*torchrun, "-m", "sagann", *map(str, arguments)]
    ended = subprocess.run(
        command, capture_output=True, text=True, timeout=DEADLINE_S, env={**os.environ, **ENVIRONMENT}, check=False
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.count("Run saved in") == 1
    assert lines_of(tmp_path / "run") == lines_of(together)


def start_by_hand(
    warm: Warm,
    *,
    commands: Sequence[Sequence[object]],
    restarts: int = 0,
    hosts: Sequence[Host] = (),
    env: Mapping[int, Mapping[str, str]] | None = None,
    modules: Mapping[int, str] | None = None,
) -> list[WarmProcess]:
    """Workers with arguments of their own, started as torchrun starts them; each on its own host, where hosts are given.

    ``env`` are variables of single workers, and ``modules`` what they run instead of the program, by rank.
    """
    address = hosts[0].name if hosts else "127.0.0.1"
    # Nobody else listens on hosts of their own.
    port = 29500 if hosts else free_port()
    common = {"WORLD_SIZE": len(commands), "MASTER_ADDR": address, "MASTER_PORT": port}
    started = []
    for rank, command in enumerate(commands):
        variables = {"TORCHELASTIC_RESTART_COUNT": restarts, "RANK": rank, **common, **((env or {}).get(rank, {}))}
        host = hosts[rank] if hosts else None
        env_of = {name: str(value) for name, value in variables.items()}
        module = (modules or {}).get(rank, "sagann.__main__")
        started.append(warm.start(*command, env=env_of, module=module, host=host))
    return started


def ended(processes: Sequence[WarmProcess]) -> list[tuple[int, str, str]]:
    """Exit codes and outputs of processes that end by themselves."""
    said = []
    for process in processes:
        with process:
            out, err = process.communicate(timeout=DEADLINE_S)
            said.append((process.wait(DEADLINE_S), out, err))
    return said


def by_hand(warm: Warm, *, commands: Sequence[Sequence[object]], restarts: int = 0) -> list[tuple[int, str, str]]:
    """The outcomes of workers with arguments of their own, started as torchrun starts them."""
    return ended(start_by_hand(warm, commands=commands, restarts=restarts))


def test_workers_end_with_a_launcher_that_is_killed_and_no_folder_is_left(
    blocks: Path, tmp_path: Path, warm: Warm
) -> None:
    folder, temporary = tmp_path / "run", tmp_path / "temporary"
    temporary.mkdir()
    options = (*OPTIONS, "--epochs", 100000, "--workers", 2, "--out", folder)
    with warm.start("train", "--data", blocks, *options, env={**ENVIRONMENT, "TMPDIR": str(temporary)}) as process:
        wait_for_epochs(folder, 4, process)
        pids = workers_of(process)
        process.kill()
        limit_s = time.monotonic() + 20
        try:
            # Not zombies: who adopts them may take its time.
            while any(is_running(pid) for pid in pids):
                assert time.monotonic() < limit_s
                time.sleep(0.05)
        finally:
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
    assert list(temporary.glob("torchelastic_*")) == []


def launched(failures: Mapping[int, ProcessFailure], folder: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    """What the launcher returns or raises where workers fail so, all in the same second."""
    for failure in failures.values():
        failure.timestamp = 1

    def launch(*_: str) -> None:
        raise ChildFailedError("sagann", dict(failures))

    monkeypatch.setattr("torch.distributed.launcher.api.elastic_launch", lambda *_: launch)
    try:
        return launch_workers([], 2, run_dir=folder, again="Start again.")
    finally:
        assert "SAGANN_LAUNCHER" not in os.environ


def test_a_killed_worker_is_named_before_those_that_it_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = {0: ProcessFailure(0, 10, 2, os.devnull), 1: ProcessFailure(1, 11, -signal.SIGKILL, os.devnull)}
    with pytest.raises(WorkerError, match=r"worker 1 of 2 was killed: SIGKILL.*when memory is short. Start again"):
        launched(failures, tmp_path, monkeypatch)


def test_a_worker_that_the_launcher_has_ended_is_not_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ended_by_us = ProcessFailure(0, 10, -signal.SIGTERM, os.devnull)
    said_why = ProcessFailure(1, 11, 2, os.devnull)
    assert launched({0: ended_by_us, 1: said_why}, tmp_path, monkeypatch) == 2
    silent = ProcessFailure(1, 11, 7, os.devnull)
    with pytest.raises(WorkerError, match="worker 1 of 2 has failed: exit code 7") as failed:
        launched({0: ended_by_us, 1: silent}, tmp_path, monkeypatch)
    # Memory is a reason for SIGKILL alone.
    assert failed.value.hint == "Start again."


@pytest.mark.parametrize("error", [WorkerError(":  (in )", hint=""), OSError(), ValueError()])
def test_an_error_names_the_worker_that_says_it(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    workers = nullcontext(Workers(rank=1, size=2))
    monkeypatch.setattr("sagann.runtime.workers.join_workers", lambda **options: workers)
    with pytest.raises(type(error)), joined(Shared(), {}, timeout_s=60.0, balance="edges"):
        raise error
    assert failure_of(error).notes == ("said by worker 1 of 2",)


def test_ctrl_c_waits_for_an_epoch_however_long_it_takes(blocks: Path, tmp_path: Path, warm: Warm) -> None:
    # torchrun would kill workers half a minute after Ctrl-C, or after no time where this variable says so.
    env = {**ENVIRONMENT, "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "0"}
    options = (*OPTIONS, "--workers", 2, "--epochs", 100000, "--out", tmp_path / "run")
    with warm.start("train", "--data", blocks, *options, env=env) as process:
        wait_for_epochs(tmp_path / "run", 4, process)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 130
    assert "sagann train --resume" in err


def test_workers_that_torchrun_restarts_resume_by_themselves(
    together: Path, blocks: Path, tmp_path: Path, warm: Warm
) -> None:
    folder = tmp_path / "restarted"
    subprocess.run(["cp", "-r", together, folder], check=True)
    command = ("train", "--data", blocks, *OPTIONS, "--epochs", EPOCHS + 2, "--out", folder)
    for code, _, err in by_hand(warm, commands=[command, command], restarts=1):
        assert code == 0, err
    assert lines_of(folder)[:EPOCHS] == lines_of(together)
    assert len(lines_of(folder)) == EPOCHS + 2


def test_workers_that_do_not_fit_memory_are_not_started(
    blocks: Path, tmp_path: Path, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A number that came from a damaged file is refused; two are asked for, so that a failing test starts no more."""
    free = Memory(total_bytes=2**33, available_bytes=600 << 20, limit_bytes=None, limit_used_bytes=None)
    monkeypatch.setattr("sagann.free_space.memory", lambda: free)
    config = tmp_path / "run.toml"
    config.write_text(
        f"[data]\ndata = {json.dumps(str(blocks))}\n[train]\nepochs = 1\ndevice = 'cpu'\nworkers = 2\n"
    )
    ended = invoke("train", "--config", config, "--out", tmp_path / "run")
    assert ended.code == 2
    assert "the work does not fit memory: at least 640.0 MiB are needed, 600.0 MiB are free" in ended.err
    assert "2 workers" in ended.err
    assert not (tmp_path / "run").exists()
