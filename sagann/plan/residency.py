"""Residency: which blocks lie in the device's memory while the steps of a schedule go by.

The whole schedule is known, so when room is needed, the block goes whose next use is farthest (Belady): no other choice
loads less often where blocks are of one size. What is never used again goes at once. Blocks of the next steps are loaded
ahead, in the place of blocks that are used later than those steps, and those of more steps in room that is left over; what
goes was copied as soon as it was made. So copies and computation overlap, where it is not the computing cores that copy.

References:
    Belady, IBM Systems Journal 5(2), 1966. Jia et al., ROC, MLSys 2020, Sec. 4.2 plans transfers by dynamic programming,
    with every tensor whole; here tensors are cut, and a tensor's blocks are placed one by one.
"""

from __future__ import annotations

import heapq
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import count, pairwise

from sagann.byte_size import format_bytes
from sagann.errors import InputError
from sagann.plan.steps import Block, Move, Plan, Step
from sagann.plan.timeline import block_name, step_name

LOOKAHEAD = 2
"For so many steps ahead blocks are loaded, and others go for them that are used later."

FURTHEST = 16
"For so many steps ahead blocks are loaded where nothing has to go for them."


class BudgetError(InputError):
    """A step needs more memory than there is."""

    needed_bytes: int = 0
    "How much it needs."

    @classmethod
    def of_step(
        cls, budget_bytes: int, step: Step, bytes_of: Callable[[Block], int], num_intervals: int
    ) -> BudgetError:
        """The error of a step that needs more than the budget by itself.

        Args:
            budget_bytes: the limit.
            step: reads and writes its blocks, and takes temporary memory.
            bytes_of: a block's size.
            num_intervals: into which the vertices are cut.
        """
        sizes = [(bytes_of(block), f"the block '{block_name(block)}'") for block in step.blocks]
        sizes.append((step.temporary_bytes, "temporary memory"))
        needed_bytes, (largest_bytes, largest) = sum(size for size, _ in sizes), max(sizes)
        error = cls(
            "the memory budget cannot be met",
            value=f"{budget_bytes} bytes, at least {needed_bytes} are needed: the step '{step_name(step)}' takes "
            f"{format_bytes(needed_bytes)}, {format_bytes(largest_bytes)} of them for {largest}",
            where=f"the plan of {num_intervals} intervals",
            fix=f"Raise the budget (--memory, budget_bytes) to {needed_bytes} bytes or more, or cut into more intervals where their number "
            "is yours; the least budget takes the most intervals, and more memory is faster.",
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
    lookahead: int = LOOKAHEAD,
) -> Plan:
    """Add the moves that keep every step's blocks in memory, within the budget.

    Args:
        steps: in order.
        bytes_of: a block's size.
        on_host: the blocks that exist at the start, outside of the device.
        bounds: of the intervals.
        budget_bytes: what the device may hold.
        lookahead: for so many steps ahead blocks are loaded where there is room; with 0, none before the step that needs it.
    Raises:
        BudgetError: one step alone needs more.
    """
    return _Placement(steps, bytes_of, set(on_host), tuple(bounds), budget_bytes, lookahead).run()


class _Placement:
    def __init__(
        self,
        steps: Sequence[Step],
        bytes_of: Callable[[Block], int],
        on_host: set[Block],
        bounds: tuple[int, ...],
        budget_bytes: int,
        lookahead: int,
    ) -> None:
        self.bounds = bounds
        self.steps = steps
        self.blocks = [step.blocks for step in steps]
        self.bytes_of = bytes_of
        self.initial = frozenset(on_host)
        self.on_host = on_host
        self.budget = budget_bytes
        self.lookahead = lookahead
        self.uses: defaultdict[Block, deque[int]] = defaultdict(deque)
        # The last steps that need rows picked from blocks, which must lie on the host by then.
        self.last_pick: dict[Block, int] = {}
        for number, blocks in enumerate(self.blocks):
            for block in blocks:
                self.uses[block].append(number)
                if block.needed_by is not None:
                    self.last_pick[block.whole] = number
        self.resident: dict[Block, int] = {}
        self.dirty: set[Block] = set()
        # By the step that comes next.
        self.being_made: Collection[Block] = ()
        self.held = self.peak = 0
        self.operations: list[Step | Move] = []
        # Resident blocks that can go, the next use that is farthest first; entries of earlier uses are passed over.
        self.order: list[tuple[int, int, int, Block]] = []
        self.entries = count()

    def run(self) -> Plan:
        for number, step in enumerate(self.steps):
            self._prepare(number, step)
            if self.lookahead:
                self._load_ahead(number)
                self._load_further_ahead(number)
            self.peak = max(self.peak, self.held + step.temporary_bytes)
            self.operations.append(step)
            self._release(number)
        return Plan(
            operations=tuple(_stored_early(self.operations)),
            bounds=self.bounds,
            budget_bytes=self.budget,
            peak_bytes=self.peak,
            ahead=self.lookahead > 0,
            initial=self.initial,
        )

    def _prepare(self, number: int, step: Step) -> None:
        """Make the blocks of a step resident."""
        blocks = self.blocks[number]
        missing = [block for block in blocks if block not in self.resident]
        room = sum(map(self.bytes_of, missing)) + step.temporary_bytes
        if not self._make_room(room, later_than=number):
            raise BudgetError.of_step(self.budget, step, self.bytes_of, len(self.bounds) - 1)
        for block in missing:
            self._admit(block, load=block in step.reads)
        for block in step.writes:
            self.dirty.add(block)
            self.on_host.discard(block)
        self.being_made = step.writes

    def _make_room(self, room: int, *, later_than: int) -> bool:
        """Evict blocks whose next use is later than a step's until there is room, or tell that there is not enough."""
        while self.held + room > self.budget:
            victim = self._farthest(later_than)
            if victim is None:
                return False
            if victim in self.dirty:
                self._store(victim)
            self._drop(victim)
        return True

    def _store(self, block: Block) -> None:
        self.operations.append(Move("store", block, self.resident[block]))
        self.dirty.discard(block)
        self.on_host.add(block)

    def _farthest(self, later_than: int) -> Block | None:
        while self.order:
            negative, _, _, block = self.order[0]
            if block in self.resident and self.uses[block][0] == -negative:
                return block if -negative > later_than else None
            heapq.heappop(self.order)
        return None

    def _can_load(self, block: Block) -> bool:
        """Whether a block lies on the host, or can be stored there at once because rows of it are wanted."""
        whole = block.whole
        is_made = whole in self.dirty and whole not in self.being_made
        return whole in self.on_host or (block.needed_by is not None and is_made)

    def _admit(self, block: Block, *, load: bool) -> None:
        size = self.bytes_of(block)
        if load:
            if not self._can_load(block):
                raise AssertionError(f"{block} is read before it is made")
            if block.whole in self.dirty:
                self._store(block.whole)
            self.operations.append(Move("load", block, size))
        self.resident[block] = size
        self.held += size
        self._enter(block)

    def _enter(self, block: Block) -> None:
        """Have a block go where room is needed; what takes none stays until nobody uses it."""
        if self.resident[block]:
            entry = (-self.uses[block][0], -self.resident[block], next(self.entries), block)
            heapq.heappush(self.order, entry)

    def _load_ahead(self, number: int) -> None:
        """Begin the loads of coming steps, as far as they fit beside the temporaries of the steps until then."""
        temporary = self.steps[number].temporary_bytes
        coming = range(number, min(number + 1 + self.lookahead, len(self.steps)))
        for now, later in pairwise(coming):
            if "return" in (self.steps[now].kind, self.steps[later].kind):
                return
            temporary = max(temporary, self.steps[later].temporary_bytes)
            for block in self.steps[later].reads:
                if block in self.resident or not self._can_load(block):
                    continue
                if not self._make_room(self.bytes_of(block) + temporary, later_than=coming[-1]):
                    return
                self._admit(block, load=True)

    def _load_further_ahead(self, number: int) -> None:
        """Begin the loads of later steps in room that is left over: nothing goes for them, also not by what is made."""
        temporary, made, made_bytes = 0, set[Block](), 0
        for ahead in range(number, min(number + 1 + FURTHEST, len(self.steps))):
            step = self.steps[ahead]
            # What the caller brings is not there before.
            if step.kind == "return":
                return
            temporary = max(temporary, step.temporary_bytes)
            for block in self.blocks[ahead]:
                if block in self.resident:
                    continue
                if block in made:
                    continue
                size = self.bytes_of(block)
                if block not in step.reads or not self._can_load(block):
                    made.add(block)
                    made_bytes += size
                elif self.held + made_bytes + size + temporary > self.budget:
                    return
                else:
                    self._admit(block, load=True)

    def _release(self, number: int) -> None:
        """Forget what nobody uses again."""
        self.being_made = ()
        for block in self.blocks[number]:
            uses = self.uses[block]
            while uses and uses[0] <= number:
                uses.popleft()
            if uses:
                self._enter(block)
                continue
            if block in self.dirty and self.last_pick.get(block, -1) > number:
                self._store(block)
            self._drop(block)
            self.dirty.discard(block)

    def _drop(self, block: Block) -> None:
        size = self.resident.pop(block)
        self.held -= size
        self.operations.append(Move("drop", block, size))


def _stored_early(operations: Sequence[Step | Move]) -> list[Step | Move]:
    """The same with every store right after the last step that writes its block: it is dropped much later."""
    written: dict[Block, int] = {}
    after: defaultdict[int, list[Move]] = defaultdict(list)
    others: list[tuple[int, Step | Move]] = []
    for position, operation in enumerate(operations):
        if isinstance(operation, Move) and operation.kind == "store":
            after[written[operation.block]].append(operation)
            continue
        others.append((position, operation))
        if isinstance(operation, Step):
            written |= dict.fromkeys(operation.writes, position)
    return [each for position, operation in others for each in (operation, *after[position])]
