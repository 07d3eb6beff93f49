"""Workers on hosts of their own: the printed command, a cable that is pulled or slow, workers that are lost or that disagree.

Importing PyTorch takes seconds, so workers whose launcher is not what is tried are forks (``start_by_hand``).
"""

from __future__ import annotations

import os
import re
import shlex
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from bench.size.limit import Ended, Limit, drop_cached
from sagann import save_graph
from sagann.graph import Graph, Topology
from sagann.graph.rmat import rmat_edges
from tests.cli.conftest import Invoke
from tests.cli.test_launch import OPTIONS, ended, start_by_hand, wait_for_epochs
from tests.cli.test_process import DEADLINE_S, WITHIN_S
from tests.cli.warm import Warm
from tests.hosts import Host, hosts
from tests.train.runs import lines_of

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
OWN_BYTES, BUDGET_BYTES = 320 << 20, 96 << 20
"Memory of a worker without any data, and its budget."


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[list[Host]]:
    """Two hosts; a test leaves no process and no shared memory on them."""
    with hosts(tmp_path / "hosts") as made:
        yield made
        for host in made:
            host.wait_until_empty()
            assert host.left() == []


def with_torchrun() -> dict[str, str]:
    """The environment in which torchrun is that of this Python."""
    return {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}


def printed_command() -> str:
    """The command for several hosts with processors that the page has."""
    found = re.findall(r"^torchrun (?:.*\\\n)*.*$", PAGE.read_text(), flags=re.MULTILINE)
    (printed,) = (command for command in found if "--nnodes" in command and "--device cuda" not in command)
    return printed


@pytest.mark.thorough
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
    together, expected = lines_of(tmp_path / "run"), lines_of(tmp_path / "alone")
    assert len(together) == len(expected)
    for mine, theirs in zip(together, expected, strict=True):
        assert mine == pytest.approx(theirs, rel=1e-5)


@pytest.mark.parametrize(
    ("harm", "options"),
    [
        (Host.cut, ()),
        pytest.param(Host.unplug, (), marks=pytest.mark.thorough),
        (Host.cut, ("--memory", "40MiB")),
        (Host.cut, ("--model", "sage", "--sample", "5,3", "--batch-size", 16)),
    ],
    ids=["cut", "unplugged", "cut while streaming", "cut while sampling"],
)
def test_a_cable_that_is_pulled_ends_both_workers_in_time(
    pair: list[Host],
    blocks: Path,
    tmp_path: Path,
    warm: Warm,
    harm: Callable[[Host], None],
    options: tuple[object, ...],
) -> None:
    folder, spill = tmp_path / "run", tmp_path / "spill"
    spill.mkdir()
    options = (*options, "--spill", str(spill)) if "--memory" in options else options
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


@pytest.mark.thorough
def test_hosts_with_memory_for_half_of_the_graph_train_it(pair: list[Host], tmp_path: Path, invoke: Invoke) -> None:
    half = large_graph(tmp_path / "graph") // 2
    limit_bytes = OWN_BYTES + BUDGET_BYTES + half
    assert limit_bytes < OWN_BYTES + 2 * half
    words = ("train", "--data", tmp_path / "graph", "--model", "sage", "--hidden", 16, "--epochs", 2)
    words += ("--sample", "10,5", "--batch-size", 256, "--device", "cpu")
    drop_cached(tmp_path / "graph")

    def train(rank: int) -> Ended:
        place = {"RANK": rank, "WORLD_SIZE": 2, "MASTER_ADDR": pair[0].name, "MASTER_PORT": 29500}
        options = ("--memory", f"{BUDGET_BYTES >> 20}MiB", "--spill", tmp_path / "spill", "--out", tmp_path / "run")
        command = [*pair[rank].inside(tmp_path), sys.executable, "-m", "sagann", *map(str, (*words, *options))]
        with Limit(f"sagann-{tmp_path.name}-{rank}", limit_bytes) as limit:
            return limit.run(command, {name: str(value) for name, value in place.items()}, timeout_s=DEADLINE_S)

    with ThreadPoolExecutor(2) as threads:
        for found in threads.map(train, range(2)):
            assert found.outcome == "ok", found.errors
            assert found.kills == 0
    alone = invoke(*words, "--out", tmp_path / "alone")
    assert alone.code == 0, alone.err
    losses = [[line["loss"] for line in lines_of(tmp_path / run)] for run in ("run", "alone")]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def large_graph(folder: Path) -> int:
    """A graph with features of 400 MB; the bytes of its files."""
    num_vertices, generator = 250_000, torch.Generator().manual_seed(0)
    src, dst = rmat_edges(num_vertices, 2_000_000, seed=0)
    is_trained = torch.arange(num_vertices) % 125 == 0
    graph = Graph(
        topology=Topology.from_coo(src=src, dst=dst, num_src=num_vertices),
        features=torch.randn(num_vertices, 400, generator=generator),
        labels=torch.randint(8, (num_vertices,), generator=generator),
        num_classes=8,
        splits={"train": is_trained, "val": is_trained.roll(1)},
    )
    save_graph(graph, folder)
    return sum(path.stat().st_size for path in folder.iterdir())
