"""The page of measured numbers, and of memory policies."""

from __future__ import annotations

import pytest

from bench import memory_policies
from bench.epochs.graphs import Shape
from bench.memory_policies import COLUMNS, POLICIES, SHARES
from bench.performance_page import PAGE, README, render, with_table
from bench.workers import RESULTS
from sagann.runtime.streaming.executor import Executor
from tests.bench.tables import rows_of


def test_the_page_is_what_the_results_give() -> None:
    assert PAGE.read_text() == render(RESULTS), "docs/performance.md is not up to date: run make performance"


def test_the_table_of_the_readme_is_what_the_results_give() -> None:
    text = README.read_text()
    assert text == with_table(text, RESULTS), "the README's table is not up to date: run make performance"
    assert "| gcn |" in text


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    shape = Shape(vertices=10_000, edges=200_000, features=64, classes=5)
    monkeypatch.setitem(memory_policies.SHAPES, "pubmed", shape)
    monkeypatch.delattr(Executor, "forward")


@pytest.mark.usefixtures("tiny")
def test_a_table_of_every_policy(capsys: pytest.CaptureFixture[str]) -> None:
    given = ["--datasets", "pubmed", "--models", "gcn", "--hidden", "32", "--intervals", "4"]
    assert memory_policies.main(given) == 0
    text = capsys.readouterr().out
    rows = rows_of(text, COLUMNS)
    assert [row["budget"] for row in rows] == list(SHARES)
    for row in rows:
        moved = {policy: sum(map(float, row[f"{policy} MB"].split(" + "))) for policy in POLICIES}
        assert moved["dp"] <= min(moved.values()) * 1.001
        assert float(row["least MB"]) <= moved["dp"] * 1.001
        assert row["fastest"] in POLICIES
    assert "`dp` moves the fewest bytes in 3 of 3 cases." in text
