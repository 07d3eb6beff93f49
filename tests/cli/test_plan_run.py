"""``sagann plan``: what a model becomes, alone, with several trainers (``--devices``) and with workers."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from sagann.cli.plan_machine import machine_in, sampled_counts
from sagann.errors import InputError
from sagann.graph import demo_graph
from sagann.hybrid.forecast import predict
from sagann.machines import published_machine
from sagann.partition import CostModel, Measurement, count_cost_features
from sagann.plan.epoch import Planned
from sagann.plan.steps import Plan
from sagann.report.plan_text import plan_text
from sagann.runtime.streaming.executor import Executor
from sagann.storage import load_graph
from sagann.train import Contract, Run, TrainConfig
from sagann.train.losses import default_loss
from sagann.train.run_folder import RunFolder
from tests.cli.conftest import Invoke
from tests.hybrid.settings import assignment, job
from tests.plan.machines import ROUND
from tests.runtime.device.several import chain, simulate_devices


def _plan(invoke: Invoke, *arguments: object) -> str:
    ended = invoke("plan", "--data", "demo", *arguments)
    assert ended.code == 0, ended.err
    return ended.out


def test_says_what_each_layer_was_made_into(invoke: Invoke) -> None:
    shown = _plan(invoke, "--model", "gated-gcn", "--hidden", "8")
    assert "GatedGCN: sum over the edges" in shown
    assert "moved off the edges: linear, once per source" in shown
    assert "fused" in shown
    assert "times fewer" in shown


def test_says_what_is_kept_and_what_changes_places(invoke: Invoke) -> None:
    shown = _plan(invoke, "--model", "gcn", "--hidden", "64", "--dropout", "0")
    assert "cached: gathers only constant features" in shown
    assert "commuted: linear map before the gather" in shown


def test_shows_the_generated_source(invoke: Invoke) -> None:
    shown = _plan(invoke, "--model", "gat", "--hidden", "16", "--heads", "2", "--show", "kernels")
    assert "def kernel(p_args):" in shown
    # Forward, and backward by destination and by source, in each of two layers.
    assert shown.count("def kernel(p_args):") == 6


def test_foretells_seconds_and_draws_them(tmp_path: Path, invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.setattr("sagann.cli.plan_run.probe", lambda *_: ROUND)
    given = ("--model", "gcn", "--hidden", "16", "--encoder", "linear", "--memory", "20MiB")
    shown = _plan(invoke, *given, "--picture", str(tmp_path / "timeline.png"), "--show", "steps")
    (expected,) = re.findall(
        r"^Estimated: (\S+) s per epoch on \d+ cores of .*steps timed on part", shown, re.MULTILINE
    )
    assert float(expected) > 0
    assert re.search(r"^load value x: 0, 0 B$", shown, re.MULTILINE)
    assert re.search(r"^  gather 0: all to 0$", shown, re.MULTILINE)
    assert (tmp_path / "timeline.png").read_bytes().startswith(b"\x89PNG")


def test_another_machine_is_read_from_a_file(tmp_path: Path, invoke: Invoke) -> None:
    file = tmp_path / "machine.toml"
    file.write_text(ROUND.to_toml())
    given = ("--model", "gcn", "--hidden", "16", "--encoder", "linear", "--memory", "20MiB", "--machine", str(file))
    ended = invoke("plan", "--data", "demo", *given, "--spill", tmp_path)
    assert ended.code == 0
    assert f"The disk of --spill is not measured: its rates are taken from {file}" in ended.err
    assert "on 2 cores of round numbers, from the machine's rates alone" in ended.out
    assert "The bottleneck is computing." in ended.out
    file.write_bytes(b"\xff\xfe")
    assert "machine file cannot be read" in invoke("plan", "--data", "demo", *given).err


def test_a_machine_file_is_refused_where_something_else_computes(tmp_path: Path, invoke: Invoke) -> None:
    cpu, cuda = torch.device("cpu"), torch.device("cuda", 0)
    beside = replace(ROUND, host_to_device_bytes=200.0, device_to_host_bytes=40.0)
    file = tmp_path / "machine.toml"
    file.write_text(beside.to_toml())
    given = ("--model", "gcn", "--hidden", "16", "--memory", "20MiB", "--machine", str(file))
    ended = invoke("plan", "--data", "demo", *given)
    assert (ended.code, ended.out) == (2, "")
    assert "copies to a device have rates, and --device is cpu" in ended.err
    assert "Add --device cuda" in ended.err
    assert machine_in(file, cuda) == beside
    file.write_text(ROUND.to_toml())
    assert machine_in(file, cpu) == ROUND
    with pytest.raises(InputError, match="copies to a device have no rates, and --device is cuda:0"):
        machine_in(file, cuda)


SAMPLED = ("--model", "sage", "--hidden", "16", "--sample", "10,5", "--batch-size", "20")


@pytest.mark.parametrize("memory", [(), ("--memory", "20MiB")])
def test_foretells_an_epoch_of_mini_batches(memory: tuple[str, ...], invoke: Invoke) -> None:
    shown = _plan(invoke, *SAMPLED, *memory)
    assert "Mini-batches: 3 per epoch, of 20 training vertices; fanouts 10, 5." in shown
    assert re.search(r"^Epoch: [\d,]+ edges sampled; [\d,]+ rows of features \(.* MiB\) from ", shown, re.MULTILINE)
    (expected,) = re.findall(
        r"^Estimated: (\S+) s per epoch on \d+ cores of .*, from \d+ measured", shown, re.MULTILINE
    )
    assert 1e-4 < float(expected) < 60
    assert re.search(r"The bottleneck is (sampling|loading features|training)\.", shown)


def test_a_file_of_settings_is_planned_as_it_is_trained(tmp_path: Path, invoke: Invoke) -> None:
    file = tmp_path / "settings.toml"
    file.write_text('[model]\nmodel = "gat"\n[train]\nsample = [10, 5]\nbatches_ahead = 0\nepochs = 7\n')
    shown = _plan(invoke, "--config", str(file), "--batch-size", "30")
    assert "Mini-batches: 2 per epoch, of 30 training vertices; fanouts 10, 5." in shown
    assert "of mini-batches at a time, each prepared in the training step." in shown


def test_a_plan_takes_the_options_of_training(tmp_path: Path, invoke: Invoke) -> None:
    given = ("--epochs", "3", "--lr", "0.1", "--sample", "none", "--spill", str(tmp_path), "--engine", "lean")
    assert "GCN: sum over the edges" in _plan(invoke, "--model", "gcn", *given)


@pytest.mark.parametrize(
    "model",
    [
        ("gcn", "--encoder", "linear"),
        pytest.param(("gat", "--encoder", "linear"), marks=pytest.mark.thorough),
        pytest.param(("sage",), marks=pytest.mark.thorough),
    ],
)
def test_an_epoch_of_training_is_the_one_that_was_explained(
    model: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, invoke: Invoke
) -> None:
    explained: list[Plan] = []
    executed: list[Plan] = []

    def explain(found: Planned, **kwargs: Any) -> str:
        explained.append(found.plan)
        return plan_text(found, **kwargs)

    def execute(executor: Executor, *args: Any, **kwargs: Any) -> None:
        executed.append(args[0].plan)
        construct(executor, *args, **kwargs)

    construct = Executor.__init__
    monkeypatch.setattr("sagann.cli.plan_run.plan_text", explain)
    monkeypatch.setattr(Executor, "__init__", execute)
    file = tmp_path / "machine.toml"
    file.write_text(ROUND.to_toml())
    given = ("--data", "demo", "--hidden", "16", "--memory", "20MiB", "--model", *model)
    assert invoke("plan", *given, "--machine", file).code == 0
    assert invoke("train", *given, "--epochs", 1, "--out", tmp_path / "run").code == 0
    (plan,) = explained
    assert plan.num_intervals > 1
    assert plan in executed


PLAN = ("plan", "--data", "demo", "--model", "sage", "--sample", "25,10", "--batch-size", "40")
U250 = ("--machine", "epyc-7763-u250")


def test_a_split_its_seconds_and_one_more_accelerator(invoke: Invoke) -> None:
    ended = invoke(*PLAN, "--devices", "host,accelerator,accelerator", *U250)
    assert ended.code == 0, ended.err
    found = re.search(r"Seeds per iteration: (.+); 40 in total", ended.out)
    assert sum(map(int, re.findall(r"(\d+) on ", found[1]))) == 40
    assert "on accelerator1" in found[1]
    assert "Machine: two AMD EPYC 7763 and four Xilinx Alveo U250" in ended.out
    assert re.search(r"Processor threads: (\d+) sample, (\d+) load, (\d+) train\.", ended.out)
    assert re.search(r"Estimated: [\d.]+ m?s per iteration, [\d.e-]+ s per epoch", ended.out)
    assert "The bottleneck is " in ended.out
    assert "With one more accelerator: " in ended.out


def test_other_sizes_of_hardware_kernels(invoke: Invoke) -> None:
    def propagation(*options: str) -> float:
        ended = invoke(*PLAN, "--devices", "accelerator:fpga", *U250, *options)
        assert ended.code == 0, ended.err
        assert ("; kernels with scatter_pes=1,frequency_hz=1e8." in ended.out) == bool(options)
        found = re.search(r"propagation ([\d.]+) (m?s) on accelerator0", ended.out)
        assert found is not None
        return float(found[1]) / {"s": 1, "ms": 1000}[found[2]]

    assert propagation("--kernel", "scatter_pes=1,frequency_hz=1e8") > 1.5 * propagation()


def test_accelerators_alone_and_a_machine_of_ones_own(invoke: Invoke, tmp_path: Path) -> None:
    file = tmp_path / "machine.toml"
    file.write_text(published_machine("epyc-7763-a5000").to_toml())
    ended = invoke(*PLAN, "--devices", "accelerator", "--machine", file)
    assert ended.code == 0, ended.err
    assert "Seeds per iteration: 40 on accelerator0; 40 in total" in ended.out
    assert "0 train." in ended.out


@pytest.mark.parametrize("model", ["sage", "gat"])
def test_this_machine_is_rehearsed(model: str, invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sagann.hybrid.devices.num_cores", lambda: 8)
    monkeypatch.setattr("sagann.cli.plan_run.num_cores", lambda: 8)
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(8)), raising=False)
    found = predict(job(), assignment(30, 10))
    monkeypatch.setattr("sagann.cli.plan_run.foretell_trainers", lambda trainer: (found, None))
    ended = invoke(*PLAN, "--model", model, "--devices", "host,accelerator:2", "--link-rate", "1e8")
    assert ended.code == 0, ended.err
    assert "Sampling, loading and training a few mini-batches with every trainer ..." in ended.err
    assert re.search(
        r"Machine: this one, .+, rehearsed; 6 of 8 cores for the processor's tasks, 2 for accelerator0\.", ended.out
    )
    assert "Seeds per iteration: 30 on the processor, 10 on accelerator0; 40 in total" in ended.out


def test_a_real_trainer_is_rehearsed(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sagann.train.rehearsals.LONGEST_S", 0.0)
    ended = invoke(*PLAN, "--devices", "accelerator:1")
    assert ended.code == 0, ended.err
    assert re.search(r"Seeds per iteration: .+; 40 in total, 2 iterations per epoch\.", ended.out)
    assert re.search(r"Estimated: [\d.]+ m?s per iteration", ended.out)


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


OPERATIONS = {"forward 0": 0, "forward 1": 64}
BY_WORKERS = ("plan", "--data", "demo", "--model", "sage", "--workers", 2)


def learned_state(*, device: str = "cpu", **change: Any) -> dict[str, Any]:
    """What a run on the demo graph has learned: an edge takes a microsecond, and the second worker twice as long."""
    topology, model = load_graph("demo").topology, CostModel()
    features, num_vertices = count_cost_features(topology, [64], device=device), topology.num_dst
    for cut in (num_vertices // 2, num_vertices // 3, num_vertices // 4):
        model = model.updated(
            Measurement(
                kind=kind,
                worker=worker,
                features=features.of_part(first, stop, width).tolist(),
                seconds=(1 + worker) * 1e-6 * features.of_part(first, stop, width)[1 if width else 0],
            )
            for worker, (first, stop) in enumerate([(0, cut), (cut, num_vertices)])
            for kind, width in OPERATIONS.items()
        )
    return {"bounds": [0, 5, num_vertices], "operations": OPERATIONS, "model": model.to_plain(), **change}


def run_folder(path: Path, state: dict[str, Any]) -> Path:
    folder, graph = RunFolder(path), load_graph("demo")
    run = Run(
        path=path,
        model="sage",
        model_config=None,
        train_config=TrainConfig(),
        data="demo",
        contract=Contract.of(graph),
        versions={},
        identity={"train": {"device": "cpu"}, "graph": {}},
        class_names=(),
        loss=default_loss("classification"),
        automatic_bytes=None,
    )
    with folder.locked():
        folder.write_run(run)
        folder.checkpoints.write({"epoch": 5, "batch": 0, **state})
    return path


def test_parts_are_shown_with_their_halo(invoke: Invoke) -> None:
    ended = invoke(*BY_WORKERS)
    assert ended.code == 0, ended.err
    assert "Parts of 2 workers, balanced by edges" in ended.out
    graph = load_graph("demo")
    rows = re.findall(r"│ +(\d) +│ +([\d,]+) +│ +([\d,]+) +│ +([\d.]+)% +│ +([\d,]+) +│ +- +│", ended.out)
    vertices, edges = ([int(row[column].replace(",", "")) for row in rows] for column in (1, 2))
    assert [row[0] for row in rows] == ["0", "1"]
    assert sum(vertices) == graph.num_vertices
    assert sum(edges) == graph.num_edges
    assert abs(edges[0] - edges[1]) < graph.num_edges / 20
    assert "Cost model" not in ended.out


def test_a_budget_divides_no_other_way(invoke: Invoke) -> None:
    ended = invoke(*BY_WORKERS, "--memory", "1GiB")
    assert (ended.code, ended.out) == (0, invoke(*BY_WORKERS).out)
    assert "is planned for one process only" in ended.err


def test_what_a_run_has_learned_divides_the_graph(tmp_path: Path, invoke: Invoke) -> None:
    run = run_folder(tmp_path / "run", {"source": {"balance": learned_state()}})
    ended = invoke(*BY_WORKERS, "--balance", "cost", "--learned", run)
    assert ended.code == 0, ended.err
    assert "Parts of 2 workers, balanced by cost" in ended.out
    shares = [float(share) for share in re.findall(r"([\d.]+)%", ended.out.split("Predicted time")[0])]
    assert shares == pytest.approx([66.7, 33.3], abs=2.0)
    found = re.search(r"by balance: edges ([\d.]+) ms, vertices ([\d.]+) ms, cost ([\d.]+) ms", ended.out)
    by_edges, by_vertices, by_cost = map(float, found.groups())
    assert by_edges == pytest.approx(1.5 * by_cost, rel=0.03)
    assert by_vertices > 1.3 * by_cost
    assert "Measured speeds of the workers: 1.33, 0.67." in ended.out


def test_without_a_model_the_first_parts_are_shown(invoke: Invoke) -> None:
    ended = invoke(*BY_WORKERS, "--balance", "cost")
    assert ended.code == 0, ended.err
    assert "Without a cost model (--learned), parts begin with equal edges" in ended.err


SEVERAL = ("--model", "gcn", "--hidden", "16", "--encoder", "linear", "--memory", "3MiB", "--devices")


def test_devices_of_a_described_machine_are_planned_by_the_fastest_route(invoke: Invoke) -> None:
    shown = invoke("plan", "--data", "demo", *SEVERAL, "4", "--machine", "p100x8", "--show", "steps").out
    assert re.search(
        r"Estimated: \S+ s per epoch on 4 devices of two Xeon E5-2690 v4 and eight NVIDIA Tesla P100", shown
    )
    assert re.search(r"Route: \w+; slower: \w+ \S+ s, \w+ \S+ s\.", shown)
    for link in ("device0.copy_in", "device3.copy_out"):
        assert re.search(rf"^  {link}: \S+ \wiB$", shown, re.MULTILINE)
    assert "share_grads 0: 0" in shown


def test_several_devices_have_their_own_steps(monkeypatch: pytest.MonkeyPatch, invoke: Invoke) -> None:
    simulate_devices(monkeypatch, chain)
    given = ("plan", "--data", "demo", "--hidden", 8, "--device", "cuda:0,cuda:1", "--memory", "12MiB")
    found = invoke(*given, "--show", "steps")
    assert found.code == 0
    # What passes read at random is assembled by each device, which sums its gradients.
    assert "assemble 0: 1 (device1)" in found.out
    assert "share_grads" in found.out
    assert "No time is estimated" in found.err
    refused = invoke(*given, "--picture", "plan.png")
    assert refused.code == 2
    assert "--picture without --machine" in refused.err.replace("\n", " ")
