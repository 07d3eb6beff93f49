"""A contest goes on without a contestant that is killed, and continues from the records that it finds."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from bench.contest import Contestant, Results, Rules, run_contest

COMMAND = (sys.executable, "-m", "tests.bench.fake_worker")


@pytest.mark.thorough
def test_a_contest_goes_on_without_who_was_killed_and_continues_where_it_was(tmp_path: Path) -> None:
    names = {"sagann": "", "pyg:one": "killed", "pyg:two": "", "dgl": "unsupported"}

    def contest() -> Results:
        results = Results(tmp_path / "results.jsonl", {"threads": 1}, "first", "a processor")
        run_contest(
            [Contestant(name=name, command=COMMAND) for name in names],
            lambda contestant: {"ending": names[contestant.name], "threads": 1, "folder": "unused"},
            dataset="fake",
            task="nothing",
            rules=Rules(rounds=2, epochs=1, turn_s=0.0),
            results=results,
        )
        return results

    results = contest()
    outcomes = {name: results.find("alone", "fake", "nothing", name)["outcome"] for name in names}
    assert outcomes == {"sagann": "ok", "pyg:one": "killed", "pyg:two": "ok", "dgl": "unsupported"}
    together = results.find("together", "fake", "nothing")["seconds"]
    assert {name: len(turns) for name, turns in together.items()} == {"sagann": 2, "pyg:two": 2}

    # A line cut off by an interruption is measured again, and nothing else is.
    path = tmp_path / "results.jsonl"
    before = path.read_text()
    path.write_text(before[:-20])
    assert contest().records.keys() == results.records.keys()
    assert path.read_text().splitlines()[:-1] == before.splitlines()[:-1]
