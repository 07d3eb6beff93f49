"""What top will show of a process that trains: the parts, and the peak of a real process."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from sagann.graph import Graph, Topology, sbm_graph
from sagann.graph.rows import csr_tensor
from sagann.runtime.forecasting.resident import expected_resident
from sagann.storage import save_graph
from tests.plan.machines import ROUND

GRAPH = Graph(
    topology=Topology.from_coo(
        src=torch.arange(3), dst=torch.arange(3), num_src=4, edge_data={"weight": torch.ones(3)}
    ),
    features=torch.ones(4, 5),
    labels=torch.zeros(4, dtype=torch.int64),
    num_classes=1,
    splits={"train": torch.ones(4, dtype=torch.bool)},
)
EDGES_BYTES = 5 * 8 + 3 * 4 + 3 * 4


def graph_bytes(*graphs: Graph) -> int:
    return expected_resident(nn.Linear(2, 3), graphs, loaded_bytes=0, budget_bytes=0, num_vertices=0).graph_bytes


def test_the_arrays_of_a_graph_count_once() -> None:
    assert GRAPH.topology.indices.dtype == torch.int32
    whole = EDGES_BYTES + 4 * 5 * 4 + 4 * 8 + 4
    assert graph_bytes(GRAPH) == graph_bytes(GRAPH, replace(GRAPH)) == whole
    other = torch.zeros(4, 2)
    assert graph_bytes(GRAPH, replace(GRAPH, features=other)) == whole + other.nbytes
    offsets, columns = torch.arange(5, dtype=torch.int32), torch.zeros(4, dtype=torch.int32)
    sparse = csr_tensor(offsets, columns, torch.ones(4), num_columns=5)
    assert graph_bytes(replace(GRAPH, features=sparse)) == whole - 4 * 5 * 4 + 5 * 4 + 4 * 4 + 4 * 4
    assert graph_bytes(replace(GRAPH, features=None)) == whole - 4 * 5 * 4


def peak_bytes(*arguments: str) -> int:
    """The largest resident memory of a process of sagann, as the system counts it for that process alone."""
    process = subprocess.Popen(
        [sys.executable, "-m", "sagann", *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    peak, status = 0, Path(f"/proc/{process.pid}/status")
    while process.poll() is None:
        # A process that has ended has no memory.
        found = re.search(r"VmHWM:\s+(\d+)", status.read_text())
        peak = max(peak, 1024 * int(found[1]) if found else 0)
        time.sleep(0.01)
    assert process.returncode == 0
    return peak


@pytest.mark.thorough
@pytest.mark.parametrize(("num_vertices", "budget"), [(2000, "4MiB"), (60_000, "48MiB")])
def test_a_real_process_is_as_large_as_was_said(num_vertices: int, budget: str, tmp_path: Path) -> None:
    save_graph(
        sbm_graph(
            num_vertices,
            num_classes=4,
            average_degree=6,
            homophily=0.9,
            num_features=256,
            feature_noise=0.3,
            seed=1,
        ),
        tmp_path / "graph",
    )
    common = ("--data", str(tmp_path / "graph"), "--hidden", "32", "--memory", budget, "--device", "cpu", "--quiet")
    machine = tmp_path / "machine.toml"
    machine.write_text(ROUND.to_toml())
    command = [sys.executable, "-m", "sagann", "plan", *common, "--machine", str(machine)]
    plan = subprocess.run(command, capture_output=True, text=True, check=True)
    said = re.search(r"^In top: about ([0-9.]+) MiB resident", plan.stdout, re.MULTILINE)
    assert said is not None, plan.stdout
    train = ("train", *common, "--split", "random:0.6,0.2", "--epochs", "2", "--out", str(tmp_path / "run"))
    assert peak_bytes(*train) / 2**20 == pytest.approx(float(said[1]), rel=0.25)
