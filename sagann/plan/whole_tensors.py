"""Whole tensors: the fewest bytes that a device loads for a graph of operations, by dynamic programming, as in ROC.

A device runs operations one after the other, each after those that it depends on. It keeps some tensors between them. A state is
the set of operations done and the set of tensors kept. Of the tensors, only the active ones are worth keeping: those that exist
and that some operation not yet done reads. An operation costs the bytes of its inputs that are not kept. Every output is written
to the host as soon as it is made, whatever is kept, so these bytes are the same for all strategies and do not count.

The number of states grows exponentially with operations and tensors: this is for the few operations of a model whose tensors are
whole. :mod:`sagann.plan.dynamic_program` places the many blocks of a streamed plan, whose order is known.

References:
    Jia et al., ROC, MLSys 2020, Sec. 5, Algorithm 1. We differ in the set that is kept before an operation. Line 14 of the
    algorithm takes it from the set that is kept afterwards, so an input whose last reader runs would always be loaded, and the
    cost of the final state, after which nothing is kept, would be that of no cache. We minimise over all sets that fit.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations


@dataclass(frozen=True, kw_only=True, slots=True)
class Operation:
    """An operation on whole tensors."""

    inputs: frozenset[str]
    "Names of the tensors that the operation reads."
    outputs: frozenset[str]
    "Names of the tensors that the operation makes. No other operation makes one of them."


def least_loaded_bytes(
    operations: Sequence[Operation], size_bytes: Mapping[str, int], capacity_bytes: int
) -> int | None:
    """The fewest bytes that a device loads to run all operations, in the best order; None where one does not fit.

    Args:
        operations: operations in any order. A tensor that none of them makes lies on the host at the start.
        size_bytes: size of each tensor.
        capacity_bytes: most bytes of the inputs and outputs of an operation and of the tensors kept beside them.

    Example:
        >>> gather = Operation(inputs=frozenset(["x", "edges"]), outputs=frozenset(["sum"]))
        >>> backward = Operation(inputs=frozenset(["sum", "edges"]), outputs=frozenset(["grad"]))
        >>> sizes = {"x": 5, "edges": 4, "sum": 3, "grad": 3}
        >>> [least_loaded_bytes([gather, backward], sizes, capacity) for capacity in (11, 12)]
        [None, 9]
    """
    made_by = {name: number for number, each in enumerate(operations) for name in each.outputs}
    needs = [frozenset(made_by[name] for name in each.inputs if name in made_by) for each in operations]
    everything = frozenset(range(len(operations)))

    def total(names: Collection[str]) -> int:
        return sum(size_bytes[name] for name in names)

    @cache
    def cost(done: frozenset[int], kept: frozenset[str]) -> int | None:
        """The fewest bytes that are loaded to run the operations that are left."""
        left = everything - done
        if not left:
            return 0
        found: list[int] = []
        for number in sorted(left):
            if not needs[number] <= done:
                continue
            operation = operations[number]
            own = operation.inputs | operation.outputs
            active = frozenset(name for each in left - {number} for name in operations[each].inputs)
            for beside in _largest_within(kept & active - own, size_bytes, capacity_bytes - total(own)):
                # A tensor that the operation uses stays for free; dropping it now or when room is needed is the same.
                later = cost(done | {number}, (beside | own) & active)
                if later is not None:
                    found.append(total(operation.inputs - kept) + later)
        return min(found, default=None)

    return cost(frozenset(), frozenset())


def _largest_within(
    names: frozenset[str], size_bytes: Mapping[str, int], room_bytes: int
) -> Iterator[frozenset[str]]:
    """The subsets that fit the room and to which no other of the tensors can be added."""
    if room_bytes < 0:
        return
    for count in range(len(names) + 1):
        for some in combinations(sorted(names), count):
            left_bytes = room_bytes - sum(size_bytes[name] for name in some)
            others = names.difference(some)
            if left_bytes >= 0 and all(size_bytes[name] > left_bytes for name in others):
                yield frozenset(some)
