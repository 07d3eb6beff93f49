"""How workers find each other: keys of earlier starts and strangers do no harm, and who does not come, or closes, is seen."""

from __future__ import annotations

import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
import torch.distributed as dist

from sagann.errors import WorkerError
from sagann.runtime.workers import meeting
from sagann.runtime.workers.meeting import address_toward, interface_of, meet
from sagann.runtime.workers.side_channel import SideChannel, connect

SIZE = 3


def gone(peers: Sequence[int], why: str, hint: str = "") -> WorkerError:
    return WorkerError(f"workers {list(peers)}: {why}", hint=hint)


def connected(
    address: str, stranger: Callable[[str, int], socket.socket | None] = lambda host, port: None
) -> list[dict[int, socket.socket]]:
    """The connections of each worker; a stranger comes to each of them first."""
    barrier, addresses = threading.Barrier(SIZE), [""] * SIZE
    strangers = list[socket.socket | None]()

    def work(rank: int) -> dict[int, socket.socket]:
        def texts(text: str) -> Sequence[str]:
            addresses[rank] = text
            host, port, _ = text.split()
            strangers.append(stranger(host, int(port)))
            barrier.wait()
            return addresses

        return connect(rank, SIZE, address, texts, timeout_s=30.0, gone=gone)

    with ThreadPoolExecutor(SIZE) as threads:
        found = list(threads.map(work, range(SIZE)))
    for link in strangers:
        if link is not None:
            link.close()
    return found


def say(host: str, port: int, content: bytes) -> socket.socket:
    link = socket.create_connection((host, port))
    link.sendall(content)
    return link


def reset(host: str, port: int) -> None:
    with socket.create_connection((host, port)) as link:
        link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


@pytest.mark.parametrize(
    "stranger",
    [
        lambda host, port: say(host, port, b""),
        lambda host, port: say(host, port, b"GET / HTTP/1.1\r\n"),
        lambda host, port: say(host, port, bytes(1000)),
        reset,
    ],
    ids=["silent", "half a token", "another token", "reset"],
)
def test_strangers_that_connect_first_do_no_harm(stranger: Callable[[str, int], socket.socket | None]) -> None:
    for rank, found in enumerate(connected("127.0.0.1", stranger)):
        assert sorted(found) == [other for other in range(SIZE) if other != rank]
        for link in found.values():
            link.close()


def test_arrays_travel_where_there_is_ipv6_alone() -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6")
    channels = [
        SideChannel(links, rank=rank, timeout_s=30.0, gone=gone) for rank, links in enumerate(connected("::1"))
    ]

    def work(channel: SideChannel) -> list[list[float]]:
        sent = {
            other: [torch.full((channel.rank,), float(other))] for other in range(SIZE) if other != channel.rank
        }
        found = channel.exchange(sent, "testing")
        channel.close()
        return [array.tolist() for arrays in found.values() for array in arrays]

    with ThreadPoolExecutor(SIZE) as threads:
        assert list(threads.map(work, channels)) == [[[0.0], [0.0, 0.0]], [[], [1.0, 1.0]], [[], [2.0]]]


def test_a_thread_that_waits_sees_that_its_own_worker_closes() -> None:
    channels = [
        SideChannel(links, rank=rank, timeout_s=60.0, gone=gone)
        for rank, links in enumerate(connected("127.0.0.1"))
    ]
    sent = {other: [torch.ones(3)] for other in (1, 2)}
    with ThreadPoolExecutor(1) as threads:
        since_s = time.monotonic()
        waiting = threads.submit(channels[0].exchange, sent, "testing")
        time.sleep(0.2)
        channels[0].close()
        with pytest.raises(WorkerError, match="its connection was lost"):
            waiting.result()
        assert time.monotonic() - since_s < 30.0
    for channel in channels[1:]:
        channel.close()


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
