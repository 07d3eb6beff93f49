"""Residency: which blocks lie in the device's memory while the steps of a schedule run.

All steps are known. When room is needed, the block whose next use is farthest is evicted (Belady): where blocks have one
size, no other choice loads less often. A block that is not used again is dropped at once. Blocks of the next steps are loaded
ahead, and blocks that are used later than these steps are evicted for them. Blocks of further steps are loaded into free
room. A block is written out as soon as it is complete, so evicting it later costs nothing. So copies run beside computation,
unless the computing cores copy.

References:
    Belady, IBM Systems Journal 5(2), 1966.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import cache
from itertools import count, pairwise

from sagann.byte_size import format_bytes, with_exact
from sagann.errors import InputError
from sagann.plan.steps import Block, Move, Plan, Step

LOOKAHEAD = 2
"Number of coming steps whose blocks are loaded ahead, in the place of blocks that are used later."
FURTHEST, FURTHEST_IN_SLICES = 16, 96
"Number of coming steps whose blocks are loaded ahead into free room. Rows of the next slice are assembled in many short steps."


class BudgetError(InputError):
    """A step needs more memory than there is."""

    needed_bytes: int = 0
    "Bytes that the step needs."
    offered_bytes: int = 0
    "A budget, in bytes, with which epochs are not much slower than with a larger one; 0 where it is unknown."
    _where: str = ""

    @classmethod
    def _of(
        cls, budget_bytes: int, needed_bytes: int, why: str, *, offered_bytes: int, where: str, otherwise: str
    ) -> BudgetError:
        # An offer is made where every number of intervals was tried. Without one, the caller has stated the number.
        if not offered_bytes:
            hint = f"Raise the budget (budget_bytes) to {with_exact(needed_bytes)} or more, or cut into {otherwise} (num_intervals)."
        elif offered_bytes <= needed_bytes:
            hint = f"Raise the budget (--memory, budget_bytes) to {with_exact(needed_bytes)} or more."
        else:
            hint = (
                f"Raise the budget (--memory, budget_bytes) to {with_exact(offered_bytes)} or more. The least that is accepted is "
                f"{with_exact(needed_bytes)}, with more intervals and slower epochs."
            )
        error = cls(
            f"the memory budget cannot be met: {with_exact(budget_bytes)}, at least {with_exact(needed_bytes)} "
            f"are needed: {why} (in {where})",
            hint=hint,
        )
        error.needed_bytes, error.offered_bytes, error._where = needed_bytes, offered_bytes, where
        return error

    @classmethod
    def of_step(
        cls,
        budget_bytes: int,
        step: Step,
        bytes_of: Callable[[Block], int],
        num_intervals: int,
        *,
        offered_bytes: int = 0,
    ) -> BudgetError:
        """The error of a step that alone needs more than the budget."""
        sizes = [(bytes_of(block), f"the block '{block.label}'") for block in step.blocks]
        sizes.append((step.temporary_bytes, "temporary memory"))
        needed_bytes, (largest_bytes, largest) = sum(size for size, _ in sizes), max(sizes)
        return cls._of(
            budget_bytes,
            needed_bytes,
            f"the step '{step.label}' takes {format_bytes(needed_bytes)}, {format_bytes(largest_bytes)} of them for {largest}",
            offered_bytes=offered_bytes,
            where=f"the plan of {num_intervals} {'interval' if num_intervals == 1 else 'intervals'}",
            otherwise="more intervals",
        )

    def beside(self, plan_bytes: int, budget_bytes: int) -> BudgetError:
        """The error where the plan's own objects count towards the budget as well."""
        if not plan_bytes:
            return self
        return self._of(
            budget_bytes,
            self.needed_bytes + plan_bytes,
            f"{format_bytes(plan_bytes)} for the objects of the plan, and the others for its largest step",
            offered_bytes=self.offered_bytes,
            where=self._where,
            otherwise="fewer intervals",
        )


def place(
    steps: Sequence[Step],
    *,
    bytes_of: Callable[[Block], int],
    initial: Iterable[Block],
    bounds: Sequence[int],
    budget_bytes: int,
    lookahead: int = LOOKAHEAD,
    leaving: Collection[tuple[Block, int]] | None = None,
) -> Plan:
    """Add to steps the moves that bring the blocks of every step into memory, within the budget.

    Args:
        initial: blocks that exist at the start, outside of the device.
        lookahead: number of coming steps whose blocks may be loaded ahead.
        leaving: the only blocks that may be evicted, each after the step of that number that uses it. Then blocks are loaded ahead into
            free room alone, and those may leave again. None for all blocks.
    Raises:
        BudgetError: one step alone needs more than the budget.
    """
    return Placement(steps, bytes_of, initial, bounds, budget_bytes, lookahead, leaving).run()


class Placement:
    """Places the blocks of steps by Belady's rule; the arguments are those of :func:`place`. Another rule may rank blocks in another way."""

    stores_early = True
    "Whether every store, which is decided at an eviction, comes right after the last step that writes the block."

    def __init__(
        self,
        steps: Sequence[Step],
        bytes_of: Callable[[Block], int],
        initial: Iterable[Block],
        bounds: Sequence[int],
        budget_bytes: int,
        lookahead: int,
        leaving: Collection[tuple[Block, int]] | None = None,
    ) -> None:
        self.bounds = bounds
        self.steps = steps
        self.blocks = [step.blocks for step in steps]
        self.bytes_of = bytes_of
        self.budget = budget_bytes
        self.lookahead, self.leaving = lookahead, leaving
        self.furthest = FURTHEST_IN_SLICES if any(step.kind == "assemble" for step in steps) else FURTHEST
        # Numbers of the steps that use a block, the next one last.
        self.uses: defaultdict[Block, list[int]] = defaultdict(list)
        # By block, number of the last step that sends the block or has rows picked from it, so that it must lie outside by then.
        self.last_pick: dict[Block, int] = {}
        for number in reversed(range(len(steps))):
            for block in self.blocks[number]:
                self.uses[block].append(number)
                if block.needed_by is not None:
                    self.last_pick.setdefault(block.whole, number)
            for block in steps[number].sends:
                self.last_pick.setdefault(block, number)
        self.initial = frozenset(initial)
        # Bytes of the blocks in memory; those whose content lies nowhere else; those that lie outside as they were written last.
        self.resident: dict[Block, int] = {}
        self.dirty: set[Block] = set()
        # By their names outside (Block.outside).
        self.outside = set(self.initial)
        # Blocks that the coming step writes.
        self.being_made: Collection[Block] = ()
        self.held_bytes = self.peak_bytes = 0
        self.operations: list[Step | Move] = []
        # Copying a block again is the same move.
        self.move = cache(Move)
        # A heap of blocks that may be evicted, the least rank first; entries whose rank is outdated are passed over.
        self.order: list[tuple[int, int, int, Block]] = []
        self.ranks: dict[Block, int] = {}
        self.entries = count()

    def run(self) -> Plan:
        """The plan."""
        for number in range(len(self.steps)):
            self.advance(number)
        return Plan(
            operations=stored_early(self.operations) if self.stores_early else tuple(self.operations),
            bounds=tuple(self.bounds),
            budget_bytes=self.budget,
            peak_bytes=self.peak_bytes,
            initial=self.initial,
        )

    def advance(self, number: int) -> None:
        """Place the blocks of the next step, whose number is given."""
        step = self.steps[number]
        self._prepare(number, step)
        if self.lookahead:
            if self.leaving is None:
                self._load_ahead(number)
            self._load_further_ahead(number)
        self._run(step)
        self._release(number)

    def rank(self, block: Block, number: int) -> int:
        """Rank of a block after a step that uses it: of those that may leave, the one of least rank leaves first."""
        return -self.uses[block][-1]

    def _prepare(self, number: int, step: Step) -> None:
        """Make the blocks of a step resident."""
        for block in self.blocks[number]:
            self.ranks.pop(block, None)
        missing = [block for block in self.blocks[number] if block not in self.resident]
        room = sum(map(self.bytes_of, missing)) + step.temporary_bytes
        if not self._make_room(room, later_than=number):
            raise BudgetError.of_step(self.budget, step, self.bytes_of, len(self.bounds) - 1)
        for block in missing:
            if block in step.reads:
                self._load(block)
            else:
                self._take(block)
        for block in step.writes:
            self.dirty.add(block)
            self.outside.discard(block.outside)
        self.being_made = step.writes

    def _run(self, step: Step) -> None:
        self.peak_bytes = max(self.peak_bytes, self.held_bytes + step.temporary_bytes)
        self.operations.append(step)
        self.outside.update(step.receives)
        self.being_made = ()

    def _make_room(self, room: int, *, later_than: int) -> bool:
        """Evict blocks that are first used after a step until there is room; return whether there is."""
        while self.held_bytes + room > self.budget:
            victim = self._first_to_leave(later_than)
            if victim is None:
                return False
            if victim in self.dirty:
                self._store(victim)
            self._drop(victim)
        return True

    def _first_to_leave(self, later_than: int) -> Block | None:
        while self.order:
            rank, _, _, block = self.order[0]
            if self.ranks.get(block) == rank:
                return block if self.uses[block][-1] > later_than else None
            heapq.heappop(self.order)
        return None

    def _enter(self, block: Block, number: int) -> None:
        """Let a block be evicted; a block of no bytes stays until its last use."""
        if size := self.resident[block]:
            self.ranks[block] = rank = self.rank(block, number)
            heapq.heappush(self.order, (rank, -size, next(self.entries), block))

    def _can_load(self, block: Block) -> bool:
        """Whether a block lies outside, or can be stored now because rows are picked from it."""
        whole = block.whole
        is_made = whole in self.dirty and whole not in self.being_made
        return block.outside in self.outside or (block.needed_by is not None and is_made)

    def _may_load_ahead(self, block: Block) -> bool:
        """Whether a block may be loaded before the step that needs it."""
        return self._can_load(block)

    def _load(self, block: Block) -> None:
        """Load a block. Where rows are picked from a block that lies nowhere else, that block is stored first."""
        assert self._can_load(block), f"{block.label} is read before it is made"
        if block.whole in self.dirty:
            self._store(block.whole)
        self.operations.append(self.move("load", block, self.bytes_of(block)))
        self._take(block)

    def _take(self, block: Block) -> None:
        self.resident[block] = size = self.bytes_of(block)
        self.held_bytes += size
        # A block that is loaded ahead may make another one leave before the step begins.
        self.peak_bytes = max(self.peak_bytes, self.held_bytes)

    def _store(self, block: Block) -> None:
        self.operations.append(self.move("store", block, self.resident[block]))
        self.dirty.discard(block)
        self.outside.add(block.outside)

    def _drop(self, block: Block) -> None:
        size = self.resident.pop(block)
        self.ranks.pop(block, None)
        self.dirty.discard(block)
        self.held_bytes -= size
        self.operations.append(self.move("drop", block, size))

    def _load_ahead(self, number: int) -> None:
        """Load blocks of the next steps that fit beside the temporaries of the steps until then."""
        temporary = self.steps[number].temporary_bytes
        coming = range(number, min(number + 1 + self.lookahead, len(self.steps)))
        for now, later in pairwise(coming):
            if "return" in (self.steps[now].kind, self.steps[later].kind):
                return
            temporary = max(temporary, self.steps[later].temporary_bytes)
            for block in self.steps[later].reads:
                if block in self.resident or not self._may_load_ahead(block):
                    continue
                if not self._make_room(self.bytes_of(block) + temporary, later_than=coming[-1]):
                    return
                self._load(block)
                self._enter(block, number)

    def _load_further_ahead(self, number: int) -> None:
        """Load blocks of further steps into room that is free until then: that neither resident blocks nor coming writes need."""
        held_bytes, room_bytes, made = self.held_bytes, self.budget, set[Block]()
        for ahead in range(number, min(number + 1 + self.furthest, len(self.steps))):
            step, coming = self.steps[ahead], list[Block]()
            # The caller brings blocks at this step.
            if step.kind == "return":
                return
            for block in self.blocks[ahead]:
                if block in self.resident or block in made:
                    continue
                if block in step.reads and self._may_load_ahead(block):
                    coming.append(block)
                else:
                    made.add(block)
                    held_bytes += self.bytes_of(block)
            room_bytes = min(room_bytes, self.budget - held_bytes - step.temporary_bytes)
            if room_bytes <= 0:
                return
            for block in coming:
                size = self.bytes_of(block)
                if size > room_bytes:
                    return
                self._load(block)
                self._enter(block, number)
                held_bytes, room_bytes = held_bytes + size, room_bytes - size
            # What no later step uses is dropped.
            held_bytes -= sum(self.bytes_of(block) for block in self.blocks[ahead] if self.uses[block][0] == ahead)

    def _release(self, number: int) -> None:
        """Drop the blocks of a step whose content no later step reads, and let others leave."""
        for block in self.blocks[number]:
            uses = self.uses[block]
            while uses and uses[-1] <= number:
                uses.pop()
            if uses and block in self.steps[uses[-1]].reads:
                if self.leaving is None or (block, number) in self.leaving:
                    self._enter(block, number)
            else:
                # Rows may still be picked from it.
                if block in self.dirty and self.last_pick.get(block, -1) > number:
                    self._store(block)
                self._drop(block)


def stored_early(operations: Sequence[Step | Move]) -> tuple[Step | Move, ...]:
    """The operations with every store right after the last step that writes the block."""
    written: dict[Block, int] = {}
    stores: defaultdict[int, list[Move]] = defaultdict(list)
    for position, operation in enumerate(operations):
        if isinstance(operation, Step):
            written |= dict.fromkeys(operation.writes, position)
        elif operation.kind == "store":
            stores[written[operation.block]].append(operation)
    return tuple(
        each
        for position, operation in enumerate(operations)
        if operation.kind != "store"
        for each in (operation, *stores.get(position, ()))
    )
