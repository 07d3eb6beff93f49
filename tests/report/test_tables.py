"""Tables of results, of the doctor, of plans and of shares; and where text goes."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from rich.table import Table

from sagann.free_space import Memory
from sagann.graph import Graph, Topology, rmat_graph
from sagann.hybrid.forecast import predict
from sagann.nn import ModelConfig, build_model
from sagann.plan.epoch import Planned
from sagann.plan.steps import Move
from sagann.report import doctor_tables
from sagann.report.plan_text import batches_text, plan_text, trainers_text
from sagann.report.probes import Finding
from sagann.report.tables import dataset_table, metrics_table
from sagann.report.terminal import Terminal
from sagann.runtime.streaming.stream import foretell
from sagann.runtime.tiered.counters import TierCounts
from sagann.train.rehearsals import SampledForecast
from tests.graphs import labelled_graph
from tests.hybrid.settings import assignment, job, machine


def test_a_row_per_split_and_a_column_per_metric() -> None:
    metrics = {"train": {"loss": 0.5, "accuracy": 1.0}, "test": {"accuracy": 0.75, "roc_auc": 0.9}, "val": {}}
    console = Console(width=100)
    with console.capture() as capture:
        console.print(metrics_table(metrics, title="Metrics"))
    rows = [[cell.strip() for cell in line.strip("│┃ ").split("│")] for line in capture.get().splitlines()]
    assert ["train", "0.5000", "1.0000", "-"] in rows
    assert ["test", "-", "0.7500", "0.9000"] in rows
    assert ["val", "-", "-", "-"] in rows
    assert "macro_f1" not in capture.get()


def described(graph: Graph, path: Path = Path("nowhere")) -> dict[str, str]:
    console = Console(width=300)
    with console.capture() as capture:
        console.print(dataset_table(graph, path=path))
    rows = [line.strip("│").split("│") for line in capture.get().splitlines() if line.startswith("│")]
    return {what.strip(): value.strip() for what, value in rows}


def test_a_labelled_graph(tmp_path: Path) -> None:
    topology = Topology.from_coo(
        src=torch.tensor([0, 1, 2, 2]),
        dst=torch.tensor([1, 1, 1, 0]),
        num_src=4,
        edge_data={"type": torch.tensor([0, 1, 2, 0]), "weight": torch.ones(4)},
    )
    graph = Graph(
        topology=topology,
        features=torch.eye(4, 2),
        labels=torch.tensor([0, 1, 1, -1]),
        num_classes=2,
        class_names=("cat", "dog"),
        splits={"train": torch.tensor([True, True, False, False])},
        num_edge_types=3,
        graph_ptr=torch.tensor([0, 3, 4]),
        graph_labels=torch.tensor([0, 1]),
        num_graph_classes=2,
        graph_splits={"train": torch.tensor([True, False]), "val": torch.tensor([False, True])},
        graph_names=("big", "small"),
    )
    (tmp_path / "file").write_bytes(bytes(2048))
    rows = described(graph, tmp_path)
    assert rows == {
        "vertices": "4",
        "edges": "4 directed",
        "in-degrees": "mean 1.00, median 0, largest 3, 2 vertices without in-edges",
        "edge data": "type (int64, 3 types), weight (float32)",
        "features": "2, dense float32",
        "classes": "2 (cat: 1, dog: 2)",
        "labelled": "3 of 4 vertices",
        "splits": "train 2",
        "graphs": "2 (vertices big: 3, small: 1)",
        "of graphs": "labels of 2 classes of graphs",
        "splits of graphs": "train 1, val 1",
        "on disk": "2.0 KiB",
    }


def test_an_empty_graph() -> None:
    topology = Topology(indptr=torch.zeros(1, dtype=torch.int64), indices=torch.zeros(0).int(), num_src=0)
    rows = described(Graph(topology=topology))
    assert rows["vertices"] == "0"
    assert rows["in-degrees"] == "none"
    assert rows["features"] == "none"
    assert rows["classes"] == "no labels"


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
def test_sparse_features_and_many_classes() -> None:
    graph = rmat_graph(50, 100, num_classes=40, seed=0)
    rows = described(replace(graph, features=torch.eye(50).to_sparse_csr()))
    assert rows["features"] == "50, sparse float32, 50 non-zeros (2.00%)"
    assert rows["classes"].startswith("40 (0: ")
    assert rows["classes"].endswith(", ...)")


def test_several_labels_per_vertex() -> None:
    graph = rmat_graph(3, 5, seed=0)
    labels = torch.tensor([[1, 0], [1, 1], [1, 0]], dtype=torch.uint8)
    rows = described(replace(graph, labels=labels, num_classes=2))
    assert rows["classes"] == "2, several per vertex (0: 3, 1: 1)"


def rows(table: Table) -> list[tuple[str, ...]]:
    return list(zip(*([str(cell) for cell in column.cells] for column in table.columns), strict=True))


def test_a_missing_package_is_named_with_its_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_tables, "core_versions", lambda: {"torch": "2.9", "numba": None})
    assert rows(doctor_tables.versions_table())[2:] == [("torch", "2.9"), ("numba", "missing: pip install sagann")]
    found = {"plots": {"matplotlib": "3.10"}, "peers": {"a": "1", "b": None}}
    monkeypatch.setattr(doctor_tables, "extras", lambda: found)
    assert rows(doctor_tables.extras_table()) == [
        ("plots", "ok", "matplotlib 3.10"),
        ("peers", "-", "missing b; pip install 'sagann[peers]'"),
    ]


def test_a_limit_of_memory_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    found = Memory(total_bytes=2**31, available_bytes=2**30, limit_bytes=2**29, limit_used_bytes=2**28)
    monkeypatch.setattr(doctor_tables, "memory", lambda: found)
    shown = dict(rows(doctor_tables.machine_table()))
    assert shown["memory"] == "2.0 GiB, of which 1.0 GiB are free"
    assert shown["memory limit (cgroup)"] == "512.0 MiB, of which 256.0 MiB are used"


def test_only_a_part_that_is_needed_fails() -> None:
    findings = [
        Finding(name="torch", ok=True, detail="fine"),
        Finding(name="kernels", ok=False, detail="bad"),
        Finding(name="CUDA", ok=False, detail="none"),
    ]
    assert [row[1] for row in rows(doctor_tables.findings_table(findings))] == ["ok", "failed", "-"]


def text_of(**fields: Any) -> str:
    given: dict[str, Any] = {
        "seconds": 20.27,
        "num_batches": 50,
        "num_rehearsed": 24,
        "num_seeds": 5000,
        "batch_size": 100,
        "fanouts": (25, -1),
        "num_edges": 1_234_567,
        "tiers": {"memory": TierCounts(rows=9000, num_bytes=9 << 20)},
        "ahead": 4,
        "ahead_bytes": 10 << 20,
        "busy": {"sample": 0.98, "load": 0.251, "train": 0.5},
        "busy_cores": 0.26,
    }
    return batches_text(SampledForecast(**{**given, **fields}), processor="8 cores of Round Numbers")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "Mini-batches: 50 per epoch, of 100 training vertices; fanouts 25, -1."),
        ({}, "The bottleneck is sampling. Cores are idle: more --sampling-threads may help. Smaller fanouts"),
        ({"busy": {"load": 0.2, "train": 0.9}}, "The bottleneck is training. A smaller model (--hidden, --layers)"),
        ({"busy_cores": 0.97}, "The bottleneck is sampling. All cores are busy. Smaller fanouts"),
        ({"ahead": 0}, "each prepared in the training step."),
        ({"num_seeds": 4930}, "50 per epoch, of 100 training vertices, 30 in the last one;"),
        ({"num_batches": 1, "num_seeds": 60}, "Mini-batches: 1 per epoch, of 60 training vertices;"),
        ({"tiers": {"hot": TierCounts(rows=1000, num_bytes=1 << 10)}}, "1,000 rows of features (1.0 KiB) from the hot tier"),
    ],
)  # fmt: skip
def test_mini_batches(given: dict[str, Any], said: str) -> None:
    assert said in text_of(**given)


def test_alike_accelerators_are_named_together() -> None:
    described = machine(devices=dict.fromkeys(("accelerator0", "accelerator1"), machine().devices["accelerator0"]))
    found = predict(job(described), assignment(50, 75, 75))
    text = trainers_text(found, machine="round figures", more=None)
    assert text.splitlines()[:3] == [
        "Machine: round figures.",
        "Seeds per iteration: 50 on the processor, 75 on accelerator0, 75 on accelerator1; 200 in total, 50 iterations per epoch.",
        "Processor threads: 2 sample, 2 load, 4 train.",
    ]
    # 75 x 12,100 bytes at 1e8 bytes per second.
    assert re.search(r"copies 9\.0[78] ms on accelerator0 and accelerator1", text)
    assert text.endswith(f"The bottleneck is {found.times.bottleneck}.")


def test_what_one_more_brings() -> None:
    few, many = (predict(job(), split) for split in (assignment(0, 200), assignment(0, 100, 100)))
    text = trainers_text(few, machine="round figures", more=many)
    assert "Seeds per iteration: 200 on accelerator0; 200 in total" in text
    assert re.search(r"(2\.00|1\.9\d) times as fast", text.splitlines()[-1])


@pytest.mark.parametrize("quiet", [False, True])
def test_results_and_notes_go_separate_ways_and_quiet_drops_notes(
    quiet: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    terminal = Terminal(quiet=quiet)
    terminal.show("a result")
    terminal.say("a note")
    assert capsys.readouterr() == ("a result\n", "" if quiet else "a note\n")


def test_text_is_printed_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    text = "/a/path/[with]/:smile:/" + "x" * 500
    Terminal().show(text)
    assert capsys.readouterr().out == f"{text}\n"


def test_tables_are_not_cut_in_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    table = Table("name", "value")
    table.add_row("x" * 60, "y" * 90)
    Terminal().show(table)
    assert "y" * 90 in capsys.readouterr().out


def test_codes_that_a_terminal_obeys_are_written_as_escapes(capsys: pytest.CaptureFixture[str]) -> None:
    terminal, name = Terminal(), "\x1b[2Ja\u202e"
    escaped = r"\x1b[2Ja\u202e"
    table = Table("class")
    table.add_row(name)
    terminal.show(table)
    terminal.show(f"{name}\nof two lines")
    terminal.say(name)
    captured = capsys.readouterr()
    assert escaped in captured.out
    assert captured.out.endswith(f"{escaped}\nof two lines\n")
    assert captured.err == f"{escaped}\n"


def planned(budget_bytes: int) -> Planned:
    graph = labelled_graph(200, 900)
    model = build_model(ModelConfig(model="gcn", hidden=16), graph)
    return foretell(model, model.prepare(graph), budget_bytes=budget_bytes, on_disk=True)


def first_line(found: Planned) -> str:
    return plan_text(found).splitlines()[0]


def test_everything_fits_only_where_nothing_has_to_go() -> None:
    found = planned(1 << 30)
    assert first_line(found) == "P = 1: the whole graph fits in memory."
    load = next(each for each in found.plan.operations if isinstance(each, Move) and each.kind == "load")
    for more in (load, load._replace(kind="store", num_bytes=1)):
        plan = replace(found.plan, operations=(*found.plan.operations, more))
        assert first_line(found._replace(plan=plan)).startswith(
            "P = 1: one interval, but not everything fits at once; evicted blocks are loaded again"
        )


def test_intervals_are_said_by_their_sizes() -> None:
    found = planned(20_000)
    assert found.plan.num_intervals > 1
    assert first_line(found).startswith(f"P = {found.plan.num_intervals}: intervals of ")


def test_what_is_read_in_place_is_told_apart_from_what_is_copied() -> None:
    graph = labelled_graph(200, 900)
    model = build_model(ModelConfig(model="gcn", hidden=16), graph)
    foretold = partial(foretell, model, model.prepare(graph), budget_bytes=8000, select="never")
    texts = {on_disk: plan_text(foretold(on_disk=on_disk), on_disk=on_disk) for on_disk in (False, True)}
    lines = {where: re.findall("^Read in place: .*", text, re.MULTILINE) for where, text in texts.items()}
    (line,), (on_disk,) = lines[False], lines[True]
    assert "vertex data" in line
    assert "edges" in line
    # Beside files, features that the caller has in memory.
    assert re.fullmatch(r"Read in place: vertex data [^,]*", on_disk)
    (loaded,) = [line for line in texts[False].splitlines() if line.startswith("Loaded: ")]
    assert re.search(r"\bedges \d", line)
    assert not re.search(r"\bedges \d", loaded)
