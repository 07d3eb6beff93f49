"""Three processes over gloo: what they send is added in the order of the ranks, and a lost worker ends the others."""

import json
import math
import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from sagann.errors import InputError
from sagann.runtime.workers import Workers, join_workers
from tests.runtime.workers.group_driver import LONG_S, SIZE, TIMEOUT_S
from tests.runtime.workers.processes import run_driver
from tests.runtime.workers.threads import in_threads
from tests.shared import SharedFolder

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(900)]


@pytest.fixture(scope="module", params=["host", "device"])
def folder(request: pytest.FixtureRequest, shared_folder: SharedFolder) -> Path:
    """What happened where tensors travel from host to host, or as between devices."""
    return shared_folder("group", partial(run_driver, "group_driver")) / request.param


def said(folder: Path, name: str) -> dict[int, dict[str, Any]]:
    files = {rank: folder / f"{name}-{rank}.json" for rank in range(SIZE)}
    return {rank: json.loads(file.read_text()) for rank, file in files.items() if file.exists()}


def test_workers_get_each_others_tensors_and_texts(folder: Path) -> None:
    found = said(folder, "talk")
    assert len(found) == SIZE
    terms = [torch.tensor([1.0, 1e8, -1e8])[(torch.arange(7) + rank) % 3] for rank in range(SIZE)]
    in_order = ((terms[0] + terms[1]) + terms[2]).tolist()
    for rank, mine in found.items():
        assert mine["sum"] == in_order
        assert mine["rows"] == [0.5, 1.5, 2.5, 3.5, 4.5]
        assert mine["rows at first"] == (None if rank else [0.5, 1.5, 2.5, 3.5, 4.5])
        assert mine["texts"] == ["Grüße 0", "Grüße 1" * 2, "Grüße 2" * 3]
        assert mine["empty texts"] == [""] * SIZE
        assert mine["any"] == [False, True]
        assert mine["bytes"] == "abc"
        assert mine["total"] == [6.0]
        assert mine["gradients"] == [[3.0] * 4, None, [1.0]]
        assert mine["random"] == found[0]["random"], rank
        assert mine["aside"] == [False, True]
        assert mine["asides are kept"]
        assert mine["sent bytes are counted"]


def test_transfers_that_travel_together_are_told_apart(folder: Path) -> None:
    for rank, mine in said(folder, "talk").items():
        others = [other for other in range(SIZE) if other != rank]
        assert mine["begun"] == [[10.0 * other + number for other in others] for number in range(2)]


DOING = {
    "killed": "agreeing on the next epoch",
    "killed in an exchange": "exchanging rows of the halo",
    "killed while sampling": "sampling neighbours",
}
"What workers do that wait for one that is killed."


@pytest.mark.parametrize("how", DOING)
def test_a_worker_that_is_lost_ends_the_others_at_once(folder: Path, how: str) -> None:
    found = said(folder, how)
    assert list(found) == [0, 2]
    for rank, mine in found.items():
        assert mine["seconds"] < LONG_S / 2
        # The third worker may end before this one asks it.
        assert "is gone: its connection was lost" in mine["text"]
        # What gloo says beside that helps nobody.
        assert not re.search(r"\.cc:|Check the logs|GLHF", mine["text"])
        assert f"while {DOING[how]}" in mine["text"]
        assert f"(in worker {rank} of {SIZE})" in mine["text"]
    # Between devices it may be one of two that is named.
    assert re.search(r"worker 1 is gone|workers (0, 1|1, 2) is gone", found[0]["text"] + found[2]["text"])


@pytest.mark.parametrize(
    ("how", "doing"), [("stopped", "agreeing on the next epoch"), ("stopped while sampling", "sampling neighbours")]
)
def test_a_stopped_worker_ends_the_others_in_time(folder: Path, how: str, doing: str) -> None:
    found = said(folder, how)
    assert list(found) == [0, 2]
    for mine in found.values():
        # The time of each of them, and what a busy machine takes.
        assert mine["seconds"] < 2 * TIMEOUT_S + 60
    texts = found[0]["text"] + found[2]["text"]
    assert f"worker 1 is gone: no answer within {TIMEOUT_S:g} s while {doing}" in texts
    assert "A worker that is only slow wants a longer --worker-timeout." in texts


def test_a_process_that_torchrun_did_not_start_has_nobody_to_join(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(InputError, match="there are no workers to join: RANK is not set"), join_workers():
        pass


@pytest.mark.parametrize("seconds", [0, 1e10, math.nan, "60"])
def test_nobody_waits_so_long(seconds: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    refused = pytest.raises(InputError, match=r"timeout_s is .* from 0.001 to 1e\+06 \(in join_workers.timeout_s\)")
    with refused, join_workers(timeout_s=seconds):
        pass


def test_sparse_gradients_are_added() -> None:
    def work(workers: Workers) -> list[float]:
        embedding = torch.nn.Embedding(3, 2, sparse=True)
        embedding(torch.tensor([workers.rank])).sum().backward()
        workers.add_gradients([embedding.weight], torch.zeros(1))
        return embedding.weight.grad.sum(1).tolist()

    assert in_threads(work, 2) == [[2.0, 2.0, 0.0]] * 2
