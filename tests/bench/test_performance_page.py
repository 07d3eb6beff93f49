"""The page of performance: every figure comes from the benchmarks' files, and the page is up to date."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.performance_page import PAGE, README, SHOWN, render, with_table
from bench.performance_sections import minibatch_section
from bench.result_tables import read_table
from bench.workers import RESULTS

ALONE = {
    "kind": "alone",
    "dataset": "graph",
    "task": "gcn",
    "outcome": "ok",
    "losses": [1.0, 0.5],
    "peak_bytes": 100,
    "processor": "a processor",
    "commit": "abc",
}
STREAMED = """\
| dataset | model | epoch | s | budget MiB | measured MiB | times P = 1 folded | loss differs by |
|---|---|---|--:|--:|--:|--:|--:|
| graph | gcn | engine | 1.0 | - | 900.0 | 0.50 | 0.0e+00 |
| graph | gcn | P = 1, loss folded | 2.0 | - | 800.0 | 1.00 | 0.0e+00 |
| graph | gcn | budget, host on disk | 3.2 | 100.0 | 120.4 | 1.50 | 1.0e-06 |

| dataset | model | steps |
|---|---|--:|
| graph | gcn | 7 |
"""
SIZE = """\
| who | outcome | came to | epoch s | held MiB |
|---|---|---|--:|--:|
| sagann | ok | 3 epochs | 31.0 | 4000 |
| dgl | killed | the first epoch | - | 6000 |
"""


def write_results(folder: Path, *, dgl_s: float = 3.0, dgl_losses: tuple[float, float] = (1.0, 0.5)) -> None:
    records = [
        {"settings": {"threads": 2}},
        ALONE | {"contestant": "sagann", "seconds": [9.0]},
        # A later measurement takes the place of an earlier one.
        ALONE | {"contestant": "sagann", "seconds": [1.0]},
        ALONE | {"contestant": "dgl", "seconds": [dgl_s], "losses": list(dgl_losses), "peak_bytes": 400},
    ]
    (folder / "epochs.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    (folder / "streaming.md").write_text(STREAMED)
    (folder / "size.md").write_text(SIZE)


def test_the_page_is_what_the_results_give() -> None:
    assert PAGE.read_text() == render(RESULTS), "docs/performance.md is not up to date: run make performance"


def test_the_table_of_the_readme_is_what_the_results_give() -> None:
    text = README.read_text()
    assert text == with_table(text, RESULTS), "the README's table is not up to date: run make performance"
    assert "| gcn |" in text


def test_a_table_is_found_by_one_of_its_columns(tmp_path: Path) -> None:
    write_results(tmp_path)
    assert [row["epoch"] for row in read_table(tmp_path / "streaming.md", "measured MiB")] == [
        "engine",
        "P = 1, loss folded",
        "budget, host on disk",
    ]
    assert read_table(tmp_path / "streaming.md", "steps") == [{"dataset": "graph", "model": "gcn", "steps": "7"}]
    assert read_table(tmp_path / "none.md", "steps") == []


def test_figures_come_from_the_files(tmp_path: Path) -> None:
    write_results(tmp_path)
    page = render(tmp_path)
    assert "- epochs, no dropout: never slower, 3.0 times as fast in the geometric mean of 1 cases." in page
    assert "| epochs, no dropout | graph | 1 | **3.00** | 3.00 | 3.00 | - | - | `python -m bench.epochs` |" in page
    assert "| graph, epochs, no dropout | - | the thriftiest of PyG and DGL | 0.25 (0.25 to 0.25) | 0.33 |" in page
    assert "budget of 100.0 MiB, host on disk | 120 MiB | streamed with P = 1: 800 MiB | 0.15 | 1.50 |" in page
    assert "1 of 1 ways of PyG and DGL are killed" in page
    assert "those of PyG and DGL | 1 of 1 |" in page
    assert "holds at most 21 MiB beyond it" in page
    assert (
        "1.5 to 1.5 times as long\nas streamed with P = 1, and 3.2 to 3.2 times as long as an ordinary epoch"
        in page
    )


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"dgl_s": 0.5}, "slower in 1 of 1 cases, 0.5 times as fast"),
        ({"dgl_losses": (2.0, 0.5)}, "those of PyG and DGL | 0 of 1 |"),
    ],
)
def test_what_is_slower_or_differs_is_said(tmp_path: Path, changed: dict[str, object], said: str) -> None:
    write_results(tmp_path, **changed)  # type: ignore[arg-type]
    assert said in render(tmp_path)


def test_what_each_processor_measured_is_said(tmp_path: Path) -> None:
    write_results(tmp_path)
    page = render(tmp_path)
    assert "All other figures come from an a processor, 2 threads" in page
    assert "several processors" not in page
    with (tmp_path / "epochs.jsonl").open("a") as file:
        for dataset, task in (("graph", "gat"), ("other", "gcn")):
            record = ALONE | {"contestant": "sagann", "seconds": [1.0], "dataset": dataset, "task": task}
            file.write(json.dumps(record | {"processor": "AMD (AVX2)"}) + "\n")
    page = render(tmp_path)
    assert "All other figures come from an a processor and an AMD (AVX2), 2 threads" in page
    assert "- a processor: epochs, no dropout: graph (gcn).\n" in page
    assert "- AMD (AVX2): epochs, no dropout: graph (gat), other.\n" in page


def write_defaults(folder: Path, dataset: str) -> None:
    records = [
        {"settings": {"threads": 2}},
        *(
            ALONE | {"contestant": name, "seconds": [seconds], "losses": [None, None], "dataset": dataset}
            for name, seconds in (("sagann", 1.0), ("dgl", 4.0))
        ),
    ]
    (folder / "defaults.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))


def test_epochs_that_drop_other_values_are_timed_and_not_compared(tmp_path: Path) -> None:
    write_results(tmp_path)
    write_defaults(tmp_path, "graph")
    page = render(tmp_path)
    assert "- epochs, defaults of `sagann train`: never slower, 4.0 times as fast" in page
    assert "In 1 of 1 comparisons" in page
    assert page.count("losses before the first and the third step") == 1


def test_the_table_of_the_readme_is_of_the_defaults_where_they_were_measured_on_its_graph(tmp_path: Path) -> None:
    write_results(tmp_path)
    write_defaults(tmp_path, "graph")
    assert "(epochs, no dropout;" in with_table(README.read_text(), tmp_path)
    write_defaults(tmp_path, SHOWN)
    assert "(epochs, defaults of `sagann train`;" in with_table(README.read_text(), tmp_path)


def test_figures_of_a_device_stand_in_a_section_of_their_own(tmp_path: Path) -> None:
    write_results(tmp_path)
    assert "Nothing is measured on a CUDA device." in render(tmp_path)
    rows = [
        "| epoch, gcn | graph | 0.5 | PyG | 2 | 2.00 |",
        "| epoch, gat | graph | 1 | PyG | - | - |",
        "| streamed within 1/8, gcn | graph | 9 | P = 1 | 1 | 9.00 |",
    ]
    table = ["| what | on | sagann s | against | s | is |", "|---|---|--:|---|--:|--:|", *rows]
    (tmp_path / "device.md").write_text("\n".join(["# On a CUDA device", "", "## Epochs", "", *table, ""]))
    page = render(tmp_path)
    assert "\n## On a CUDA device\n\n### Epochs\n\n| what" in page
    assert "an epoch in memory is 2.0 to 2.0 times as fast as PyG's best" in page
    assert "takes 9 to 9 times as long as streamed with P = 1, and 18 to 18 times as long as the ordinary" in page


@pytest.mark.parametrize("name", ["minibatches_cuda.md", "cold_bytes_device.md"])
def test_other_pages_of_a_device_are_sections_too(tmp_path: Path, name: str) -> None:
    write_results(tmp_path)
    (tmp_path / name).write_text("# Rows on a CUDA device\n\nA sentence.\n")
    assert "\n\n## Rows on a CUDA device\n\nA sentence.\n" in render(tmp_path)


def test_the_faster_peer_of_each_table_of_minibatches_counts(tmp_path: Path) -> None:
    assert minibatch_section(tmp_path) == []
    (tmp_path / "minibatches.md").write_text(
        "sage, fanouts 5, 5:\n\n| contestant | s / epoch | it / sagann |\n|---|--:|--:|\n| sagann:ahead | 1.0 | 1.00 |\n"
        "| pyg:loader | 3.0 | 3.00 |\n| dgl:graphbolt | 2.0 | 2.00 |\n"
    )
    assert minibatch_section(tmp_path)[-1] == (
        "| sampled epochs in memory | sage, fanouts 5, 5 | dgl:graphbolt | **2.00** | `python -m bench.minibatches` |"
    )
    row = "| sagann | {} | 32 | 1.50 | 1.0 | 900 | 800 | 60 | 3000 |\n"
    header = "| contestant | outcome | batches | s / batch | it / sagann | edges / batch | rows / batch | ready s | held MiB |\n"
    for outcome, is_shown in (("killed", False), ("ok", True)):
        (tmp_path / "minibatches_large.md").write_text(header + "|---" * 9 + "|\n" + row.format(outcome))
        said = "limit of 6 GiB:\n1.50 s a batch of 800 rows, 3000 MiB held" in minibatch_section(tmp_path)[-1]
        assert said == is_shown
