"""Sums in CPU kernels: of a group's edges, of all edges, and of none."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from sagann.kernels.edge.cpu.reductions.writer import Writer
from sagann.kernels.edge.kinds import lanes
from sagann.machine_code import compiled

Array = NDArray[Any]


class Sum(Writer):
    """The sum of a group's edges."""

    def start(self) -> list[str]:
        return [f"sum_{self.number} = {self.zero()}"]

    def resume(self) -> list[str]:
        return [f"sum_{self.number} = {self.loaded(self.result, self.kind, self.count, lanes(self.value))}"]

    def update(self) -> list[str]:
        return [f"sum_{self.number} = {self.rows.operation('add')}(sum_{self.number}, {self.name})"]

    def finish(self) -> list[str]:
        return self.replaced(self.result, f"sum_{self.number}")


class Total(Writer):
    """The sum of an item's edges; those of all items are summed afterwards."""

    def before(self) -> list[str]:
        return [f"sum_{self.number} = {self.zero()}"]

    def update(self) -> list[str]:
        return [f"sum_{self.number} = {self.rows.operation('add')}(sum_{self.number}, {self.name})"]

    def after(self) -> list[str]:
        at = f"item * {lanes(self.value)}{self.first}"
        return [f"block.store(p_out_{self.result}, {at}, sum_{self.number})"]


class EdgeRows(Writer):
    """A row for every edge."""

    def update(self) -> list[str]:
        at = f"{self.rows.edge_local} * {lanes(self.value)}{self.first}"
        return [f"block.store(p_out_{self.result}, {at}, {self.name})"]


@compiled()
def merge_sums(rows: Array, part_rows: Array, total: Array, part: Array) -> None:
    """Add rows of a part to rows of a state, pair by pair."""
    for pair in range(len(rows)):
        row, other = rows[pair], part_rows[pair]
        for lane in range(total.shape[1]):
            total[row, lane] += part[other, lane]
