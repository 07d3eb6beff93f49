"""Devices: who trains, as a list such as 'host:2,accelerator:1'.

'host' is the processor, in this process; each 'accelerator' is a process of its own. A number after a colon is that of its cores.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from itertools import islice

from sagann.errors import InputError
from sagann.plan.hybrid.assignment import HOST
from sagann.plan.hybrid.predict import ACCELERATOR
from sagann.ranges import RANGES
from sagann.runtime.processor import num_cores

_DEVICE = re.compile(rf"({HOST}|{ACCELERATOR})(?::(\d{{1,9}}))?")


@dataclass(frozen=True, kw_only=True, slots=True)
class Devices:
    """Who trains."""

    uses_host: bool
    "Whether the processor trains, too. It always samples and loads."
    host_cores: int | None
    "Cores of the processor's own tasks; None for all that no accelerator has."
    accelerator_cores: tuple[int, ...]
    "Cores of each accelerator."

    @classmethod
    def parse(cls, text: str, *, where: str) -> Devices:
        """The devices that a text names.

        Raises:
            InputError: the text has another form, names the host twice or no accelerator, or a number of cores is out of range.
        Example:
            >>> Devices.parse("host:1,accelerator:2,accelerator", where="devices").accelerator_cores
            (2, 1)
        """
        found = [_DEVICE.fullmatch(each.strip()) for each in text.split(",")]
        named = [(each[1], each[2]) for each in found if each is not None]
        hosts = [cores for name, cores in named if name == HOST]
        if len(named) < len(found) or len(hosts) > 1 or len(hosts) == len(named):
            raise InputError(
                "no list of trainers",
                value=f"'{text:.100}'",
                where=where,
                fix=f"Write '{HOST}' at most once, and '{ACCELERATOR}' for each accelerator, with numbers of cores: {HOST}:2,{ACCELERATOR}:1.",
            )
        numbers = [int(cores) for _, cores in named if cores is not None]
        if any(number not in RANGES["threads"] for number in numbers):
            raise InputError(
                "number of cores is out of range",
                value=f"'{text:.100}', each is {RANGES['threads']}",
                where=where,
                fix="Name the cores of this machine.",
            )
        return cls(
            uses_host=bool(hosts),
            host_cores=int(hosts[0]) if hosts and hosts[0] is not None else None,
            accelerator_cores=tuple(int(cores or 1) for name, cores in named if name == ACCELERATOR),
        )

    def cores(self) -> list[tuple[int, ...]]:
        """Numbers of the cores of each accelerator, from the last ones of this process.

        Raises:
            InputError: there are fewer cores.
        """
        wanted = sum(self.accelerator_cores)
        if wanted > num_cores():
            raise InputError(
                "accelerators have more cores than there are",
                value=f"{wanted}, and this process may use {num_cores()}",
                where="devices",
                fix="Name fewer accelerators, or fewer cores for each.",
            )
        if not hasattr(os, "sched_setaffinity"):
            # Elsewhere the system divides the cores.
            return [() for _ in self.accelerator_cores]
        free = iter(sorted(os.sched_getaffinity(0), reverse=True))
        return [tuple(islice(free, count)) for count in self.accelerator_cores]

    def threads(self) -> int:
        """Cores of the processor's own tasks."""
        return self.host_cores or max(1, num_cores() - sum(self.accelerator_cores))
