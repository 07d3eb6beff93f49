"""Workers on hosts of their own: the printed command, a cable that is pulled or slow, workers that are lost or that disagree.

Importing PyTorch takes seconds, so workers whose launcher is not what is tried are forks (``start_by_hand``).
"""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median

import pytest

from sagann import __version__
from sagann.graph import random_split, sbm_graph
from sagann.storage import save_graph
from tests.cli.conftest import Invoke
from tests.cli.test_launch import OPTIONS, by_hand, ended, history, start_by_hand, wait_for_epochs, workers_of
from tests.cli.test_process import DEADLINE_S, WITHIN_S
from tests.cli.warm import Warm
from tests.hosts import Host, hosts
from tests.hybrid import faulty_layer
from tests.hybrid.processes import is_running, memory_group
from tests.shared import SharedFolder

pytestmark = [
    pytest.mark.distributed,
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(sys.platform != "linux", reason="hosts are namespaces of Linux"),
]
ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/workers.md"
TIMEOUT_S = 2
"Seconds for which workers wait for one that does not answer."
EPOCHS = 100
"Epochs of runs whose numbers are compared. They are harmed after four, and have not ended then."


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[list[Host]]:
    """Two hosts; a test leaves no process and no shared memory on them."""
    with hosts(tmp_path / "hosts") as made:
        yield made
        for host in made:
            host.wait_until_empty()
            assert host.left() == []


@pytest.fixture(scope="module")
def undisturbed(blocks: Path, shared_folder: SharedFolder, warm: Warm) -> Path:
    """The folder of a run of two workers that nothing harms."""

    def train(folder: Path) -> None:
        command = ("train", "--data", blocks, *OPTIONS, "--epochs", EPOCHS, "--out", folder / "run")
        for code, _, err in by_hand(warm, commands=[command, command]):
            assert code == 0, err

    return shared_folder("undisturbed", train) / "run"


def start_torchrun(host: Host, *options: str, trains: tuple[object, ...]) -> subprocess.Popen[str]:
    """Start torchrun with options on a host, to train with arguments."""
    return host.start("torchrun", *options, "-m", "sagann", "train", *trains, env=with_torchrun())


def with_torchrun() -> dict[str, str]:
    """The environment in which torchrun is that of this Python."""
    return {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}


def printed_command() -> str:
    """The command for several hosts with processors that the page has."""
    found = re.findall(r"^torchrun (?:.*\\\n)*.*$", PAGE.read_text(), flags=re.MULTILINE)
    (printed,) = (command for command in found if "--nnodes" in command and "--device cuda" not in command)
    return printed


def test_the_printed_command_trains_on_two_hosts_what_one_process_trains(
    pair: list[Host], blocks: Path, tmp_path: Path, invoke: Invoke
) -> None:
    printed = printed_command()
    placeholders = {"HOST": pair[0].name, "GRAPH": str(blocks), "RUN": "run"}
    command = re.sub("HOST|GRAPH|RUN", lambda found: placeholders[found[0]], printed.replace("\\\n", ""))
    words = shlex.split(command)
    assert str(blocks) in words
    processes = [host.start(*words, cwd=tmp_path, env=with_torchrun()) for host in pair]
    said = [process.communicate(timeout=DEADLINE_S) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], said
    # torchrun decides on which host the first worker is, who reports.
    assert sum(out.count("Run saved in") for out, _ in said) == 1
    alone = invoke("train", *words[words.index("train") + 1 : -1], tmp_path / "alone", "--device", "cpu")
    assert alone.code == 0, alone.err
    together, expected = history(tmp_path / "run"), history(tmp_path / "alone")
    assert len(together) == len(expected)
    for mine, theirs in zip(together, expected, strict=True):
        assert mine == pytest.approx(theirs, rel=1e-5)


@pytest.mark.parametrize(
    ("harm", "options"),
    [
        (Host.cut, ()),
        pytest.param(Host.unplug, (), marks=pytest.mark.thorough),
        (Host.cut, ("--memory", "40MiB")),
    ],
    ids=["cut", "unplugged", "cut while streaming"],
)
def test_a_cable_that_is_pulled_ends_both_workers_in_time(
    pair: list[Host],
    blocks: Path,
    tmp_path: Path,
    warm: Warm,
    harm: Callable[[Host], None],
    options: tuple[str, ...],
) -> None:
    folder, spill = tmp_path / "run", tmp_path / "spill"
    spill.mkdir()
    options = (*options, "--spill", str(spill)) if options else ()
    patience = ("--worker-timeout", TIMEOUT_S)
    command = ("train", "--data", blocks, *OPTIONS, *options, *patience, "--epochs", 100000, "--out", folder)
    processes = start_by_hand(warm, commands=[command, command], hosts=pair)
    wait_for_epochs(folder, 4, processes[0])
    harm(pair[1])
    since_s = time.monotonic()
    said = ended(processes)
    assert time.monotonic() - since_s < TIMEOUT_S + WITHIN_S / 2
    for rank, (code, out, err) in enumerate(said):
        assert (code, out) == (2, ""), err
        assert f"Error: worker {1 - rank} is gone: no answer within {TIMEOUT_S} s while " in err
        assert f"(in worker {rank} of 2" in err
        assert "continue with --resume. A worker that is only slow wants a longer --worker-timeout." in err
        assert "Traceback" not in err
    assert not os.listdir(spill)
    assert not list(folder.glob("spill*"))


def test_a_cable_that_is_out_for_a_second_and_then_slow_changes_no_number(
    pair: list[Host], blocks: Path, undisturbed: Path, tmp_path: Path, warm: Warm
) -> None:
    folder = tmp_path / "run"
    command = ("train", "--data", blocks, *OPTIONS, "--worker-timeout", 20, "--epochs", EPOCHS, "--out", folder)
    processes = start_by_hand(warm, commands=[command, command], hosts=pair)
    wait_for_epochs(folder, 4, processes[0])
    pair[1].cut()
    time.sleep(1)
    pair[1].join()
    pair[1].slow("128kbit")
    # The epoch that it was in may have sent all before.
    begin = num_epochs(folder) + 1
    wait_for_epochs(folder, begin + 2, processes[0])
    end = num_epochs(folder)
    pair[1].mend()
    for code, _, err in ended(processes):
        assert code == 0, err
    assert history(folder) == history(undisturbed)
    seconds = [json.loads(line)["epoch_s"] for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert min(seconds[begin:end]) > 2 * median(seconds[end + 1 :])


@pytest.mark.parametrize("fault", ["killed", "stopped", pytest.param("out of memory", marks=pytest.mark.thorough)])
def test_a_worker_that_is_lost_on_one_host_ends_that_of_the_other(
    pair: list[Host], blocks: Path, tmp_path: Path, warm: Warm, fault: str
) -> None:
    folder = tmp_path / "run"
    hungry = ("--model", f"{faulty_layer.__file__}:Faulty", "--engine", "naive")
    given = (*OPTIONS, *(hungry if fault == "out of memory" else ()), "--worker-timeout", TIMEOUT_S)
    command = ("train", "--data", blocks, *given, "--epochs", 100000, "--out", folder)
    with ExitStack() as stack:
        limit = stack.enter_context(memory_group(64 * 2**20)) if fault == "out of memory" else None
        processes = start_by_hand(warm, commands=[command, command], hosts=pair, env={1: {"FAULT": "memory"}})
        wait_for_epochs(folder, 4, processes[0])
        if limit is not None:
            (limit / "cgroup.procs").write_text(str(processes[1].pid))
        else:
            os.kill(processes[1].pid, signal.SIGKILL if fault == "killed" else signal.SIGSTOP)
        since_s = time.monotonic()
        [(code, out, err)] = ended(processes[:1])
        assert time.monotonic() - since_s < TIMEOUT_S + WITHIN_S / 2
        processes[1].send_signal(signal.SIGCONT)
        [(code_of_lost, _, err_of_lost)] = ended(processes[1:])
    assert (code, out) == (2, ""), err
    why = f"no answer within {TIMEOUT_S} s" if fault == "stopped" else "its connection was lost"
    assert f"Error: worker 1 is gone: {why}" in err
    assert "(in worker 0 of 2" in err
    assert "continue with --resume" in err
    assert "Traceback" not in err
    if fault == "stopped":
        # It goes on, and nobody is there any more.
        assert code_of_lost == 2
        assert "Error: worker 0 is gone: " in err_of_lost
    else:
        assert code_of_lost == -signal.SIGKILL


@pytest.mark.parametrize("difference", ["data", "version"])
def test_workers_of_two_hosts_that_disagree_are_refused_with_both_values(
    pair: list[Host], blocks: Path, tmp_path: Path, warm: Warm, difference: str
) -> None:
    other = tmp_path / "other"
    graph = sbm_graph(
        120, num_classes=3, average_degree=6, homophily=0.9, num_features=6, feature_noise=0.3, seed=2
    )
    save_graph(random_split(graph, seed=1), other)
    given = {
        "data": ("--data", other),
        "version": ("--data", blocks),
    }
    common = (*OPTIONS, "--epochs", 2, "--out", tmp_path / "run")
    commands = [("train", "--data", blocks, *common), ("train", *given[difference], *common)]
    modules = {1: "tests.cli.other_version"} if difference == "version" else {}
    expected = {
        "data": r"graph\.\S+ is \S+ at worker 0, and \S+ at worker 1",
        "version": rf"versions\.sagann is {re.escape(__version__)} at worker 0, and 0\.0\.1 at worker 1",
    }
    for code, out, err in ended(start_by_hand(warm, commands=commands, hosts=pair, modules=modules)):
        assert (code, out) == (2, "")
        assert re.search(f"Error: the workers disagree: {expected[difference]}", err), err
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


@pytest.mark.thorough
def test_torchrun_restarts_a_run_that_is_harmed_twice_which_ends_as_an_undisturbed_one(
    pair: list[Host], blocks: Path, undisturbed: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    options = (*two_nodes(pair), "--max-restarts=5")
    trains = ("--data", blocks, *OPTIONS, "--worker-timeout", TIMEOUT_S, "--epochs", EPOCHS, "--out", folder)
    processes = [start_torchrun(host, *options, trains=trains) for host in pair]
    wait_for_epochs(folder, 4, processes[0])
    os.kill(workers_of(processes[1])[0], signal.SIGKILL)
    wait_for_epochs(folder, num_epochs(folder) + 10, processes[0])
    pair[1].cut()
    wait_for_workers(processes)
    pair[1].join()
    said = [process.communicate(timeout=DEADLINE_S) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], said
    assert history(folder) == history(undisturbed)


@pytest.mark.thorough
def test_a_cable_that_stays_out_ends_the_workers_under_torchrun(
    pair: list[Host], blocks: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    trains = ("--data", blocks, *OPTIONS, "--worker-timeout", TIMEOUT_S, "--epochs", 100000, "--out", folder)
    processes = [start_torchrun(host, *two_nodes(pair), trains=trains) for host in pair]
    wait_for_epochs(folder, 4, processes[0])
    pair[1].cut()
    wait_for_workers(processes)
    # torchrun waits on the host that is cut off from its rendezvous, until the system gives the connection up.
    said = [processes[0].communicate(timeout=DEADLINE_S)]
    pair[1].join()
    said.append(processes[1].communicate(timeout=DEADLINE_S))
    assert [process.returncode for process in processes] == [1, 1], said
    for _, err in said:
        assert re.search(rf"Error: worker [01] is gone: no answer within {TIMEOUT_S} s while ", err)


def wait_for_workers(launchers: Sequence[subprocess.Popen[str]]) -> None:
    """Wait until the workers that launchers have started now have ended."""
    pids = [pid for launcher in launchers for pid in workers_of(launcher)]
    limit_s = time.monotonic() + TIMEOUT_S + WITHIN_S
    while any(map(is_running, pids)):
        assert time.monotonic() < limit_s
        time.sleep(0.05)


def two_nodes(pair: list[Host]) -> tuple[str, ...]:
    """Options of torchrun for two hosts."""
    return ("--nnodes=2", "--nproc-per-node=1", "--rdzv-backend=c10d", f"--rdzv-endpoint={pair[0].name}:29400")


def num_epochs(folder: Path) -> int:
    """Number of epochs that a run has told."""
    return (folder / "metrics.jsonl").read_bytes().count(b"\n")
