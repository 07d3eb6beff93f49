"""How workers find each other: by keys of the launcher's store that no earlier start has used, and by the interface to the others.

torchrun keeps one store for all starts of its workers (``--max-restarts``), and in it the addresses of workers that have ended. So the
first worker makes a new name at every start, and tells it to the workers of this start alone. ``torch.distributed`` talks over the
interface to whose address the machine's own name resolves. Where that is the loopback (127.0.1.1 on Debian), no other machine reaches it.
So workers of several machines take the interface that leads to another machine.
"""

from __future__ import annotations

import os
import secrets
import socket
import struct
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from sagann import processes
from sagann.config import SETTINGS
from sagann.errors import InputError, WorkerError, first_line
from sagann.runtime.workers.group import TIMEOUT_S, Workers

JOIN_TIMEOUT_S = 300.0
"Seconds for which workers that join wait for the others, which the launcher has started with them."
_LOOPBACKS = ("127.0.0.1", "localhost", "::1")
_POLL_S = 0.02
"Seconds between two looks into the store."
_LOOPBACK = "127."
"How addresses of the loopback begin."
_GET_ADDRESS = 0x8915
"Linux's request for the IPv4 address of an interface (SIOCGIFADDR)."


@contextmanager
def join_workers(*, timeout_s: float = TIMEOUT_S, balance: str = "edges") -> Iterator[Workers]:
    """Join the other workers that torchrun started, inside the ``with`` block.

    Workers whose rendezvous is on the loopback talk over the loopback alone, and those of several machines over the interface that
    leads to the others, unless ``GLOO_SOCKET_IFNAME`` and, for CUDA devices, ``NCCL_SOCKET_IFNAME`` name an interface.

    Args:
        timeout_s: seconds for which a worker waits for another one while they train, from 0.001 to 1,000,000.
        balance: name of the policy that divides the vertices (:data:`sagann.partition.BALANCES`).
    Raises:
        InputError: torchrun did not start this process, or nobody waits so long.
        WorkerError: the workers do not find each other.
    """
    if not processes.is_worker():
        raise InputError(
            "there are no workers to join: RANK is not set, or WORLD_SIZE is not above 1 (in join_workers)",
            hint="Start the program with torchrun --nproc-per-node=2 program.py.",
        )
    timeout_s = SETTINGS["worker_timeout"]._replace(owner=join_workers, name="timeout_s").checked(timeout_s)
    rank, size = processes.rank(), processes.num_workers()
    if os.environ.get("MASTER_ADDR") in _LOOPBACKS:
        _talk_over("lo0" if sys.platform == "darwin" else "lo")
    try:
        store, interface = meet(rank, size, timeout_s=JOIN_TIMEOUT_S)
        if interface is not None:
            _talk_over(interface)
        dist.init_process_group(
            "gloo", store=store, rank=rank, world_size=size, timeout=timedelta(seconds=JOIN_TIMEOUT_S)
        )
    except WorkerError:
        raise
    except (RuntimeError, ValueError) as error:
        raise WorkerError(
            f"the workers do not find each other: {first_line(error)} (in worker {rank} of {size}, rendezvous "
            f"at {os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')})",
            hint="Check the address that torchrun was given, the firewall, and GLOO_SOCKET_IFNAME.",
        ) from error
    workers = Workers(rank=rank, size=size, timeout_s=timeout_s, balance=balance, address=_own_address())
    try:
        yield workers
    except BaseException:
        # What is told is the first error, not that something travels no more.
        with suppress(RuntimeError):
            workers.abort()
        raise
    finally:
        workers.close()
        dist.destroy_process_group()


def _talk_over(interface: str) -> None:
    """Have gloo and NCCL talk over an interface, unless the environment names others."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
    # NCCL takes every interface whose name begins so, unless a sign says that it is the whole name.
    os.environ.setdefault("NCCL_SOCKET_IFNAME", f"={interface}")


def meet(rank: int, size: int, *, timeout_s: float) -> tuple[Any, str | None]:
    """Meet the other workers of this start, which all call this.

    The result: a store whose keys the workers of this start alone have written, and the name of the interface that leads to another
    machine; None if all workers are on one machine, or if the interface is not found. A worker that does not come in time is a WorkerError.
    """
    store, *_ = next(dist.rendezvous("env://", timeout=timedelta(seconds=timeout_s)))  # type: ignore[attr-defined]
    ends_s, token = time.monotonic() + timeout_s, secrets.token_hex(16)

    def wait(within: Any, keys: Mapping[str, int], meanwhile: Callable[[], None] = lambda: None) -> None:
        """Wait until a store has keys, each of which the worker of a rank writes."""
        while missing := [other for key, other in keys.items() if not within.check([key])]:
            if time.monotonic() > ends_s:
                raise WorkerError(
                    f"the workers do not find each other: worker {missing[0]} has not come within "
                    f"{timeout_s:g} s (in worker {rank} of {size})",
                    hint="Look for the first error of that worker, and check that it was started.",
                )
            meanwhile()
            time.sleep(_POLL_S)

    def tell() -> None:
        """Tell the name to whoever has come. A worker of an earlier start, which has ended, is told too: it does no harm."""
        for other in range(1, size):
            if store.check([f"sagann/comes/{other}"]):
                store.set(f"sagann/told/{store.get(f'sagann/comes/{other}').decode()}", token)

    name = token
    if rank:
        store.set(f"sagann/comes/{rank}", token)
        wait(store, {f"sagann/told/{token}": 0})
        name = store.get(f"sagann/told/{token}").decode()
    start = dist.PrefixStore(f"sagann/start/{name}", store)  # type: ignore[attr-defined]
    start.set(f"address/{rank}", address_toward(os.environ["MASTER_ADDR"]))
    if not rank:
        wait(start, {f"address/{other}": other for other in range(size)}, tell)
    # The first worker may be at the rendezvous, or know its own machine by an address of the loopback: it looks to the last worker,
    # which is on another machine if any is.
    for other in (rank, size - 1):
        wait(start, {f"address/{other}": other})
        address = start.get(f"address/{other}").decode()
        if not address.startswith(_LOOPBACK):
            return start, interface_of(address_toward(address))
    return start, None


def address_toward(host: str) -> str:
    """The address from which this machine talks to a host, of IPv4 if it can be; that of the loopback if there is no way to the host."""
    for family in (socket.AF_INET, socket.AF_INET6):
        with suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as sender:
            # Nothing is sent: the system looks for the way.
            sender.connect((host, 9))
            return str(sender.getsockname()[0])
    return "127.0.0.1"


def _own_address() -> str:
    """The address of this worker on the interface that the workers talk over."""
    host = os.environ.get("MASTER_ADDR", "")
    if host in _LOOPBACKS:
        return address_toward(host)
    names = os.environ.get("GLOO_SOCKET_IFNAME", "").split(",")
    return next((address for name, address in _addresses() if name in names), address_toward(host))


def interface_of(address: str) -> str | None:
    """Name of the interface that has an IPv4 address; None if it is not found, or if the system is not Linux."""
    return next((name for name, each in _addresses() if each == address), None)


def _addresses() -> Iterator[tuple[str, str]]:
    """Names and IPv4 addresses of this machine's interfaces; none if the system is not Linux."""
    if sys.platform != "linux":
        return
    # Imported here: only Unix has it.
    import fcntl

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asks:
        for _, name in socket.if_nameindex():
            # An interface may have no address.
            with suppress(OSError):
                found = fcntl.ioctl(asks, _GET_ADDRESS, struct.pack("256s", name.encode()))
                yield name, socket.inet_ntoa(found[20:24])
