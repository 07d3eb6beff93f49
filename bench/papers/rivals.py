"""Rivals of the product's memory policies and orders, for the comparisons of the papers.

``place_recent`` keeps blocks as a cache does, without knowledge of the coming steps (ROC, Sec. 7.7). A block that no step reads any more is
dropped, as a program frees a tensor. ``place_uncached`` keeps nothing: every block is loaded for each step that reads it, and evicted after
the step (NeuGraph, Sec. 3.2, streams chunks and vertices anew for every pass). Both take the arguments of
:func:`sagann.plan.residency.place`; ``lookahead`` has no effect.

``ROW`` and ``STAGE`` go over the chunk grid in other orders than by columns (NGra, Sec. 3.1 and Fig. 14; NeuGraph, Sec. 3.1 and Fig. 16).
Row order: all chunks of one interval of other ends, each into a state of its own; passes over CSC go by columns in any case. Stage order: the
stage of vertices runs when all states are finished. ``row`` too finishes a state and runs its stage after the state's last chunk, and
every order is placed in memory with the same foresight.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from sagann.plan.residency import BudgetError, Placement
from sagann.plan.steps import Block, Move, Plan, Step
from sagann.plan.sweeps import COLUMN, Pass, Sweeps, Walks, by_strips, no_steps


class _Recent(Placement):
    """Evicts the blocks whose last use is longest ago; stores a block when it is evicted and lies nowhere else."""

    stores_early = False

    def rank(self, block: Block, number: int) -> int:
        return number


def place_recent(
    steps: Sequence[Step],
    *,
    bytes_of: Callable[[Block], int],
    initial: Iterable[Block],
    bounds: Sequence[int],
    budget_bytes: int,
    lookahead: int = 0,
) -> Plan:
    return _Recent(steps, bytes_of, initial, bounds, budget_bytes, 0).run()


def place_uncached(
    steps: Sequence[Step],
    *,
    bytes_of: Callable[[Block], int],
    initial: Iterable[Block],
    bounds: Sequence[int],
    budget_bytes: int,
    lookahead: int = 0,
) -> Plan:
    last_need: dict[Block, int] = {}
    for number, step in enumerate(steps):
        for block in step.blocks:
            last_need[block] = last_need[block.whole] = number
        last_need |= dict.fromkeys(step.sends, number)
    operations: list[Step | Move] = []
    peak = 0
    for number, step in enumerate(steps):
        held = {block: bytes_of(block) for block in step.blocks}
        needed_bytes = sum(held.values()) + step.temporary_bytes
        if needed_bytes > budget_bytes:
            raise BudgetError.of_step(budget_bytes, step, bytes_of, len(bounds) - 1)
        peak = max(peak, needed_bytes)
        operations += [Move("load", block, held[block]) for block in dict.fromkeys(step.reads)]
        operations.append(step)
        made = [block for block in dict.fromkeys(step.writes) if last_need[block] > number]
        operations += [Move("store", block, held[block]) for block in made]
        operations += [Move("drop", block, size) for block, size in held.items()]
    return Plan(
        operations=tuple(operations),
        bounds=tuple(bounds),
        budget_bytes=budget_bytes,
        peak_bytes=peak,
        initial=frozenset(initial),
    )


def _by_other_ends(sweeps: Sweeps, work: Pass) -> Iterator[Step]:
    # The grid lies on its side: a sweep goes over the other ends, and each of them meets the states one by one.
    rows = sweeps.strips(work.key)
    rows = tuple(sorted(rows)) if work.in_order else rows
    for (other,), owns in rows:
        for own in owns:
            yield from work.chunk(own, other)
            if (other,) == rows[-1].owns:
                yield from work.finish(own)
                yield from work.follow(own)


def _by_stages(sweeps: Sweeps, work: Pass) -> Iterator[Step]:
    yield from by_strips(sweeps, replace(work, follow=no_steps))
    for own in sweeps.intervals():
        yield from work.follow(own)


# A chunk between two chunks of begun states, and both ends different: the third and fourth of the second row.
ROW = Walks(walk=_by_other_ends, csc_walk=by_strips, has_strips=False, telling=4)
STAGE = Walks(walk=_by_stages, csc_walk=_by_stages, has_strips=True, telling=2)
ORDERS: Mapping[str, Walks] = {"column": COLUMN, "row": ROW, "stage": STAGE}
