"""The protocol between parent and worker, and every way in which a worker may end."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from bench import workers
from bench.contest import Contestant, Results, Rules, run_contest, take_turns
from bench.workers import FIRST_TO_GO, Worker, WorkerEndedError

COMMAND = (sys.executable, "-m", "tests.bench.fake_worker")


def specification(ending: str = "") -> dict[str, object]:
    return {"ending": ending, "threads": 1, "folder": "unused"}


def test_requests_are_answered_in_turn(tmp_path: Path) -> None:
    with Worker(COMMAND, specification()) as worker:
        assert set(worker.ready) == {"rehearsal_s", "loaded_bytes"}
        epochs = worker.ask({"epochs": 3})
        assert len(epochs["seconds"]) == 3
        assert epochs["loss"] == 3
        memory = worker.ask({"memory": 2})
        assert memory["loss"] == 5
        assert memory["process_bytes"] - memory["peak_bytes"] == worker.ready["loaded_bytes"]
        worker.ask({"result": str(tmp_path / "result.npz")})
        assert np.load(tmp_path / "result.npz")["runs"] == 5


def test_the_kernel_takes_a_worker_before_its_parent() -> None:
    with Worker(COMMAND, specification()) as worker:
        adjustment = Path(f"/proc/{worker._process.pid}/oom_score_adj").read_text()
        assert int(adjustment) == FIRST_TO_GO


@pytest.mark.parametrize(
    ("ending", "outcome", "detail"),
    [
        ("killed", "killed", "exit status -9"),
        ("exits", "failed", "exit status 3"),
        ("fails", "failed", "as it was told to"),
        ("sleeps", "too slow", "no answer within 3 s"),
        ("lingers", "failed", "exit status None"),
        ("grows", "out of memory", "Unable to allocate"),
    ],
)
def test_a_worker_that_ends_says_how(
    ending: str, outcome: str, detail: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "GRACE_S", 0.2)
    timeout_s = 3 if ending == "sleeps" else 60
    with Worker(COMMAND, specification(ending), memory_bytes=8 << 30) as worker:
        worker.ask({"epochs": 2})
        worker._timeout_s = timeout_s
        with pytest.raises(WorkerEndedError, match=detail) as ended:
            worker.ask({"epochs": 1})
    assert ended.value.outcome == outcome


def test_a_contestant_that_does_not_exist_here() -> None:
    with pytest.raises(WorkerEndedError, match="not here") as ended:
        Worker(COMMAND, specification("unsupported"))
    assert ended.value.outcome == "unsupported"


def test_a_contest_goes_on_without_who_was_killed_and_continues_where_it_was(tmp_path: Path) -> None:
    names = {"sagann": "", "pyg:one": "killed", "pyg:two": "", "dgl": "unsupported"}
    contestants = [Contestant(name=name, command=COMMAND) for name in names]
    rules = Rules(rounds=2, epochs=1, turn_s=0.0)

    def contest() -> Results:
        results = Results(tmp_path / "results.jsonl", {"threads": 1}, "first", "a processor")
        run_contest(
            contestants,
            lambda contestant: specification(names[contestant.name]),
            dataset="fake",
            task="nothing",
            rules=rules,
            results=results,
        )
        return results

    results = contest()
    outcomes = {name: results.find("alone", "fake", "nothing", name)["outcome"] for name in names}
    assert outcomes == {"sagann": "ok", "pyg:one": "killed", "pyg:two": "ok", "dgl": "unsupported"}
    together = results.find("together", "fake", "nothing")["seconds"]
    assert {name: [len(turn) for turn in turns] for name, turns in together.items()} == {
        "sagann": [1, 1],
        "pyg:two": [1, 1],
    }

    # A line cut off by an interruption is measured again, and nothing else is.
    path = tmp_path / "results.jsonl"
    before = path.read_text()
    path.write_text(before[:-20])
    assert contest().records.keys() == results.records.keys()
    assert path.read_text().splitlines()[:-1] == before.splitlines()[:-1]


def test_turns_go_on_without_who_hangs() -> None:
    endings = {"sagann": "", "pyg": "sleeps", "dgl": "unsupported"}
    turns = take_turns(
        [Contestant(name=name, command=COMMAND) for name in endings],
        lambda contestant: specification(endings[contestant.name]),
        first={"epochs": 2},
        request={"epochs": 1},
        rounds=2,
        timeout_s=15,
    )
    assert {name: [turn["seconds"] for turn in each] for name, each in turns.items()}.keys() == {"sagann"}
    assert [turn["loss"] for turn in turns["sagann"]] == [3, 4]


def test_results_of_other_settings_are_not_continued(tmp_path: Path) -> None:
    Results(tmp_path / "results.jsonl", {"threads": 1}, "first", "a processor")
    with pytest.raises(ValueError, match=r"other settings: threads\. Measured with \[1\], now \[2\]"):
        Results(tmp_path / "results.jsonl", {"threads": 2}, "first", "a processor")


def test_complete_tasks_may_be_of_several_commits(tmp_path: Path) -> None:
    first = Results(tmp_path / "results.jsonl", {}, "first", "a processor")
    for task in ("complete", "cut off"):
        first.add({"kind": "alone", "dataset": "fake", "task": task, "contestant": "sagann"})
    first.add({"kind": "together", "dataset": "fake", "task": "complete"})
    second = Results(tmp_path / "results.jsonl", {}, "second", "a processor")
    assert second.find("alone", "fake", "complete", "sagann") is not None
    assert second.find("alone", "fake", "cut off", "sagann") is None
    assert first.find("alone", "fake", "cut off", "sagann") is not None
    second.add({"kind": "alone", "dataset": "fake", "task": "cut off", "contestant": "sagann"})
    assert second.find("alone", "fake", "cut off", "sagann") is not None
    assert second.origins == ["first on a processor", "second on a processor"]
    elsewhere = Results(tmp_path / "results.jsonl", {}, "second", "another")
    assert elsewhere.find("alone", "fake", "cut off", "sagann") is None
    assert elsewhere.find("alone", "fake", "complete", "sagann") is not None
