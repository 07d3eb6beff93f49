"""Tier: where the blocks of a plan lie that are not in use, as far as their copies' seconds depend on it."""

from __future__ import annotations

from sagann.free_space import memory
from sagann.plan.epoch import Planned
from sagann.plan.machine import Machine
from sagann.plan.simulate import Tier


def tier_of(planned: Planned, machine: Machine, *, on_disk: bool, is_at_hand: bool) -> Tier:
    """The tier of blocks that are not in use. Files are cached if memory has room for all of them beside the budget.

    Args:
        planned: plan of an epoch.
        machine: machine that the epoch runs on.
        on_disk: whether blocks that are not in use lie in files.
        is_at_hand: whether the machine is this one. The free memory of another one is unknown, so its files are taken to lie on
            the disk.
    """
    if not on_disk:
        return "memory"
    schedule, plan = planned.schedule, planned.plan
    # Sparse features are read where they lie.
    features = 0 if planned.program.x_is_sparse else plan.bounds[-1] * schedule.sizes.row_bytes("x")
    files = schedule.edge_bytes + schedule.constant_bytes + plan.spilled_bytes + features
    # The budget of a machine with a device is of the device's memory.
    beside = plan.budget_bytes if machine.host_to_device_bytes is None else 0
    free = memory().usable_bytes if is_at_hand else None
    return "file cache" if free is not None and files + beside <= free else "disk"
