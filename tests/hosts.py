"""Hosts: Linux network namespaces, each with an interface, a name, names of the others and shared memory of its own, joined by a switch.

A host lives as long as its keeper, a process that reads a pipe: the pipe closes when the test process ends, however that ends. Then the
keeper kills all that runs on its host, and the system removes namespaces that nobody is in. Nothing has a name outside, so tests
beside each other do not meet.

Each host resolves its own name to 127.0.1.1, as Debian's installer sets it up, and the names of the others to their addresses.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

_TOOLS = ("ip", "unshare", "nsenter", "hostname")
_SECONDS = 30
_LISTENS = "0A"
"The state of a socket that listens, in /proc/net/tcp."
_KEEP = """
hostname "$0" && mount --bind "$1/hosts" /etc/hosts && mount --bind "$1/resolv.conf" /etc/resolv.conf || exit
mount --bind "$1/shm" /dev/shm && ip link set lo up && echo ready && read -r end
mine=$(stat -L -c %i /proc/$$/ns/net) lives=some
while [ "$lives" ]; do
    lives=
    for found in $(stat -L -c %i:%n /proc/[0-9]*/ns/net); do
        pid=${found#*:/proc/} pid=${pid%/ns/net}
        [ "${found%%:*}" = "$mine" ] && [ $pid != $$ ] && kill -9 $pid && lives=some
    done
done 2>/dev/null
"""
_KEEP_SWITCH = "ip link add name br0 type bridge && ip link set br0 up && echo ready && read -r end"
_ENTER = 'cd "$0" && exec "$@"'


class Host:
    """A namespace of the network, made by :func:`hosts`.

    Args:
        name: the name of the host.
        address: its address.
        folder: where its files are: ``hosts`` and ``shm``, which are ``/etc/hosts`` and ``/dev/shm`` there.
        keeper: process id of the process that keeps its namespaces.
        port: name of the interface of the switch that leads to this host.
        switch: process id of the process that keeps the switch.
    """

    def __init__(self, *, name: str, address: str, folder: Path, keeper: int, port: str, switch: int) -> None:
        self.name, self.address, self._shared_memory = name, address, folder / "shm"
        self.keeper, self._port, self._switch = keeper, port, switch

    def inside(self, cwd: Path | None = None) -> Sequence[str]:
        """What stands before a command that runs on this host."""
        # A process that enters another mount namespace is at its root.
        return (
            "nsenter",
            f"--target={self.keeper}",
            "--net",
            "--uts",
            "--mount",
            "sh",
            "-c",
            _ENTER,
            str(cwd or Path.cwd()),
        )

    def start(
        self, *command: object, env: Mapping[str, str] | None = None, cwd: Path | None = None
    ) -> subprocess.Popen[str]:
        """Start a command on this host."""
        return subprocess.Popen(
            [*self.inside(cwd), *map(str, command)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **(env or {})},
            start_new_session=True,
        )

    def processes(self) -> list[int]:
        """Process ids of all that runs on this host, besides its keeper."""
        mine, found = Path(f"/proc/{self.keeper}/ns/net").stat().st_ino, []
        for entry in Path("/proc").iterdir():
            # Some end meanwhile, and some are not ours.
            with suppress(OSError):
                if entry.name.isdigit() and (entry / "ns/net").stat().st_ino == mine:
                    found.append(int(entry.name))
        return sorted(set(found) - {self.keeper})

    def cut(self) -> None:
        """Pull the host's cable out of the switch: what is sent is lost, and nobody is told."""
        _ip(self._switch, f"link set {self._port} nomaster")

    def join(self) -> None:
        """Put the host's cable into the switch."""
        _ip(self._switch, f"link set {self._port} master br0")

    def unplug(self) -> None:
        """Take the host's own interface down, as its system does when it sees that the cable is out."""
        _ip(self.keeper, "link set eth0 down")

    def left(self) -> list[str]:
        """What is left in this host's shared memory."""
        return sorted(os.listdir(self._shared_memory))

    def wait_until_empty(self) -> None:
        """Wait until nothing runs on this host; processes end a moment after those that started them."""
        limit_s = time.monotonic() + _SECONDS
        while pids := self.processes():
            assert time.monotonic() < limit_s, f"processes {pids} do not end"
            time.sleep(0.01)


def listening(pids: Sequence[int]) -> set[str]:
    """Addresses at which processes of this host listen, as the system lists them; one of IPv6 in hexadecimal digits."""
    inodes = {os.readlink(entry) for pid in pids for entry in Path(f"/proc/{pid}/fd").iterdir()}
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            _, local, _, state, *rest = line.split()
            if state == _LISTENS and f"socket:[{rest[5]}]" in inodes:
                digits = local.partition(":")[0]
                found.add(digits if table == "tcp6" else socket.inet_ntoa(bytes.fromhex(digits)[::-1]))
    return found


@contextmanager
def hosts(folder: Path, num_hosts: int = 2) -> Iterator[list[Host]]:
    """Hosts that are joined by a switch; all that runs on them is ended at the end. Skips the test where they cannot be made."""
    if missing := [tool for tool in _TOOLS if shutil.which(tool) is None]:
        pytest.skip(f"hosts of their own need {', '.join(missing)}")
    names = [f"host-{number}" for number in range(num_hosts)]
    addresses = [f"10.77.0.{number + 1}" for number in range(num_hosts)]
    with ExitStack() as stack:
        switch = stack.enter_context(_keeper(_KEEP_SWITCH, flags=("--net",)))
        made = []
        for number, (name, address) in enumerate(zip(names, addresses, strict=True)):
            own = folder / name
            (own / "shm").mkdir(parents=True)
            lines = ["127.0.0.1 localhost", f"127.0.1.1 {name}"]
            lines += [f"{there} {other}" for there, other in zip(addresses, names, strict=True) if other != name]
            (own / "hosts").write_text("\n".join(lines) + "\n")
            # A server of names that nobody reaches would be asked for seconds.
            (own / "resolv.conf").write_text("nameserver 127.0.0.1\n")
            keeper = stack.enter_context(
                _keeper(_KEEP, name, str(own), flags=("--net", "--uts", "--mount", "--propagation=private"))
            )
            port = f"port{number}"
            _ip(switch, f"link add {port} type veth peer name eth0 netns {keeper}")
            _ip(switch, f"link set {port} up")
            _ip(keeper, f"address add {address}/24 dev eth0")
            _ip(keeper, "link set eth0 up")
            host = Host(name=name, address=address, folder=own, keeper=keeper, port=port, switch=switch)
            host.join()
            made.append(host)
        yield made


def enter(keeper: int) -> None:
    """Move this process, which has one thread, to the host that a process keeps; at the root of its files."""
    for name in ("net", "uts", "mnt"):
        number = os.open(f"/proc/{keeper}/ns/{name}", os.O_RDONLY)
        # Python has it from version 3.12 on.
        if ctypes.CDLL(None, use_errno=True).setns(number, 0):
            raise OSError(ctypes.get_errno(), f"the host's {name} namespace cannot be entered")
        os.close(number)


@contextmanager
def _keeper(program: str, *arguments: str, flags: Sequence[str]) -> Iterator[int]:
    """The process id of a process in new namespaces, in which a program of the shell makes ready what is in them."""
    command = ["unshare", *flags, "sh", "-c", program, *arguments]
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            if process.stdout.readline() != "ready\n":
                pytest.skip(f"namespaces cannot be made here: {process.stderr.read().strip()}")
            yield process.pid
        finally:
            process.stdin.close()
            process.wait(timeout=_SECONDS)


def _ip(pid: int, command: str) -> None:
    done = subprocess.run(
        ["nsenter", f"--target={pid}", "--net", "ip", *command.split()], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{command}: {done.stderr}"
