"""Memory policies: which blocks the device keeps, by name. A policy is a function from steps and sizes to a plan.

    belady: when room is needed, the block goes whose next use is farthest; coming blocks are loaded ahead.
    none: no block is kept. Every block is loaded for each step that reads it.

References:
    Jia et al., ROC, MLSys 2020, Sec. 5, chooses what a device keeps by a dynamic program.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from sagann.errors import InputError
from sagann.plan.residency import place
from sagann.plan.steps import Block, MemoryPolicy, Plan, Step
from sagann.plan.uncached import place_uncached


class Place(Protocol):
    """Adds to steps the moves that keep every step's blocks in memory, within the budget."""

    def __call__(
        self,
        steps: Sequence[Step],
        *,
        bytes_of: Callable[[Block], int],
        on_host: Iterable[Block],
        bounds: Sequence[int],
        budget_bytes: int,
        lookahead: int,
    ) -> Plan:
        """Arguments as of :func:`sagann.plan.residency.place`."""


MEMORY_POLICIES: dict[MemoryPolicy, Place] = {"belady": place, "none": place_uncached}
"The function of each policy."


def require_memory_policy(policy: object) -> None:
    """Check the name of a memory policy.

    Raises:
        InputError: there is none of that name.
    """
    if policy not in MEMORY_POLICIES:
        raise InputError(
            "unknown memory policy",
            value=f"{policy!r}, expected one of {', '.join(MEMORY_POLICIES)}",
            where="stream.memory_policy",
            fix="Choose one of these.",
        )
