"""``sagann plan --sample --devices``: hybrid training, predicted from rates, described or measured."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from sagann.cli.plan_trainers import law_of, sampled_edges_per_s, trainers_of
from sagann.graph import demo_graph
from sagann.hybrid.devices import Devices
from sagann.machines import published_machine
from tests.cli.conftest import Invoke
from tests.plan.hybrid.test_rehearsed import job

PLAN = ("plan", "--data", "demo", "--model", "sage", "--sample", "25,10", "--batch-size", "40")
U250 = ("--machine", "epyc-7763-u250")


def test_a_split_its_seconds_and_one_more_accelerator(invoke: Invoke) -> None:
    ended = invoke(*PLAN, "--devices", "host,accelerator,accelerator", *U250)
    assert ended.code == 0, ended.err
    found = re.search(r"Seeds of an iteration: (.+); 40 in all", ended.out)
    assert found is not None
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


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ((*U250, "--link-rate", "1e9"), "states the rates of its links: --link-rate, with --machine"),
        (("--link-rate", "-1"), "--link-rate"),
        (("--machine", "nowhere.toml"), "machine file cannot be read"),
        ((*U250, "--memory", "1GiB"), "memory is refused: '1GiB', expected None where devices is set"),
        ((*U250, "--model", "gat"), "the performance model does not know this model"),
        ((*U250, "--layers", "3"), "fanouts do not fit the layers"),
        ((*U250, "--batch-size", "1"), "fewer seeds than trainers"),
        (("--workers", "2"), "sample is refused: (25, 10), expected None where several workers train"),
    ],
)
def test_what_does_not_go_together_is_refused(given: tuple[str, ...], message: str, invoke: Invoke) -> None:
    ended = invoke(*PLAN, "--devices", "host,accelerator", *given)
    assert ended.code == 2
    assert message in ended.err


@pytest.fixture
def cores(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Gives this machine a number of cores, and trainers of round figures."""

    def given(count: int) -> None:
        monkeypatch.setattr("sagann.hybrid.devices.num_cores", lambda: count)
        monkeypatch.setattr("sagann.cli.plan_trainers.num_cores", lambda: count)
        monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(count)), raising=False)
        monkeypatch.setattr("sagann.train.Trainer.rehearse_trainers", lambda trainer: job(num_train=60))

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
    assert re.search(r"Seeds of an iteration: \d+ on the processor, \d+ on accelerator0; 40 in all", ended.out)
    # Copies take 10 ms in that rehearsal, and the processor 7 ms with one of its four threads; 4 ms are left for the optimizer.
    assert "Expected: 5.75 ms an iteration" in ended.out
    assert "The bottleneck is propagation on the processor." in ended.out
    # It takes two of these threads.
    assert "Expected with one more accelerator: 7.5 ms an iteration" in ended.out


def test_real_trainers_are_rehearsed(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sagann.train.rehearsed_trainers.LONGEST_S", 0.0)
    ended = invoke(*PLAN, "--devices", "accelerator:1")
    assert ended.code == 0, ended.err
    assert "Seeds of an iteration: 40 on accelerator0; 40 in all, 2 iterations an epoch." in ended.out
    assert re.search(r"Expected: [\d.]+ m?s an iteration", ended.out)


def test_no_core_is_left_for_one_more(invoke: Invoke, cores: Callable[[int], None]) -> None:
    cores(2)
    ended = invoke(*PLAN, "--devices", "host:1,accelerator:1")
    assert ended.code == 0, ended.err
    assert "one more accelerator" not in ended.out
    ended = invoke(*PLAN, "--devices", "host:1,accelerator:3")
    assert ended.code == 2
    assert "accelerators have more cores than there are: 3, and this process may use 2" in ended.err


def test_trainers_here_and_one_more(cores: Callable[[int], None]) -> None:
    cores(8)
    devices = Devices.parse("host,cuda:0,accelerator:3", where="devices")
    now, more = (trainers_of(devices, None, more=count) for count in (0, 1))
    assert now is not None
    assert more is not None
    assert (now[0].num_cores, now[1]) == (5, ("cuda:0", "accelerator0"))
    assert (more[0].num_cores, more[1]) == (2, ("cuda:0", "accelerator0", "accelerator1"))
    # Nobody knows what another CUDA device would bring.
    assert trainers_of(Devices.parse("host,cuda:0", where="devices"), None, more=1) is None


def test_a_machine_without_accelerators_is_refused(invoke: Invoke, tmp_path: Path) -> None:
    file = tmp_path / "machine.toml"
    text = published_machine("epyc-7763-u250").to_toml()
    file.write_text("\n".join(line for line in text.splitlines() if not line.startswith(("devices", "links"))))
    ended = invoke(*PLAN, "--devices", "host,accelerator", "--machine", file)
    assert ended.code == 2
    assert "machine lacks an accelerator: 'accelerator0', and there are none" in ended.err


def test_the_law_of_a_graph_and_the_rate_of_its_sampling() -> None:
    graph = demo_graph()
    law = law_of(graph)
    assert law.num_vertices == graph.num_vertices
    assert law.mean_out_degree == pytest.approx(graph.num_edges / graph.num_vertices)
    graph = graph.with_splits({"train": torch.ones(graph.num_vertices, dtype=torch.bool)})
    assert sampled_edges_per_s(graph, (5, 5), 16) > 0
