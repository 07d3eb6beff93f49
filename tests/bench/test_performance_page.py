"""The page of performance: it is what the benchmarks' files give, and so is the README's table."""

from __future__ import annotations

from bench.performance_page import PAGE, README, render, with_table
from bench.workers import RESULTS


def test_the_page_is_what_the_results_give() -> None:
    assert PAGE.read_text() == render(RESULTS), "docs/performance.md is not up to date: run make performance"


def test_the_table_of_the_readme_is_what_the_results_give() -> None:
    text = README.read_text()
    assert text == with_table(text, RESULTS), "the README's table is not up to date: run make performance"
    assert "| gcn |" in text
