"""The benchmark of memory policies: every policy on every shape, without a graph and without an epoch."""

from __future__ import annotations

import pytest

from bench import memory_policies
from bench.memory_policies import COLUMNS, P100, POLICIES, SHARES, Shape, cases_of, summary
from sagann.plan.machine import Machine
from sagann.plan.memory import MEMORY_POLICIES
from sagann.runtime.streaming.executor import Executor
from tests.bench.tables import rows_of

MACHINE = Machine.from_toml(P100.read_text(), where=str(P100))


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    shape = Shape(vertices=10_000, edges=200_000, features=64, classes=5)
    monkeypatch.setitem(memory_policies.SHAPES, "pubmed", shape)
    monkeypatch.delattr(Executor, "forward")


def test_a_table_of_every_policy(capsys: pytest.CaptureFixture[str]) -> None:
    assert set(POLICIES) == set(MEMORY_POLICIES)
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


def test_more_intervals_are_taken_where_the_least_budget_needs_them() -> None:
    cases = list(cases_of("pubmed", "gated-gcn", 32, 1, MACHINE))
    assert len({case.num_intervals for case in cases}) == 1
    assert cases[0].num_intervals > 1
    assert cases[0].times("none") > 1
    assert any("`auto` takes" in each for each in summary(cases))
