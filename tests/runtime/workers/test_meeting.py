"""Workers that find each other: keys of earlier starts do not count, whoever does not come is named, and the way to a host has an interface."""

from __future__ import annotations

import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch.distributed as dist

from sagann.errors import WorkerError
from sagann.runtime.workers import meeting
from sagann.runtime.workers.meeting import address_toward, interface_of, meet

SIZE = 3


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The launcher's store, which lives as long as the launcher does."""
    made = dist.HashStore()
    monkeypatch.setattr(dist, "rendezvous", lambda *_, **__: iter([(made, 0, SIZE)]))
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    return made


def start() -> list[tuple[Any, str | None]]:
    with ThreadPoolExecutor(SIZE) as threads:
        # The first worker comes last: then the others find what an earlier start has left.
        ranks = range(SIZE - 1, -1, -1)
        return list(threads.map(lambda rank: meet(rank, SIZE, timeout_s=60.0), ranks))[::-1]


def test_workers_that_are_started_anew_do_not_see_keys_of_those_before(store: Any) -> None:
    for number in range(3):
        found = start()
        for rank, (mine, interface) in enumerate(found):
            assert interface is None
            assert not mine.check([f"of worker {rank}"])
            mine.set(f"of worker {rank}", str(number))
        assert {mine.get("of worker 1") for mine, _ in found} == {str(number).encode()}


@pytest.mark.parametrize(("here", "missing"), [(0, 1), (2, 0)])
def test_a_worker_that_does_not_come_is_named(store: Any, here: int, missing: int) -> None:
    start()
    with pytest.raises(WorkerError) as caught:
        meet(here, SIZE, timeout_s=0.1)
    assert f"the workers do not find each other: worker {missing} has not come within 0.1 s" in str(caught.value)
    assert f"(in worker {here} of {SIZE})" in str(caught.value)


@pytest.mark.parametrize("addresses", [["127.0.1.1", "192.0.2.1"], ["192.0.2.2", "192.0.2.1"]])
def test_workers_of_several_machines_find_the_interface_that_leads_to_another(
    store: Any, monkeypatch: pytest.MonkeyPatch, addresses: list[str]
) -> None:
    # What each worker finds on its way to the rendezvous, which is beside the first one; some machines' names are of the loopback.
    own = threading.local()
    monkeypatch.setattr(
        meeting, "address_toward", lambda host: addresses[own.rank] if host == "127.0.0.1" else f"toward {host}"
    )
    monkeypatch.setattr(meeting, "interface_of", lambda address: f"interface {address}")

    def run(rank: int) -> str | None:
        own.rank = rank
        return meet(rank, 2, timeout_s=60.0)[1]

    with ThreadPoolExecutor(2) as threads:
        first, last = threads.map(run, range(2))
    assert last == "interface toward 192.0.2.1"
    assert first == f"interface toward {addresses[0] if addresses[0] != '127.0.1.1' else addresses[1]}"


@pytest.mark.skipif(sys.platform != "linux", reason="interfaces are asked for as Linux has it")
def test_the_interface_of_an_address() -> None:
    assert address_toward("127.0.0.1") == "127.0.0.1"
    assert interface_of("127.0.0.1") == "lo"
    assert interface_of("192.0.2.77") is None
    assert address_toward("no such host") == "127.0.0.1"
    assert address_toward("::1") in ("::1", "127.0.0.1")
