"""Beside: the memory beside a device, where blocks lie that the device does not hold."""

from __future__ import annotations

from dataclasses import dataclass

from sagann.kernels.edge.work import Grain
from sagann.plan.steps import UNLIMITED


@dataclass(frozen=True, kw_only=True, slots=True)
class Beside:
    """What plans and their execution must know of the memory beside a device."""

    copies_beside: bool
    """Whether copies run beside steps. If not, both memories are one, and the cores that compute copy: nothing is loaded ahead, and edges and
    constants that only stages read are read in place."""
    has_engines: bool = False
    """Whether a device's own engines copy. Memory is reused in the order of the lane that computes, so a drop waits for its block's store, and
    tensors of the host are copied from where they lie."""
    grain: Grain | None = None
    "Size of the items into which kernels cut a pass, where the items take memory that is planned."

    @property
    def counts_process(self) -> bool:
        """Whether the budget holds for the whole process, because blocks lie in files."""
        return self.copies_beside and not self.has_engines

    def reads_in_place(self, budget_bytes: int) -> bool:
        """Whether edges and constants are read in place and take no room. Without a budget all blocks are, but they count."""
        return not self.copies_beside and budget_bytes < UNLIMITED


MEMORY = Beside(copies_beside=False)
"The memory of the processor that computes."
FILES = Beside(copies_beside=True)
"Files beside a processor."
