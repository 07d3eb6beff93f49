"""Devices: who trains, as a list such as 'host:2,cuda:0,accelerator:1'.

'host' is the processor, in this process; 'cuda:N' is a CUDA device; each 'accelerator' is a process of its own. The number after 'host:' or
'accelerator:' is that of its cores. 'accelerator:fpga' is a process that simulates hardware kernels.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import torch

from sagann.errors import InputError
from sagann.hybrid.assignment import HOST
from sagann.hybrid.forecast import ACCELERATOR, accelerator_names
from sagann.ranges import RANGES
from sagann.runtime.places import device_named, num_cuda_devices
from sagann.runtime.processor import num_cores

AUTO = "auto"
"Names the processor and all CUDA devices."
_CUDA = "cuda"
TORCH, KERNEL, RTL = "torch", "kernel", "rtl"
"Whose numbers simulated hardware kernels answer with: PyTorch's, those of the kernels' arithmetic, or those of their circuits."
_FPGA = f"{ACCELERATOR}:fpga"
_DEVICE = re.compile(rf"({HOST}|{_CUDA}|{ACCELERATOR})(?::(\d{{1,9}}))?|({_FPGA})(?::({KERNEL}|{RTL}))?")


@dataclass(frozen=True, kw_only=True, slots=True)
class Devices:
    """Who trains."""

    uses_host: bool
    "Whether the processor trains, beside sampling and loading."
    host_cores: int | None
    "Cores of the processor's own tasks; None for all that no accelerator has."
    cuda: tuple[str, ...] = ()
    "Names of the CUDA devices, with their index."
    accelerator_cores: tuple[int, ...] = ()
    "Cores of each accelerator in a process of its own."
    fpga: tuple[str | None, ...] = ()
    "For each of these, whose numbers its simulated hardware kernels answer with; None for one without kernels."

    @classmethod
    def parse(cls, text: str, *, where: str) -> Devices:
        """The devices that a text names. Whether this machine has them is not asked, but for 'auto'.

        Raises:
            InputError: the text has another form, names the host twice, a CUDA device twice or the host alone, or a number of cores is out of range;
                or 'auto' finds no CUDA device.
        Example:
            >>> devices = Devices.parse("host:1,cuda:0,accelerator:2,accelerator", where="devices")
            >>> devices.cuda, devices.accelerator_cores
            (('cuda:0',), (2, 1))
        """
        if text.strip() == AUTO:
            return cls(uses_host=True, host_cores=None, cuda=_all_cuda(where))
        found = [_DEVICE.fullmatch(each.strip()) for each in text.split(",")]
        named = [(each[1] or ACCELERATOR, each[2]) for each in found if each is not None]
        hosts = [number for name, number in named if name == HOST]
        cuda = [f"{name}:{int(number or 0)}" for name, number in named if name == _CUDA]
        if len(named) < len(found) or len(hosts) > 1 or len(hosts) == len(named) or len(set(cuda)) < len(cuda):
            raise InputError(
                f"no list of trainers: '{text:.100}' (in {where})",
                hint=f"Write '{HOST}' at most once and not alone, '{_CUDA}:0' and so on for CUDA devices, and '{ACCELERATOR}' for each process of its "
                f"own, with numbers of cores: {HOST},{_CUDA}:0 or {HOST}:2,{ACCELERATOR}:1; '{_FPGA}', '{_FPGA}:{KERNEL}' or '{_FPGA}:{RTL}' simulates "
                f"hardware kernels. '{AUTO}' names the processor and all CUDA devices.",
            )
        numbers = [int(number) for name, number in named if number is not None and name != _CUDA]
        if any(number not in RANGES["threads"] for number in numbers):
            raise InputError(
                f"number of cores is out of range: '{text:.100}', each is {RANGES['threads']} (in {where})",
                hint="Name the cores of this machine.",
            )
        return cls(
            uses_host=bool(hosts),
            host_cores=int(hosts[0]) if hosts and hosts[0] is not None else None,
            cuda=tuple(cuda),
            accelerator_cores=tuple(int(number or 1) for name, number in named if name == ACCELERATOR),
            fpga=tuple(
                each[3] and (each[4] or TORCH)
                for each in found
                if each is not None and each[1] not in (HOST, _CUDA)
            ),
        )

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the trainers besides the processor: CUDA devices first."""
        return (*self.cuda, *accelerator_names(len(self.accelerator_cores)))

    def cuda_devices(self) -> list[torch.device]:
        """The CUDA devices. One that PyTorch does not see is an InputError."""
        return [
            device_named(name, where="TrainConfig.devices", instead="'host' and 'accelerator'")
            for name in self.cuda
        ]

    def weights(self) -> dict[str, int]:
        """How seeds are shared out at first, by name, with the processor first: by cores. A CUDA device counts as all cores of the processor."""
        return {
            HOST: self.threads(),
            **dict.fromkeys(self.cuda, self.threads()),
            **dict(zip(accelerator_names(len(self.accelerator_cores)), self.accelerator_cores, strict=True)),
        }

    def cores(self) -> list[tuple[int, ...]]:
        """Numbers of the cores of each accelerator, from the last ones of this process.

        Raises:
            InputError: there are fewer cores than the accelerators have, or than the processor has.
        """
        for who, wanted in (
            ("accelerators have", sum(self.accelerator_cores)),
            ("the processor has", self.host_cores or 0),
        ):
            if wanted > num_cores():
                raise InputError(
                    f"{who} more cores than there are: {wanted}, and this process may use {num_cores()} (in "
                    "devices)",
                    hint="Name fewer cores, or fewer accelerators.",
                )
        if not hasattr(os, "sched_setaffinity"):
            # Elsewhere the system divides the cores.
            return [() for _ in self.accelerator_cores]
        free = iter(sorted(os.sched_getaffinity(0), reverse=True))
        return [tuple(islice(free, count)) for count in self.accelerator_cores]

    def own_cores(self) -> tuple[int, ...]:
        """Numbers of the cores of the processor's own tasks, from the first ones of this process that no accelerator has; none for all cores."""
        if not hasattr(os, "sched_setaffinity"):
            return ()
        taken = {core for cores in self.cores() for core in cores}
        free = sorted(os.sched_getaffinity(0) - taken)
        own = tuple(free[: self.threads()])
        # Fewer than they were promised: they share cores with the accelerators.
        return own if len(own) == self.threads() < num_cores() else ()

    def threads(self) -> int:
        return self.host_cores or max(1, num_cores() - sum(self.accelerator_cores))


def _all_cuda(where: str) -> tuple[str, ...]:
    count = num_cuda_devices()
    if not count:
        raise InputError(
            f"no CUDA device for the processor to train with: '{AUTO}', and PyTorch sees none (in {where})",
            hint=f"Leave devices out, or give an accelerator in a process of its own some cores: {HOST}:2,{ACCELERATOR}:1.",
        )
    return tuple(f"{_CUDA}:{index}" for index in range(count))


_THREADS = Path("/proc/self/task")
"Where Linux lists the threads of this process."


@contextmanager
def on_cores(cores: Collection[int]) -> Iterator[None]:
    """Inside the ``with`` block, all threads of this process, and those that start there, use these cores alone.

    With no core, and where the system cannot say it, nothing changes.
    """
    if not cores or not _THREADS.is_dir():
        yield
        return
    before = {}
    for thread in map(int, os.listdir(_THREADS)):
        # It may have ended.
        with suppress(OSError):
            before[thread] = os.sched_getaffinity(thread)
            os.sched_setaffinity(thread, cores)
    try:
        yield
    finally:
        for thread in map(int, os.listdir(_THREADS)):
            with suppress(OSError):
                os.sched_setaffinity(thread, before.get(thread, before[os.getpid()]))
