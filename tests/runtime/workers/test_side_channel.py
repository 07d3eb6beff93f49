"""Connections beside gloo's: strangers do no harm, and whoever waits for a worker that closes sees it."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from sagann.errors import WorkerError
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
