"""``sagann plan --sample --devices``: hybrid training, predicted from rates, described or measured."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from sagann.cli.plan_hybrid import described_here, law_of, sampled_edges_per_s, trainers_in
from sagann.errors import InputError
from sagann.graph import demo_graph
from sagann.machines import published_machine
from tests.cli.conftest import Invoke
from tests.plan.hybrid.settings import machine

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


@pytest.mark.parametrize("devices", ["", "host", "host,host,accelerator", "cuda:0", "host,accelerator,x"])
def test_lists_that_name_no_trainers_are_refused(devices: str) -> None:
    with pytest.raises(InputError, match=r"no list of trainers: .* \(in --devices\)\. Write 'host' at most once"):
        trainers_in(devices)
    assert trainers_in(" host, accelerator") == (True, 1)
    assert trainers_in("accelerator,accelerator") == (False, 2)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            (*U250, "--link-rate", "1e9"),
            "a machine that is described states the rates of its links: --link-rate, with --machine",
        ),
        (("--link-rate", "-1"), "TrainConfig.link_rate"),
        (("--machine", "nowhere.toml"), "machine file cannot be read"),
        ((*U250, "--memory", "1GiB"), "several trainers are predicted by rates alone"),
        ((*U250, "--device", "cpu"), "several trainers are predicted by rates alone"),
        ((*U250, "--model", "gat"), "the performance model does not know this model"),
        ((*U250, "--layers", "3"), "fanouts do not fit the layers"),
        ((*U250, "--batch-size", "1"), "fewer seeds than trainers"),
        ((*U250, "--workers", "2"), "workers train on the whole graph, in memory, on processors"),
    ],
)
def test_what_does_not_go_together_is_refused(given: tuple[str, ...], message: str, invoke: Invoke) -> None:
    ended = invoke(*PLAN, "--devices", "host,accelerator", *given)
    assert ended.code == 2
    assert message in ended.err


def test_this_machine_is_measured(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sagann.runtime.forecasting.probe.probe", lambda folder: machine(name="a processor"))
    monkeypatch.setattr("sagann.hybrid.devices.num_cores", lambda: 8)
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(8)), raising=False)
    ended = invoke(*PLAN, "--devices", "host,accelerator:2", "--link-rate", "1e8")
    assert ended.code == 0, ended.err
    assert "Measuring this machine ..." in ended.err
    assert (
        "Machine: this one, a processor, measured; 6 of 8 cores for the processor's tasks, 2 for accelerator0, each with the processor's "
        "rates by its share of the cores."
    ) in ended.out
    assert re.search(r"Seeds of an iteration: \d+ on the processor, \d+ on accelerator0; 40 in all", ended.out)
    assert "Expected with one more accelerator: " in ended.out


def test_no_core_is_left_for_one_more(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sagann.runtime.forecasting.probe.probe", lambda folder: machine(num_cores=2))
    monkeypatch.setattr("sagann.hybrid.devices.num_cores", lambda: 2)
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 1}, raising=False)
    ended = invoke(*PLAN, "--devices", "host:1,accelerator:1")
    assert ended.code == 0, ended.err
    assert "one more accelerator" not in ended.out
    ended = invoke(*PLAN, "--devices", "host:1,accelerator:3")
    assert ended.code == 2
    assert "accelerators have more cores than there are: 3, and this process may use 2" in ended.err


def test_trainers_here_have_the_rates_of_their_cores() -> None:
    said: list[str] = []
    found = described_here(
        "accelerator:1", link_rate=1e6, say=said.append, measured=lambda folder: machine(num_cores=8)
    )
    assert (found.count, found.uses_host) == (1, False)
    assert found.machine.device("accelerator0").matmul_flops == machine().matmul_flops / 8
    assert found.machine.links["accelerator0.copy_in"].bytes_per_s == 1e6
    assert said == ["Measuring this machine ..."]


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
    assert sampled_edges_per_s(graph, (5, 5), 16, uncounted=1) > 0
