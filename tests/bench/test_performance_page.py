"""The page of performance: every figure comes from the benchmarks' files, and the page is up to date."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.performance_page import PAGE, README, render, with_table
from bench.performance_sections import minibatch_section
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


def test_figures_come_from_the_files(tmp_path: Path) -> None:
    write_results(tmp_path)
    page = render(tmp_path)
    assert "- epochs, no dropout: never slower, 3.0 times as fast in the geometric mean of 1 cases." in page
    assert "| epochs, no dropout | graph | 1 | **3.00** | 3.00 | 3.00 | - | - | `python -m bench.epochs` |" in page
    assert (
        "| epochs, no dropout; 1 cases | - | the thriftiest of PyG and DGL | 0.25 (0.25 to 0.25) | 0.33 |" in page
    )
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
