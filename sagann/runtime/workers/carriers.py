"""Carriers bring tensors from one worker to another: gloo those in the memory of the host, NCCL those in the memory of CUDA devices.

Worker i of a machine computes on its CUDA device i, or all workers compute on processors. A tensor goes by the carrier of its device.

NCCL's operations run on the device, in the order in which the host starts them: a receive that is started before a send would keep it from
running. So all operations of a transfer are started as one group. NCCL does not say which worker is missing. So in every transfer between
devices the workers also send each other one byte by gloo, which says at once if a worker is gone. Waiting for NCCL with a limit of time
keeps the host until the device has received everything. PyTorch's watchdog would end the whole process without an error of ours, so it is
not started (``TORCH_NCCL_BLOCKING_WAIT``).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from sagann.errors import InputError
from sagann.graph.rows import as_byte_tensor
from sagann.runtime.places import device_named, num_cuda_devices

Operation = tuple[Sequence[int], Callable[[], Sequence[Any]]]
"""Ranks of the workers that something travels to or from, and what starts it, and gives what is to be waited for
(``torch.distributed.Work``)."""


class HostCarrier:
    """Brings tensors from host to host, by the process group of all workers."""

    def operations(
        self, sends: Mapping[int, Tensor], receives: Mapping[int, Tensor], tag: int
    ) -> Sequence[Operation]:
        """The operations of a transfer, in the order in which they are to be started, and then waited for.

        Tensors go to and come from workers by rank, contiguous and not empty; ``tag`` is the number of the transfer, on devices 0.
        """

        def operation(start: Callable[..., Any], tensor: Tensor, rank: int) -> Operation:
            return (rank,), lambda: (start(tensor, rank, tag=tag),)

        return [
            *(operation(dist.irecv, tensor, rank) for rank, tensor in receives.items()),
            *(operation(dist.isend, tensor, rank) for rank, tensor in sends.items()),
        ]

    def abort(self) -> None:
        """End what travels at once, without the other workers, which may be gone. gloo waits for nobody as it ends."""


class DeviceCarrier(HostCarrier):
    """Brings tensors from device to device, by a process group of all workers that carries tensors on their devices."""

    def __init__(self, group: Any) -> None:
        self._devices = group

    def operations(
        self, sends: Mapping[int, Tensor], receives: Mapping[int, Tensor], tag: int
    ) -> Sequence[Operation]:
        peers = sorted(sends.keys() | receives.keys())
        begun = torch.zeros(1, dtype=torch.uint8)
        signals = super().operations(
            dict.fromkeys(peers, begun), {rank: torch.empty_like(begun) for rank in peers}, tag
        )
        # As bytes: NCCL does not know every type.
        together = [
            dist.P2POp(operation, as_byte_tensor(tensor), rank, group=self._devices)
            for operation, tensors in ((dist.irecv, receives), (dist.isend, sends))
            for rank, tensor in tensors.items()
        ]
        return [*signals, (peers, lambda: (_Started(together),))]

    def abort(self) -> None:
        # Ending them regularly would wait for all workers of the machine.
        dist.distributed_c10d._abort_process_group(self._devices)


class _Started:
    """Operations of a group that have started."""

    def __init__(self, operations: list[dist.P2POp]) -> None:
        self._began_s = time.perf_counter()
        self._works = dist.batch_isend_irecv(operations)

    def wait(self, patience: timedelta) -> None:
        # PyTorch counts the time of NCCL's operations from their start.
        limit = timedelta(seconds=time.perf_counter() - self._began_s) + patience
        for work in self._works:
            work.wait(limit)


def connected_devices(device: torch.device, *, timeout_s: float) -> DeviceCarrier:
    """Connect this worker's CUDA device with those of the other workers, which all call this, within a time. It becomes the current device.

    A RuntimeError says that NCCL does not connect the devices.
    """
    os.environ.setdefault("TORCH_NCCL_BLOCKING_WAIT", "1")
    # Batches of sends and receives run on the current device.
    torch.cuda.set_device(device)
    # With its device stated, the group connects at once. Otherwise the first transfer would, in which all workers would have to take part.
    group = dist.new_group(backend="nccl", timeout=timedelta(seconds=timeout_s), device_id=device)
    return DeviceCarrier(group)


_WHERE = "TrainConfig.device"
AUTO_ON_PROCESSORS = "The workers compute on processors: device 'auto' takes CUDA devices only where every worker has one of its own, and PyTorch has NCCL."
"What :func:`name_for_workers` does where there are CUDA devices that it leaves alone."


def name_for_workers(name: str, *, num_local: int) -> str:
    """The name of a device, where 'auto' is 'cuda' if the workers of this machine can compute on CUDA devices, else 'cpu'."""
    if name != "auto":
        return name
    can_have_devices = num_local <= num_cuda_devices() and dist.is_nccl_available()
    return "cuda" if can_have_devices else "cpu"


def left_alone(name: str, device: torch.device) -> str | None:
    """A note for users whose device ``name`` leaves CUDA devices of this machine alone; else None."""
    return AUTO_ON_PROCESSORS if name == "auto" and device.type == "cpu" and num_cuda_devices() else None


def device_of_worker(name: str, *, local_rank: int, num_local: int) -> torch.device:
    """The device that a worker computes on. On CUDA devices, every worker of a machine has one of its own.

    Raises:
        InputError: there is no such device, devices are named that workers do not share, there are fewer devices than workers, or PyTorch has
            no NCCL.
    """
    kind, _, index = name.partition(":")
    count = num_cuda_devices()
    if "," in name:
        wrong = f"several devices compute for one process, and workers have one each: device is '{name}'"
        hint = "Train with one worker; or with --device cuda, where worker i of a machine computes on cuda:i."
    elif kind != "cuda" or not count:
        return device_named(name, where=_WHERE)
    elif index and num_local > 1:
        wrong = (
            f"a CUDA device computes for one worker: device is '{name}', and the machine has {num_local} workers"
        )
        hint = "Name no number: with --device cuda, worker i of a machine computes on cuda:i."
    elif num_local > count:
        wrong = f"there are fewer CUDA devices than workers: PyTorch sees {count}, and the machine has {num_local} workers"
        hint = f"Start at most {count} workers on this machine, or train on processors (--device cpu)."
    elif not dist.is_nccl_available():
        wrong = f"workers on CUDA devices talk by NCCL: torch {torch.__version__} is built without NCCL"
        hint = "Install a CUDA build of torch for Linux, or train on processors (--device cpu)."
    else:
        return device_named(name if index else f"cuda:{local_rank}", where=_WHERE)
    raise InputError(f"{wrong} (in {_WHERE})", hint=hint)
