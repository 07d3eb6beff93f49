"""What epochs will take: forecasts, rehearsals and pictures of timelines; and what top will show of a process that trains."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from statistics import median

import pytest
import torch
from torch import nn

from sagann.free_space import Memory
from sagann.graph import Graph, Topology, sbm_graph
from sagann.graph.renumber import subgraph
from sagann.graph.rows import csr_tensor
from sagann.nn import ModelConfig, build_model
from sagann.plan.steps import Step
from sagann.plan.timeline import Span, Timeline
from sagann.report.plan_text import forecast_text
from sagann.runtime.forecasting import timeline_files
from sagann.runtime.forecasting.forecast import forecast, rehearse
from sagann.runtime.forecasting.resident import expected_resident
from sagann.runtime.streaming.stream import foretell, stream
from sagann.runtime.streaming.streamed import StreamedModel
from sagann.storage import save_graph
from tests.graphs import labelled_graph
from tests.plan.machines import ROUND


def test_a_forecast_has_every_step_and_copy_of_the_plan() -> None:
    model, graph = model_and_graph()
    planned = foretell(model, graph, budget_bytes=600_000)
    found = forecast(planned, ROUND, on_disk=True)
    assert not found.rehearsed
    assert sum(span.num_bytes for span in found.timeline.of("load")) == planned.plan.loaded_bytes
    assert sum(span.num_bytes for span in found.timeline.of("store")) == planned.plan.stored_bytes
    assert found.timeline.busy_s("load") == pytest.approx(
        planned.plan.loaded_bytes / ROUND.disks["disk0"].read_bytes_per_s
    )
    steps = [each for each in planned.plan.operations if isinstance(each, Step) and each.kind != "return"]
    assert len(found.timeline.of("compute")) == len(steps)


@pytest.mark.usefixtures("kernels")
@pytest.mark.alone
@pytest.mark.slow
def test_a_rehearsed_forecast_is_near_what_is_measured() -> None:
    model, graph = model_and_graph(num_vertices=25_000, hidden=64)
    budget_bytes = 6 << 20
    planned = foretell(model, graph, budget_bytes=budget_bytes)
    assert planned.plan.num_intervals > 1
    # Rates of copies far from what limits; the steps' are corrected by the rehearsal, whatever they are.
    machine = replace(ROUND, copy_bytes=5e9)
    streamed = stream(model, graph, budget_bytes=budget_bytes)
    ratios = []
    # Machines that run tests are noisy, from one second to the next: so the fastest epoch of each try, and the median
    # of three tries. The figure that counts is bench.streaming's.
    for _ in range(3):
        expected_s = forecast(planned, machine, on_disk=False, rehearsal=(model, graph)).timeline.seconds
        seconds = []
        for _ in range(5):
            start_s = time.perf_counter()
            streamed.loss(graph.features, lambda rows, _: rows.logsumexp(-1).sum()).backward()
            seconds.append(time.perf_counter() - start_s)
        ratios.append(expected_s / min(seconds))
    assert 0.4 < median(ratios) < 2.5


def test_files_are_taken_to_be_cached_where_memory_has_room_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    model, graph = model_and_graph()
    planned = foretell(model, graph, budget_bytes=600_000, on_disk=True)
    schedule, plan = planned.schedule, planned.plan
    files = schedule.edge_bytes + schedule.constant_bytes + plan.spilled_bytes + graph.features.nbytes
    for room, expected in ((600_000 + files, "file cache"), (600_000 + files - 1, "disk"), (None, "disk")):
        found = Memory(total_bytes=room, available_bytes=room, limit_bytes=None, limit_used_bytes=None)
        monkeypatch.setattr("sagann.runtime.forecasting.forecast.memory", lambda found=found: found)
        told = forecast(planned, ROUND, on_disk=True, rehearsal=(model, graph))
        assert told.tier == expected
        assert ("the system's cache holds all files" in forecast_text(told)) == (expected == "file cache")
        # Of a machine that is not at hand, memory is not known.
        assert forecast(planned, ROUND, on_disk=True).tier == "disk"
        assert forecast(planned, ROUND, on_disk=False, rehearsal=(model, graph)).tier == "memory"


def test_a_rehearsal_times_every_kind_of_step_and_changes_nothing() -> None:
    model, graph = model_and_graph("gat")
    model.eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    state = torch.random.get_rng_state()
    planned = foretell(model, graph, budget_bytes=600_000)
    assert planned.plan.num_intervals > 1
    factors = rehearse(model, graph, planned, ROUND)
    steps = [each for each in planned.plan.operations if isinstance(each, Step) and each.kind != "return"]
    assert {(step.kind, step.number, step.backward_pass) for step in steps} <= set(factors)
    assert all(factor > 0 for factor in factors.values())
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert torch.equal(torch.random.get_rng_state(), state)
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not any(module.training for module in model.modules())


def test_a_rehearsal_passes_over_intervals_without_vertices() -> None:
    model, graph = model_and_graph()
    streamed = StreamedModel(model, list(graph.hops(2)), (0, 0, 0, 700, 2000))
    planned = streamed.plan(graph.features, folded=True)
    assert all(factor > 0 for factor in rehearse(model, graph, planned, ROUND).values())


@pytest.mark.parametrize("rate", [1e2, 1e9])
def test_a_rehearsal_takes_as_much_of_the_graph_as_takes_little_time(
    rate: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, graph = model_and_graph()
    cut = []

    def counted(graph: Graph, vertices: torch.Tensor) -> Graph:
        cut.append(len(vertices))
        return subgraph(graph, vertices)

    monkeypatch.setattr("sagann.runtime.forecasting.forecast.subgraph", counted)
    monkeypatch.setattr("sagann.runtime.forecasting.forecast.MOST_EDGES", 1000)
    planned = foretell(model, graph, budget_bytes=1 << 30)
    assert planned.plan.num_intervals == 1
    machine = replace(ROUND, matmul_flops=1e12, stream_bytes=1e12, gather_bytes=rate, gather_cached_bytes=rate)
    rehearse(model, graph, planned, machine)
    # Of the slow machine some thousand edges, of the fast one all.
    assert [0 < count < 500 for count in cut] == ([True] if rate < 1e9 else [])


@pytest.fixture
def planned() -> Timeline:
    return Timeline([Span(lane="compute", name="transform 0: 0", start_s=0.0, seconds=1.0)])


def test_a_trace_has_a_process_for_each_timeline_whose_spans_begin_at_zero(
    tmp_path: Path, planned: Timeline
) -> None:
    spans = [
        Span(lane="load", name="edges csc: 0 to 0", start_s=7.0, seconds=0.5, num_bytes=12),
        Span(lane="compute", name="gather 0: 0 to 0", start_s=7.25, seconds=2.0),
        Span(lane="decisions", name="So it is.", start_s=8.0, seconds=0.0),
    ]
    timeline_files.write_trace(tmp_path / "trace.json", {"planned": planned, "measured": Timeline(spans)})
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert [event["args"]["name"] for event in events if event["name"] == "process_name"] == ["planned", "measured"]
    lanes = ["compute", "load", "decisions"]
    assert [event["args"]["name"] for event in events if event["name"] == "thread_name"] == ["compute", *lanes]
    measured = [event for event in events if event["ph"] == "X" and event["pid"] == 1]
    assert [(event["name"], lanes[event["tid"]], event["ts"], event["dur"]) for event in measured] == [
        ("edges csc: 0 to 0", "load", 0.0, 0.5e6),
        ("gather 0: 0 to 0", "compute", 0.25e6, 2e6),
    ]
    (instant,) = (event for event in events if event["ph"] == "i")
    assert (instant["name"], lanes[instant["tid"]], instant["ts"], instant["s"]) == (
        "So it is.",
        "decisions",
        1e6,
        "t",
    )
    assert [event["args"]["bytes"] for event in measured] == [12, 0]


def test_a_picture_names_the_run_its_two_halves_and_its_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib")
    figures = []
    monkeypatch.setattr(timeline_files, "write_figure", lambda path, figure: figures.append(figure))
    spans = [
        Span(lane="compute", name="transform_loss 1: 0", start_s=5.0, seconds=1.0),
        Span(lane="compute", name="gather_grad 0: 0 to 0", start_s=6.0, seconds=2.0),
    ]
    planned = Timeline(spans, memory={"device0": [(5.0, 3 << 20), (6.0, 1 << 20)]})
    timelines = {"planned": planned, "measured": Timeline(spans)}
    timeline_files.write_picture(tmp_path / "a.png", timelines, title="gcn on demo: P = 2", budget_bytes=4 << 20)
    (figure,) = figures
    assert figure.get_suptitle() == "gcn on demo: P = 2"
    lanes, memory, measured = figure.axes
    for axis in (lanes, measured):
        assert {text.get_text().strip(): text.xy[0] for text in axis.texts} == {"forward": 1.0, "backward": 1.0}
    curve, budget = memory.lines
    assert curve.get_xydata().tolist() == [[0, 3], [1, 1], [3, 1]]
    assert set(budget.get_ydata()) == {4.0}
    assert memory.get_ylabel() == "memory, MiB"
    assert [text.get_text().strip() for text in memory.texts] == ["budget"]


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
    said = re.search(r"^Resident memory \(RES in top\): about ([0-9.]+) MiB", plan.stdout, re.MULTILINE)
    assert said is not None, plan.stdout
    train = ("train", *common, "--split", "random:0.6,0.2", "--epochs", "2", "--out", str(tmp_path / "run"))
    assert peak_bytes(*train) / 2**20 == pytest.approx(float(said[1]), rel=0.25)


def model_and_graph(
    name: str = "gcn", *, num_vertices: int = 2000, hidden: int = 32
) -> tuple[torch.nn.Module, Graph]:
    graph = labelled_graph(num_vertices, 12 * num_vertices)
    model = build_model(ModelConfig(model=name, hidden=hidden, heads=2), graph)
    return model, model.prepare(graph)
