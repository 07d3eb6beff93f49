"""Extrema in CPU kernels."""

from __future__ import annotations

import math
from typing import Any

from numpy.typing import NDArray

from sagann.kernels.edge.cpu.reductions.writer import Writer
from sagann.kernels.edge.kinds import lanes
from sagann.machine_code import compiled

Array = NDArray[Any]


class Extremum(Writer):
    """The best value of a group's edges, and which edge attains it."""

    worst_number: float
    "The initial value, which every number replaces."
    beyond: str
    "The operation that says whether a value beats another one."

    def worst(self) -> str:
        """A block that every number beats."""
        return self.rows.fill(self.kind, self.count, self.worst_number)

    def start(self) -> list[str]:
        positions = "i8" if self.kind == "f8" else "i4"
        return [
            f"best_{self.number} = {self.worst()}",
            f"where_{self.number} = {self.rows.fill(positions, self.count, 0)}",
        ]

    def resume(self) -> list[str]:
        number, rows, total = self.number, self.rows, lanes(self.value)
        kind = str(rows.form.into_id_kind)
        first = "begin" if rows.function.at == "dst" else "id_of_edge(p_edge_ids, begin)"
        known = self.loaded(self.result, self.kind, self.count, total)
        return [
            f"where_{number} = {self.loaded(self.result + 1, kind, self.count, total)}",
            f"absent = {rows.operation('lt')}(where_{number}, {rows.fill(kind, 1, 0)})",
            f"best_{number} = elementwise.where(absent, {self.worst()}, {known})",
            f"where_{number} = elementwise.where(absent, {first} + edge_offset, where_{number})",
        ]

    def update(self) -> list[str]:
        number, operation = self.number, self.rows.operation
        best, isnan = f"best_{number}", f"{operation('ne')}({self.name}, {self.name})"
        first_nan = f"{operation('and')}({isnan}, {operation('eq')}({best}, {best}))"
        found = self.rows.edge_global if self.rows.form.continued else "edge - begin"
        return [
            f"better = {operation('or')}({operation(self.beyond)}({self.name}, {best}), {first_nan})",
            f"where_{number} = elementwise.where(better, {found}, where_{number})",
            f"{best} = elementwise.where(better, {self.name}, {best})",
        ]

    def finish(self) -> list[str]:
        number = self.number
        if self.rows.form.continued:
            best = self.replaced(self.result, f"best_{number}")
            return best + self.replaced(self.result + 1, f"where_{number}")
        kind = self.rows.form.id_kind
        convert = self.rows.define(f"to_{kind}", f'elementwise.caster("{kind}")')
        ids = f"{self.rows.operation('add')}({convert}(where_{number}), begin)"
        return [
            "if end > begin:",
            "    " + self.stored(self.result, "at", f"best_{number}"),
            "    " + self.stored(self.result + 1, "at", ids),
            "else:",
            "    " + self.stored(self.result, "at", self.zero()),
            "    " + self.stored(self.result + 1, "at", self.rows.fill(kind, self.count, -1)),
        ]


class Maximum(Extremum):
    """The largest value."""

    worst_number, beyond = -math.inf, "gt"


class Minimum(Extremum):
    """The smallest value."""

    worst_number, beyond = math.inf, "lt"


@compiled()
def merge_extrema(
    largest: bool, rows: Array, part_rows: Array, best: Array, edge: Array, part: Array, where: Array
) -> None:
    """Merge rows of a part into rows of a state, pair by pair."""
    for pair in range(len(rows)):
        row, other = rows[pair], part_rows[pair]
        for lane in range(best.shape[1]):
            known, value = best[row, lane], part[other, lane]
            beyond = value > known if largest else value < known
            equal = value == known or (value != value and known != known)
            beyond = beyond or (value != value and known == known)
            earlier = where[other, lane] < edge[row, lane]
            if where[other, lane] >= 0 and (edge[row, lane] < 0 or beyond or (equal and earlier)):
                best[row, lane], edge[row, lane] = value, where[other, lane]
