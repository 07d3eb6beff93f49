"""Small schedules of steps, drawn at random, for tests of memory policies."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from hypothesis import strategies as st

from sagann.plan.steps import Block, Step

CHUNK = Block("edges", "csc", 0, 0)


def block(number: int) -> Block:
    return Block("value", "v", number)


def rows_of(number: int) -> Block:
    """Rows that are picked from a block for a chunk."""
    return Block("value", "v", number, needed_by=CHUNK)


def step(reads: Sequence[int], writes: Sequence[int] = (), temporary: int = 0, picked: Sequence[int] = ()) -> Step:
    return Step(
        kind="transform",
        number=0,
        interval=0,
        reads=(*map(block, reads), *map(rows_of, picked)),
        writes=tuple(map(block, writes)),
        temporary_bytes=temporary,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Small:
    """A schedule, and the least budget that each of its steps fits alone."""

    steps: Sequence[Step]
    "The steps."
    sizes: Mapping[Block, int]
    "Bytes of every block."
    initial: frozenset[Block]
    "Blocks that lie outside at the start."

    @property
    def bytes_of(self) -> Callable[[Block], int]:
        return self.sizes.__getitem__

    @property
    def least_budget(self) -> int:
        alone = (sum(map(self.bytes_of, each.blocks)) + each.temporary_bytes for each in self.steps)
        return max(alone)


@st.composite
def schedules(draw: st.DrawFn, *, most_blocks: int = 8, most_steps: int = 25) -> Small:
    """A schedule whose steps read what exists; rows are picked of blocks that are made once."""
    sizes = draw(st.lists(st.integers(1, 20), min_size=2, max_size=most_blocks))
    count = len(sizes)
    initial = set(range(draw(st.integers(1, count))))
    known = set(initial)
    steps = []
    for _ in range(draw(st.integers(1, most_steps))):
        reads = draw(st.lists(st.sampled_from(sorted(known)), max_size=3, unique=True))
        writes = draw(st.lists(st.integers(0, count - 1), max_size=2, unique=True))
        known |= set(writes)
        steps.append(step(reads, writes, draw(st.integers(0, 5))))
    times = Counter(each for one in steps for each in one.writes) + Counter(map(block, initial))
    for number, one in enumerate(steps):
        made = {each for earlier in steps[:number] for each in earlier.writes} | set(map(block, initial))
        if once := sorted(each.interval for each in made if times[each] == 1):
            picked = draw(st.lists(st.sampled_from(once), max_size=2, unique=True))
            steps[number] = replace(one, reads=(*one.reads, *map(rows_of, picked)))
    bytes_of = {block(number): size for number, size in enumerate(sizes)}
    bytes_of |= {rows_of(number): (size + 1) // 2 for number, size in enumerate(sizes)}
    return Small(steps=steps, sizes=bytes_of, initial=frozenset(map(block, initial)))
