"""Which cases of a test `make test` runs, where a test is tried with every combination of several parameters.

A *cover* of strength 1 is a few cases that have every value of every parameter; one of strength 2 has every two values of two
parameters together. `make test` runs a cover of strength 1 of each test; a test for which two values matter together says
``@pytest.mark.cover(2)``. The cases that are left get the mark ``thorough``, and run by `make thorough`.

Parameters of one ``parametrize`` are one: each of its cases is run.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from itertools import combinations

import pytest

_Combination = tuple[tuple[str, Hashable], ...]


def cover(cases: Sequence[Mapping[str, Hashable]], strength: int) -> list[int]:
    """Positions of cases that have every combination of ``strength`` values that any case has, ascending.

    A case of most new combinations is taken next, the first one of several: the choice depends on the cases alone.

    Args:
        cases: for each case, its value of each parameter.
        strength: number of parameters whose values are combined, at least 1.
    """
    left = dict(enumerate(_combinations(case, strength) for case in cases))
    missing: set[_Combination] = set().union(*left.values())
    taken = []
    while missing:
        # Cases without anything new are not looked at again.
        left = {position: new for position, has in left.items() if (new := has & missing)}
        best = max(left, key=lambda position: len(left[position]))
        taken.append(best)
        missing -= left.pop(best)
    return sorted(taken)


def mark_the_rest(items: Sequence[pytest.Item]) -> None:
    """Mark the cases of tests that are outside of their covers as ``thorough``."""
    cases = defaultdict(list)
    for item in items:
        if hasattr(item, "callspec"):
            cases[item.nodeid.partition("[")[0]].append(item)
    for same in cases.values():
        mark = same[0].get_closest_marker("cover")
        kept = set(cover([_case(item) for item in same], mark.args[0] if mark else 1))
        for position, item in enumerate(same):
            if position not in kept:
                item.add_marker("thorough")


def _case(item: pytest.Item) -> dict[str, Hashable]:
    """What stands for the values of a case's parameters: by the names of each ``parametrize``, and by fixtures that have values."""
    values = item.callspec.params
    together = {}
    for mark in item.iter_markers("parametrize"):
        names = mark.args[0] if mark.args else mark.kwargs["argnames"]
        together[str(names)] = [name.strip() for name in (names.split(",") if isinstance(names, str) else names)]
    stated = {name for names in together.values() for name in names}
    together |= {name: [name] for name in values if name not in stated}
    # Values need not be hashable. Cases with the same value have the same object.
    return {key: tuple(id(values[name]) for name in names) for key, names in together.items()}


def _combinations(case: Mapping[str, Hashable], strength: int) -> set[_Combination]:
    values = sorted(case.items())
    return set(combinations(values, min(strength, len(values))))
