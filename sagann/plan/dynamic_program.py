"""Dynamic program: which blocks stay in memory, so that an epoch moves as few bytes as possible.

The order of the steps is known. A state, before a step, is the set of gaps that are kept, the bytes moved to get there, and the contents
that are stored by then (:mod:`sagann.plan.gaps`). A block that leaves pays for its next load, and for its store if its content lies nowhere
else, at once. Where a state does not fit beside the blocks of a step, each smallest set of blocks that makes room gives a state. Of states
with the same sets, and of two of which one could become the other for no more bytes, one is dropped. With all states, the last one moves
the fewest bytes.

Plans have too many states for that. So a state gives :data:`CHOICES` at most, and :data:`WIDTH` states are kept: those with the least
bytes, including the rent of the blocks that they hold, by the prices of the best lower bound. The first choice evicts the blocks with the
least cost per byte, less their rent. Belady's plan is a candidate for the result, so the result never moves more bytes.

References:
    Jia et al., ROC, MLSys 2020, Sec. 5, Algorithm 1. There tensors are whole, their order is part of the state, and every output is stored.
    We place blocks of an order that is given, and count a store only where one is needed. We also minimise over all sets that fit before an
    operation: line 14 of the algorithm takes the set from the one that is kept afterwards, so an input would be loaded for its last reader.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from sagann.plan.gaps import Gaps, Prices, gaps_of, prices_of
from sagann.plan.residency import LOOKAHEAD, place
from sagann.plan.steps import Block, Plan, Step

WIDTH = 8
"Most states that are kept before each step."
CHOICES = 4
"Most states that a state gives where it does not fit."


def place_by_program(
    steps: Sequence[Step],
    *,
    bytes_of: Callable[[Block], int],
    initial: Iterable[Block],
    bounds: Sequence[int],
    budget_bytes: int,
    lookahead: int = LOOKAHEAD,
) -> Plan:
    """The policy "dp". Without ``lookahead`` a block is loaded for the step that reads it; with any, it may be loaded ahead.

    Arguments and errors are those of :func:`sagann.plan.residency.place`, whose plan is a candidate too.
    """
    placed = partial(
        place, steps, bytes_of=bytes_of, initial=list(initial), bounds=bounds, budget_bytes=budget_bytes
    )
    belady = placed(lookahead=lookahead)
    gaps = gaps_of(steps, bytes_of, budget_bytes)
    choice = least_moved(gaps, prices_of(gaps, belady.moved_bytes))
    leaving = gaps.never_kept | {(gaps.blocks[gap], int(gaps.first[gap])) for gap in choice.leaving}
    found = placed(lookahead=lookahead, leaving=leaving)
    # Of plans that move equally much, Belady's is the first: it loads ahead more.
    return min(belady, found, key=lambda plan: plan.moved_bytes)


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """What a policy keeps."""

    moved_bytes: int
    "Bytes of all loads and stores."
    leaving: frozenset[int]
    "Numbers of the gaps that are not kept."


def least_moved(gaps: Gaps, prices: Prices, *, width: int | None = WIDTH, choices: int | None = CHOICES) -> Choice:
    """The gaps to keep. Prices of memory decide which states and choices come first.

    At most ``width`` states are kept before each step, and a state gives at most ``choices``. Without both limits the result has the fewest
    bytes.
    """
    return _Program(gaps, prices, width, choices).run()


_Left = tuple[tuple[int, ...], Any] | None
"Ranks of the gaps that left last, and those that left before, as a linked list."


class _State(NamedTuple):
    """A state before a step."""

    cost: int
    "Bytes of the loads and stores that are decided by now."
    kept: int
    "Gaps that are kept: bit r is the gap of rank r."
    stored: int
    "Contents that lie outside because they left before: bit c is the content c."
    held: int
    "Bytes of the gaps that are kept."
    left: _Left
    "Gaps that left to get here."


class _Program:
    def __init__(self, gaps: Gaps, prices: Prices, width: int | None, choices: int | None) -> None:
        self.gaps = gaps
        self.width, self.choices = width, choices
        self.until: list[float] = prices.until.tolist()
        self.room: list[int] = gaps.room_bytes.tolist()
        # A store is shared among the gaps of its content.
        shares = gaps.store_bytes / np.maximum(1, np.bincount(gaps.content, minlength=len(gaps.store_bytes)))
        costs = gaps.num_bytes + shares[gaps.content]
        # A gap is worth its copies, less its rent until the next use, per byte. At any step the rent that is past is the same for
        # all gaps, so one order serves all steps. The gap that leaves first has rank 0.
        values = costs / gaps.num_bytes - prices.until[gaps.next]
        order = np.lexsort((-gaps.num_bytes, -gaps.next, values))
        self.order: list[int] = order.tolist()
        self.sizes: list[int] = gaps.num_bytes[order].tolist()
        self.costs: list[float] = costs[order].tolist()
        self.next: list[int] = gaps.next[order].tolist()
        self.contents: list[int] = gaps.content[order].tolist()
        self.stores: list[int] = gaps.store_bytes.tolist()
        self.begun, self.ended = [0] * len(self.room), [0] * len(self.room)
        self.begun_bytes = [0] * len(self.room)
        self.forgotten = [0] * len(self.room)
        lasts: dict[int, int] = {}
        for rank, gap in enumerate(self.order):
            first = int(gaps.first[gap]) + 1
            self.begun[first] |= 1 << rank
            self.begun_bytes[first] += self.sizes[rank]
            self.ended[self.next[rank]] |= 1 << rank
            content = self.contents[rank]
            lasts[content] = max(lasts.get(content, 0), self.next[rank])
        for content, step in lasts.items():
            self.forgotten[step] |= 1 << content

    def run(self) -> Choice:
        states = [_State(0, 0, 0, 0, None)]
        for step, room in enumerate(self.room):
            if self.begun[step] or self.ended[step]:
                states = [self._entered(state, step) for state in states]
            if any(state.held > room for state in states):
                states = self._pruned([each for state in states for each in self._fitting(state, room)], step)
        found = (self._filled(sorted(_all_of(state.left), reverse=True)) for state in states)
        return min(found, key=lambda choice: choice.moved_bytes)

    def _filled(self, left: Sequence[int]) -> Choice:
        """The choice without the gaps of some ranks, in this order, but for those that fit after all.

        Where a gap left in the middle, the room that it took before is free, once it is known.
        """
        gaps, kept, leaving = self.gaps, np.ones(len(self.order)), list[int]()
        kept[[self.order[rank] for rank in left]] = 0
        free = gaps.room_bytes - gaps.over(gaps.num_bytes * kept).astype(np.int64)
        for rank in left:
            gap = self.order[rank]
            within = free[gaps.first[gap] + 1 : self.next[rank]]
            if self.sizes[rank] <= within.min():
                within -= self.sizes[rank]
            else:
                leaving.append(gap)
        contents = np.unique(gaps.content[leaving])
        moved_bytes = gaps.compulsory_bytes + gaps.num_bytes[leaving].sum() + gaps.store_bytes[contents].sum()
        return Choice(moved_bytes=int(moved_bytes), leaving=frozenset(leaving))

    def _entered(self, state: _State, step: int) -> _State:
        """The state with the gaps that begin and without those that end."""
        ended = state.kept & self.ended[step]
        held = state.held + self.begun_bytes[step] - sum(self.sizes[rank] for rank in _bits(ended))
        kept = (state.kept ^ ended) | self.begun[step]
        return _State(state.cost, kept, state.stored & ~self.forgotten[step], held, state.left)

    def _fitting(self, state: _State, room: int) -> Iterator[_State]:
        """The states that a state gives where it must make room."""
        if state.held <= room:
            yield state
            return
        for victims in islice(self._victims(state.kept, state.held - room), self.choices):
            cost, kept, stored, held = state.cost, state.kept, state.stored, state.held
            for rank in victims:
                content, size = self.contents[rank], self.sizes[rank]
                kept ^= 1 << rank
                held -= size
                cost += self.sizes[rank]
                if self.stores[content] and not stored >> content & 1:
                    cost += self.stores[content]
                    stored |= 1 << content
            yield _State(cost, kept, stored, held, (victims, state.left))

    def _victims(self, kept: int, excess: int) -> Iterator[tuple[int, ...]]:
        """The smallest sets of gaps that free the excess bytes, by rank as far as possible; each set once.

        Every such set is found: a set that differs from another one lacks one of its gaps, and is found without this gap.
        """
        tried, found = {0}, set[tuple[int, ...]]()
        without = [0]
        for spared in without:
            victims = self._first_victims(kept & ~spared, excess)
            if victims is None:
                continue
            if victims not in found:
                found.add(victims)
                yield victims
            for rank in victims:
                other = spared | 1 << rank
                if other not in tried:
                    tried.add(other)
                    without.append(other)

    def _first_victims(self, kept: int, excess: int) -> tuple[int, ...] | None:
        """Gaps of the lowest ranks that free the excess bytes, without those that are not needed; None if all are too few."""
        found: list[int] = []
        for rank in _bits(kept):
            found.append(rank)
            excess -= self.sizes[rank]
            if excess <= 0:
                break
        else:
            return None
        for rank in reversed(found[:-1]):
            if excess + self.sizes[rank] <= 0:
                excess += self.sizes[rank]
                found.remove(rank)
        return tuple(found)

    def _pruned(self, states: Sequence[_State], step: int) -> list[_State]:
        """The best states, without those that another one could become for no more bytes."""
        least: dict[tuple[int, int], _State] = {}
        for state in states:
            known = least.setdefault((state.kept, state.stored), state)
            if state.cost < known.cost:
                least[state.kept, state.stored] = state
        common = -1
        for state in least.values():
            common &= state.kept
        rent_from = self.until[step + 1]

        def expected(state: _State) -> float:
            rents = (
                min(self.costs[rank], self.sizes[rank] * (self.until[self.next[rank]] - rent_from))
                for rank in _bits(state.kept & ~common)
            )
            return state.cost + sum(rents)

        found: list[_State] = []
        for state in sorted(least.values(), key=expected):
            if self.width is not None and len(found) == self.width:
                break
            if not any(self._becomes(better, state) for better in found):
                found.append(state)
        return found

    def _becomes(self, state: _State, other: _State) -> bool:
        """Whether a state, once it has stored and dropped what another one has, costs no more than the other one.

        It may have dropped more: that is paid, and the blocks are loaded again where the other state has kept them.
        """
        cost = state.cost
        if cost > other.cost:
            return False
        cost += sum(self.sizes[rank] for rank in _bits(state.kept & ~other.kept))
        cost += sum(self.stores[content] for content in _bits(other.stored & ~state.stored))
        return cost <= other.cost


def _bits(mask: int) -> Iterator[int]:
    """Numbers of the bits that are set, ascending."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


def _all_of(left: _Left) -> Iterator[int]:
    while left is not None:
        ranks, left = left
        yield from ranks
