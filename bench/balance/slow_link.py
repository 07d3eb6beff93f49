"""Two network namespaces of Linux, joined by a link of a stated rate: they stand for two machines. Needs root, `ip` and `tc`."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

NAMES = ("sagann-one", "sagann-two")
"Names of the namespaces."
LINK = "slow0"
"Name of the interface at either end of the link."


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """Where a process runs."""

    prefix: tuple[str, ...]
    "Command that runs the command after it in this place."
    interface: str
    "Name of the interface by which the processes talk."
    address: str
    "Address of the first place."


@contextmanager
def slow_link(rate: str) -> Iterator[tuple[Place, Place]]:
    """Two places whose link has a rate in each direction, as in "1gbit"; removed after the ``with`` block."""
    first, second = NAMES
    try:
        for name in NAMES:
            _run("ip", "netns", "add", name)
        _run("ip", "link", "add", LINK, "netns", first, "type", "veth", "peer", "name", LINK, "netns", second)
        for number, name in enumerate(NAMES, 1):
            inside = ("ip", "netns", "exec", name)
            _run(*inside, "ip", "address", "add", f"10.77.0.{number}/24", "dev", LINK)
            for interface in ("lo", LINK):
                _run(*inside, "ip", "link", "set", interface, "up")
            shape = ("tbf", "rate", rate, "burst", "256kb", "latency", "50ms")
            _run(*inside, "tc", "qdisc", "add", "dev", LINK, "root", *shape)
        one, two = (
            Place(prefix=("ip", "netns", "exec", name), interface=LINK, address="10.77.0.1") for name in NAMES
        )
        yield one, two
    finally:
        for name in NAMES:
            # With the namespace goes its end of the link.
            subprocess.run(["ip", "netns", "delete", name], check=False, stderr=subprocess.DEVNULL)


def _run(*command: str) -> None:
    subprocess.run(command, check=True)
