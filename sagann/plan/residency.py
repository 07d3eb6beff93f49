"""Residency: which blocks lie in the device's memory while the steps of a schedule go by.

The whole schedule is known, so when room is needed, the block goes whose next use is farthest (Belady): no other choice
loads less often where blocks are of one size. What is never used again goes at once. Blocks of the next step are loaded
ahead where there is room, so that copies and computation overlap.

References:
    Belady, IBM Systems Journal 5(2), 1966. Jia et al., ROC, MLSys 2020, Sec. 4.2 plans transfers by dynamic programming,
    with every tensor whole; here tensors are cut, and a tensor's blocks are placed one by one.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise

from sagann.errors import InputError
from sagann.plan.steps import Block, Move, Plan, Step

_NEVER = 1 << 60


class BudgetError(InputError):
    """A step needs more memory than there is; ``needed_bytes`` says how much."""

    needed_bytes: int = 0

    @classmethod
    def smallest(cls, budget_bytes: int, needed_bytes: int) -> BudgetError:
        """No number of intervals fits the budget; the smallest that can be met."""
        error = cls(
            "the memory budget cannot be met",
            value=f"{budget_bytes} bytes, at least {needed_bytes} are needed",
            where="the plan",
            fix=f"Raise the budget to {needed_bytes} bytes or more.",
        )
        error.needed_bytes = needed_bytes
        return error


def place(
    steps: Sequence[Step],
    *,
    bytes_of: Callable[[Block], int],
    on_host: Iterable[Block],
    bounds: Sequence[int],
    budget_bytes: int,
    lookahead: int = 2,
) -> Plan:
    """Add the moves that keep every step's blocks in memory, within the budget.

    Args:
        steps: in order.
        bytes_of: a block's size.
        on_host: the blocks that exist at the start, outside of the device.
        bounds: of the intervals.
        budget_bytes: what the device may hold.
        lookahead: for so many steps ahead blocks are loaded where there is room.
    Raises:
        BudgetError: one step alone needs more.
    """
    return _Placement(steps, bytes_of, set(on_host), budget_bytes, lookahead).run(tuple(bounds))


class _Placement:
    def __init__(
        self,
        steps: Sequence[Step],
        bytes_of: Callable[[Block], int],
        on_host: set[Block],
        budget_bytes: int,
        lookahead: int,
    ) -> None:
        self.steps = steps
        self.bytes_of = bytes_of
        self.on_host = on_host
        self.budget = budget_bytes
        self.lookahead = lookahead
        self.uses: defaultdict[Block, deque[int]] = defaultdict(deque)
        for number, step in enumerate(steps):
            for block in dict.fromkeys((*step.reads, *step.writes)):
                self.uses[block].append(number)
        self.resident: dict[Block, int] = {}
        self.dirty: set[Block] = set()
        self.held = self.peak = 0
        self.operations: list[Step | Move] = []

    def run(self, bounds: tuple[int, ...]) -> Plan:
        for number, step in enumerate(self.steps):
            self._prepare(step)
            self._load_ahead(number)
            self.peak = max(self.peak, self.held + step.temporary_bytes)
            self.operations.append(step)
            self._release(number, step)
        return Plan(
            operations=tuple(self.operations), bounds=bounds, budget_bytes=self.budget, peak_bytes=self.peak
        )

    def _prepare(self, step: Step) -> None:
        """Make the blocks of a step resident."""
        needed = dict.fromkeys((*step.reads, *step.writes))
        missing = [block for block in needed if block not in self.resident]
        room = sum(self.bytes_of(block) for block in missing) + step.temporary_bytes
        while self.held + room > self.budget:
            self._evict(needed, room)
        for block in missing:
            self._admit(block, load=block in step.reads)
        for block in step.writes:
            self.dirty.add(block)
            self.on_host.discard(block)

    def _evict(self, needed: Iterable[Block], room: int) -> None:
        kept = set(needed)
        # A state in the making cannot be copied; its next chunk is never far.
        others = [block for block in self.resident if block not in kept and block.kind != "state"]
        if not others:
            own = sum(self.resident[block] for block in kept if block in self.resident)
            raise _too_small(self.budget, own + room)
        victim = max(others, key=lambda block: (self.uses[block][0], self.resident[block]))
        if victim in self.dirty:
            self.operations.append(Move("store", victim, self.resident[victim]))
            self.dirty.discard(victim)
            self.on_host.add(victim)
        self._drop(victim)

    def _admit(self, block: Block, *, load: bool) -> None:
        size = self.bytes_of(block)
        if load:
            if block not in self.on_host:
                raise AssertionError(f"{block} is read before it is made")
            self.operations.append(Move("load", block, size))
        self.resident[block] = size
        self.held += size

    def _load_ahead(self, number: int) -> None:
        """Begin the loads of coming steps, as far as they fit beside the temporaries of the steps until then."""
        temporary = self.steps[number].temporary_bytes
        for now, later in pairwise(self.steps[number : number + 1 + self.lookahead]):
            # What the caller brings is not there before.
            if "loss" in (now.kind, later.kind):
                return
            temporary = max(temporary, later.temporary_bytes)
            for block in later.reads:
                if block in self.resident or block not in self.on_host:
                    continue
                if self.held + self.bytes_of(block) + temporary > self.budget:
                    return
                self._admit(block, load=True)

    def _release(self, number: int, step: Step) -> None:
        """Forget what nobody uses again."""
        for block in dict.fromkeys((*step.reads, *step.writes)):
            uses = self.uses[block]
            while uses and uses[0] <= number:
                uses.popleft()
            if not uses:
                self._drop(block)
                self.dirty.discard(block)

    def _drop(self, block: Block) -> None:
        size = self.resident.pop(block)
        self.held -= size
        self.operations.append(Move("drop", block, size))


def _too_small(budget: int, needed: int) -> BudgetError:
    error = BudgetError(
        "the memory budget is too small for a single step",
        value=f"{budget} bytes, of which one step takes {needed}",
        where="the plan",
        fix="Cut the graph into more intervals, or raise the budget.",
    )
    error.needed_bytes = needed
    return error
