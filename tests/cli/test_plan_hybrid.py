"""``sagann plan --sample --devices``: hybrid training, predicted from rates, described or measured."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from sagann.cli.plan_trainers import sampled_counts
from sagann.graph import demo_graph
from sagann.hybrid.forecast import predict
from sagann.machines import published_machine
from tests.cli.conftest import Invoke
from tests.hybrid.settings import assignment, job

PLAN = ("plan", "--data", "demo", "--model", "sage", "--sample", "25,10", "--batch-size", "40")
U250 = ("--machine", "epyc-7763-u250")


def test_a_split_its_seconds_and_one_more_accelerator(invoke: Invoke) -> None:
    ended = invoke(*PLAN, "--devices", "host,accelerator,accelerator", *U250)
    assert ended.code == 0, ended.err
    found = re.search(r"Seeds of an iteration: (.+); 40 in all", ended.out)
    assert sum(map(int, re.findall(r"(\d+) on ", found[1]))) == 40
    assert "on accelerator1" in found[1]
    assert "Machine: two AMD EPYC 7763 and four Xilinx Alveo U250" in ended.out
    assert re.search(r"Threads of the processor: (\d+) sample, (\d+) load, (\d+) train\.", ended.out)
    assert re.search(r"Expected: [\d.]+ m?s an iteration, [\d.e-]+ s an epoch", ended.out)
    assert "The bottleneck is " in ended.out
    assert "Expected with one more accelerator: " in ended.out


def test_accelerators_alone_and_a_machine_of_ones_own(invoke: Invoke, tmp_path: Path) -> None:
    file = tmp_path / "machine.toml"
    file.write_text(published_machine("epyc-7763-a5000").to_toml())
    ended = invoke(*PLAN, "--devices", "accelerator", "--machine", file)
    assert ended.code == 0, ended.err
    assert "Seeds of an iteration: 40 on accelerator0; 40 in all" in ended.out
    assert "0 train." in ended.out


@pytest.fixture
def cores(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Gives this machine a number of cores, and trainers of round figures."""

    def given(count: int) -> None:
        monkeypatch.setattr("sagann.hybrid.devices.num_cores", lambda: count)
        monkeypatch.setattr("sagann.cli.plan_trainers.num_cores", lambda: count)
        monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(count)), raising=False)
        found = predict(job(), assignment(30, 10))
        monkeypatch.setattr("sagann.cli.plan_trainers.foretell_trainers", lambda trainer: (found, None))

    return given


@pytest.mark.parametrize("model", ["sage", "gat"])
def test_this_machine_is_rehearsed(model: str, invoke: Invoke, cores: Callable[[int], None]) -> None:
    cores(8)
    ended = invoke(*PLAN, "--model", model, "--devices", "host,accelerator:2", "--link-rate", "1e8")
    assert ended.code == 0, ended.err
    assert "Sampling, loading and training a few mini-batches with every trainer ..." in ended.err
    assert re.search(
        r"Machine: this one, .+, rehearsed; 6 of 8 cores for the processor's tasks, 2 for accelerator0\.", ended.out
    )
    assert "Seeds of an iteration: 30 on the processor, 10 on accelerator0; 40 in all" in ended.out


def test_a_real_trainer_is_rehearsed(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sagann.train.rehearsals.LONGEST_S", 0.0)
    ended = invoke(*PLAN, "--devices", "accelerator:1")
    assert ended.code == 0, ended.err
    assert re.search(r"Seeds of an iteration: .+; 40 in all, 2 iterations an epoch\.", ended.out)
    assert re.search(r"Expected: [\d.]+ m?s an iteration", ended.out)


def test_more_cores_than_there_are_are_refused(invoke: Invoke, cores: Callable[[int], None]) -> None:
    cores(2)
    ended = invoke(*PLAN, "--devices", "host:1,accelerator:3")
    assert ended.code == 2
    assert "accelerators have more cores than there are: 3, and this process may use 2" in ended.err


def test_a_machine_without_accelerators_is_refused(invoke: Invoke, tmp_path: Path) -> None:
    file = tmp_path / "machine.toml"
    text = published_machine("epyc-7763-u250").to_toml()
    file.write_text("\n".join(line for line in text.splitlines() if not line.startswith(("devices", "links"))))
    ended = invoke(*PLAN, "--devices", "host,accelerator", "--machine", file)
    assert ended.code == 2
    assert "machine lacks an accelerator: 'accelerator0', and there are none" in ended.err


def test_counts_of_sampled_batches_and_the_rate_of_sampling() -> None:
    graph = demo_graph()
    graph = graph.with_splits({"train": torch.ones(graph.num_vertices, dtype=torch.bool)})
    counts, edges_per_s = sampled_counts(graph, (5, 4), 64)
    assert edges_per_s > 0
    whole, half, few = counts(64), counts(32), counts(1)
    assert whole.vertices[-1] == 64
    # The seeds' edges are in proportion to them; vertices are shared.
    assert whole.edges[-1] == pytest.approx(2 * half.edges[-1], rel=0.2)
    assert half.vertices[0] < whole.vertices[0] < 2 * half.vertices[0]
    assert 0 < few.vertices[0] < half.vertices[0]
