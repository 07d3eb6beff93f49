"""Carriers bring tensors from one worker to another: gloo those in the memory of the host, NCCL those in the memory of CUDA devices.

A tensor goes by the carrier of its device; nothing else in the program knows which one that is.

NCCL's operations run on the device, in the order in which the host starts them. A receive that is started before a send would keep the send
from running, and two workers that both do so would wait for each other for ever. So all operations of a transfer are started as one
group. NCCL does not say which worker is missing, and it does not see that a process of its own machine has ended. So in every transfer between
devices the workers also send each other one byte by gloo. It comes where a worker has begun the transfer, and if the worker is gone,
gloo says so at once.

Waiting for NCCL with a limit of time keeps the host until the device has received everything. PyTorch's watchdog would end the whole
process without an error of ours, so it is not started (``TORCH_NCCL_BLOCKING_WAIT``).
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

from sagann.graph.rows import as_byte_tensor

Operation = tuple[Sequence[int], Callable[[], Sequence[Any]]]
"""Ranks of the workers that something travels to or from, and what starts it, and gives what is to be waited for
(``torch.distributed.Work``)."""


class HostCarrier:
    """Brings tensors from host to host, by the process group of all workers."""

    def operations(
        self, sends: Mapping[int, Tensor], receives: Mapping[int, Tensor], tag: int
    ) -> Sequence[Operation]:
        """The operations of a transfer, in the order in which they are to be started, and then waited for.

        Args:
            sends: what each worker gets, by rank; contiguous, and not empty.
            receives: where what each worker sends goes, by rank; contiguous, and not empty.
            tag: number of the transfer; on devices 0.
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
    """Brings tensors from device to device.

    Args:
        group: process group of all workers, which carries tensors on their devices.
    """

    def __init__(self, group: Any) -> None:
        self._group = group

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
            dist.P2POp(operation, as_byte_tensor(tensor), rank, group=self._group)
            for operation, tensors in ((dist.irecv, receives), (dist.isend, sends))
            for rank, tensor in tensors.items()
        ]
        return [*signals, (peers, lambda: (_Started(together),))]

    def abort(self) -> None:
        # Ending them regularly would wait for all workers of the machine.
        dist.distributed_c10d._abort_process_group(self._group)


class _Started:
    """Operations of a group that have started."""

    def __init__(self, operations: list[dist.P2POp]) -> None:
        self._began_s = time.perf_counter()
        self._works = dist.batch_isend_irecv(operations)

    def wait(self, patience: timedelta) -> None:
        """Wait for the end, at most so long from now on."""
        # PyTorch counts the time of NCCL's operations from their start.
        limit = timedelta(seconds=time.perf_counter() - self._began_s) + patience
        for work in self._works:
            work.wait(limit)


def connected_devices(device: torch.device, *, timeout_s: float) -> DeviceCarrier:
    """Connect this worker's CUDA device with those of the other workers. All workers call this at the same time.

    Args:
        device: this worker's CUDA device, with its index. It becomes the current device of the process.
        timeout_s: seconds for which workers wait for each other.
    Raises:
        RuntimeError: NCCL does not connect the devices.
    """
    os.environ.setdefault("TORCH_NCCL_BLOCKING_WAIT", "1")
    # Batches of sends and receives run on the current device.
    torch.cuda.set_device(device)
    # With its device stated, the group connects at once. Otherwise the first transfer would, in which all workers would have to take part.
    group = dist.new_group(backend="nccl", timeout=timedelta(seconds=timeout_s), device_id=device)
    return DeviceCarrier(group)
