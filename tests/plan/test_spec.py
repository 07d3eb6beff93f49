"""The specification accepts plans that are placed, and refuses those that are changed."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import pytest
from hypothesis import given, strategies as st

from sagann.plan.epoch import MEMORY_POLICIES, MemoryPolicy
from sagann.plan.spec import PlanError, verify
from sagann.plan.steps import ALL, Block, Move, Plan, Step
from sagann.plan.waits import waits_of

X, Y = (Block("value", name, 0) for name in "xy")


def step(
    reads: tuple[Block, ...],
    writes: tuple[Block, ...] = (),
    number: int = 0,
    at: str = "device0",
    temporary: int = 0,
) -> Step:
    return Step("gather", number, 0, reads=reads, writes=writes, temporary_bytes=temporary, resource=at)


def placed(policy: MemoryPolicy) -> tuple[Plan, list[Step]]:
    """A column's chunks into a state, for each of three destination intervals, in room for three blocks."""
    rows = [Block("value", "x", interval) for interval in range(3)]
    steps = []
    for dst in range(3):
        state = Block("state", "sum", dst)
        for src, row in enumerate(rows):
            chunk = Block("edges", "csc", src, dst)
            reads = (chunk, row, state) if src else (chunk, row)
            steps.append(step(reads, (state,), number=src, temporary=1))
        steps.append(step((state,), (Block("value", "h", dst),)))
    steps += [step((Block("value", "h", dst),), number=5) for dst in range(3)]
    chunks = [Block("edges", "csc", src, dst) for src in range(3) for dst in range(3)]
    plan = MEMORY_POLICIES[policy](
        steps, bytes_of=lambda _: 10, initial=[*rows, *chunks], bounds=(0, 1, 2, 3), budget_bytes=41, lookahead=1
    )
    return plan, steps


@pytest.mark.parametrize("policy", MEMORY_POLICIES)
def test_a_placed_plan_keeps_every_rule_and_one_that_lacks_an_operation_is_refused(policy: MemoryPolicy) -> None:
    plan, steps = placed(policy)
    assert verify(plan, steps) == {"device0": plan.peak_bytes}
    for number in range(len(plan.operations)):
        with pytest.raises(PlanError):
            verify(replace(plan, operations=plan.operations[:number] + plan.operations[number + 1 :]), steps)


@pytest.mark.parametrize("policy", MEMORY_POLICIES)
def test_an_undivided_block_is_loaded_once_all_of_its_pieces_are_stored(policy: MemoryPolicy) -> None:
    pieces, whole = [Block("value", "h", interval) for interval in range(3)], Block("value", "h", ALL)
    edges = [Block("edges", "csc", ALL, dst) for dst in range(3)]
    steps = [step((), (piece,)) for piece in pieces]
    steps += [step((chunk, whole, piece), number=1) for chunk, piece in zip(edges, pieces, strict=True)]
    sizes = {whole: 30}
    plan = MEMORY_POLICIES[policy](
        steps,
        bytes_of=lambda block: sizes.get(block, 10),
        initial=edges,
        bounds=(0, 1, 2, 3),
        budget_bytes=50,
        lookahead=1,
    )
    waits = waits_of(plan.operations, plan.budget_bytes, has_engines=False)
    assert verify(replace(plan, waits=waits), steps) == {"device0": plan.peak_bytes}
    moved = [
        (each.kind, each.block) for each in plan.operations if isinstance(each, Move) and each.block.name == "h"
    ]
    assert [moved.count(("store", piece)) for piece in pieces] == [1, 1, 1]
    assert moved.count(("load", whole)) == 1
    for number, operation in enumerate(plan.operations):
        if isinstance(operation, Move) and operation.kind == "store":
            with pytest.raises(PlanError):
                verify(replace(plan, operations=plan.operations[:number] + plan.operations[number + 1 :]), steps)
        if isinstance(operation, Move) and operation.block == whole and operation.kind == "load":
            with pytest.raises(PlanError, match="it does not wait for operation"):
                verify(replace(plan, waits=(*waits[:number], (), *waits[number + 1 :])), steps)


def test_the_peak_counts_what_leaves_for_a_block_that_is_loaded_ahead() -> None:
    often, *others = (Block("value", name, 0) for name in "wxyz")
    sizes = dict(zip([often, *others], (45, 5, 45, 12), strict=True))
    steps = [step((often,)), Step("return", 0, 0), *(step((block,)) for block in others), step((often,))]
    plan = MEMORY_POLICIES["belady"](
        steps, bytes_of=sizes.__getitem__, initial=list(sizes), bounds=(0, 1), budget_bytes=100, lookahead=2
    )
    assert verify(plan, steps) == {"device0": 95}


@pytest.mark.parametrize("field", ["budget_bytes", "peak_bytes"])
def test_a_plan_in_less_memory_is_refused(field: str) -> None:
    plan, _ = placed("belady")
    with pytest.raises(PlanError, match=r"device0 holds \d+ bytes, and \d+ are allowed"):
        verify(replace(plan, **{field: plan.peak_bytes - 1}))


def plan_of(*operations: Step | Move, budget_bytes: int = 100) -> Plan:
    given = {"budget_bytes": budget_bytes, "peak_bytes": 100, "initial": frozenset([X])}
    return Plan(operations=operations, bounds=(0, 1), **given)


def stored(*after: Step | Move) -> Plan:
    """A block is made, stored and dropped; then comes what may have to wait for its store."""
    made = step((), (Y,))
    operations = [made, Move("store", Y, 60), Move("drop", Y, 60), *after]
    plan = plan_of(*operations)
    return replace(plan, waits=waits_of(operations, plan.budget_bytes, has_engines=False))


@pytest.mark.parametrize(
    ("plan", "number", "why"),
    [
        (stored(Move("load", X, 10), step((X,)), Move("drop", X, 10)), 4, "operation 3, which touches value x"),
        (stored(Move("load", X, 10), step((X,)), Move("drop", X, 10)), 3, "operation 1, whose block's memory"),
        (stored(step((), temporary=41)), 3, "does not fit beside blocks that may still be stored"),
        (
            plan_of(step((), (X,)), Move("store", X, 10), step((X,), (X,)), Move("drop", X, 10)),
            2,
            "operation 1, which",
        ),
        (
            plan_of(Move("load", X, 10), Move("drop", X, 10)),
            1,
            "does not wait for operation 0, which uses the block",
        ),
    ],
)
def test_an_operation_that_does_not_wait_for_what_it_must_is_a_race(plan: Plan, number: int, why: str) -> None:
    waits = list(plan.waits or waits_of(plan.operations, plan.budget_bytes, has_engines=False))
    verify(replace(plan, waits=tuple(waits)))
    waits[number] = ()
    with pytest.raises(PlanError, match=why):
        verify(replace(plan, waits=tuple(waits)))


def test_a_step_that_fits_beside_what_leaves_does_not_wait() -> None:
    assert stored(step((), temporary=40)).waits[3] == ()
    # On a device with copy engines the drop has waited.
    assert waits_of(stored().operations, 100, has_engines=True)[2] == (1,)


def there(block: Block, owner: str = "device1") -> Block:
    return block._replace(owner=owner)


@given(st.sampled_from(sorted(MEMORY_POLICIES)), st.data())
def test_a_plan_with_two_operations_of_a_block_swapped_is_refused(
    policy: MemoryPolicy, data: st.DataObject
) -> None:
    plan, steps = placed(policy)
    operations = list(plan.operations)
    touched = [set(each.blocks) if isinstance(each, Step) else {each.block} for each in operations]
    pairs = [
        (one, two)
        for one, two in combinations(range(len(operations)), 2)
        if touched[one] & touched[two] and operations[one] != operations[two]
    ]
    one, two = data.draw(st.sampled_from(pairs))
    operations[one], operations[two] = operations[two], operations[one]
    with pytest.raises(PlanError):
        verify(replace(plan, operations=tuple(operations)), steps)


def test_devices_have_memories_of_their_own() -> None:
    operations = [
        Move("load", X, 10),
        Move("send", X, 10, peer="device1", resource="link0-1"),
        Move("receive", there(X), 10, peer="device0"),
        Move("drop", X, 10),
        step((there(X),), at="device1", temporary=5),
        Move("drop", there(X), 10),
    ]
    assert verify(plan_of(*operations)) == {"device0": 10, "device1": 15}
    with pytest.raises(PlanError, match="device1 holds 15 bytes, and 14 are allowed"):
        verify(plan_of(*operations, budget_bytes=14))
    operations[4] = step((X,), at="device1")
    with pytest.raises(PlanError, match="value x: 0 lies in another memory"):
        verify(plan_of(*operations))


def test_waits_that_form_a_circle_are_refused() -> None:
    first, second = step(()), step((), at="device1")
    verify(plan_of(first, replace(second, after=(0,))))
    with pytest.raises(PlanError, match=r"first: 0 \(gather 0: 0 of device0\), 1 \(gather 0: 0 of device1\)$"):
        verify(plan_of(replace(first, after=(1,)), replace(second, after=(0,))))
    with pytest.raises(PlanError, match="waits for 7, which there is not"):
        verify(plan_of(replace(first, after=(7,))))


def test_an_all_reduce_needs_all_owners() -> None:
    both: list[Step | Move] = []
    for block in (X, there(X)):
        both += [
            step((), (block,), at=block.owner),
            Move("all-reduce", block, 10, resource=f"{block.owner}.out"),
            step((block,), at=block.owner),
            Move("drop", block, 10),
        ]
    verify(plan_of(*both))
    with pytest.raises(PlanError, match="needs each of its owners"):
        verify(plan_of(*both[:5], *both[6:]))
