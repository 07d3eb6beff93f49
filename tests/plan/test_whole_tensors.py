"""Whole tensors: the dynamic program finds what trying every order and every eviction finds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain, combinations

from hypothesis import given, settings, strategies as st

from sagann.plan.whole_tensors import Operation, least_loaded_bytes


def operation(inputs: str, outputs: str) -> Operation:
    return Operation(inputs=frozenset(inputs), outputs=frozenset(outputs))


def tried(
    operations: Sequence[Operation],
    sizes: Mapping[str, int],
    capacity: int,
    made: frozenset[str] = frozenset(),
    kept: frozenset[str] = frozenset(),
) -> int | None:
    """The fewest bytes loaded by any order and any sets that stay, without memory of what was tried."""
    if not operations:
        return 0
    outputs = frozenset(chain.from_iterable(each.outputs for each in operations))
    found = []
    for number, one in enumerate(operations):
        if one.inputs & outputs:
            # What makes an input has not run.
            continue
        loaded = sum(sizes[name] for name in one.inputs - kept)
        for count in range(len(kept) + 1):
            for stays in combinations(sorted(kept), count):
                there = one.inputs | one.outputs | frozenset(stays)
                if sum(sizes[name] for name in there) <= capacity:
                    rest = [*operations[:number], *operations[number + 1 :]]
                    later = tried(rest, sizes, capacity, made | one.outputs, there)
                    if later is not None:
                        found.append(loaded + later)
    return min(found, default=None)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_nothing_that_can_be_tried_loads_less(data: st.DataObject) -> None:
    given_names = "xy"
    names = list(given_names)
    operations = []
    for number in range(data.draw(st.integers(1, 4))):
        inputs = data.draw(st.sets(st.sampled_from(names), max_size=3))
        operations.append(Operation(inputs=frozenset(inputs), outputs=frozenset("abcd"[number])))
        names.append("abcd"[number])
    sizes = {name: data.draw(st.integers(1, 9)) for name in names}
    operations = data.draw(st.permutations(operations))
    capacity = data.draw(st.integers(1, sum(sizes.values())))
    assert least_loaded_bytes(operations, sizes, capacity) == tried(operations, sizes, capacity)


# ROC, Fig. 3: a layer of GIN. g: edges; h: features; a: gathered; b and c: results of the linear layers; v, w: weights.
GIN = [
    operation("gh", "a"),
    operation("av", "b"),
    operation("bw", "c"),
    operation("c", "C"),
    operation("Cbw", "B"),
    operation("Bav", "A"),
    operation("Ag", "H"),
]


def test_the_papers_example_loads_nothing_twice_where_all_fits_and_all_where_nothing_does() -> None:
    sizes = dict.fromkeys("ghabcvwABCH", 10) | {"v": 1, "w": 1}
    inputs = sum(sizes[name] for each in GIN for name in each.inputs)
    assert least_loaded_bytes(GIN, sizes, 1000) == sum(sizes[name] for name in "ghvw")
    least = max(sum(sizes[name] for name in each.inputs | each.outputs) for each in GIN)
    assert least_loaded_bytes(GIN, sizes, least - 1) is None
    loaded = [least_loaded_bytes(GIN, sizes, capacity) for capacity in range(least, 100, 5)]
    assert all(bytes_ is not None and bytes_ < inputs for bytes_ in loaded)
    assert loaded == sorted(loaded, key=lambda bytes_: -(bytes_ or 0))
