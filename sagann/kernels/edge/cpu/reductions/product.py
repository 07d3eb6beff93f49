"""Products in CPU kernels."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from sagann.kernels.edge.cpu.reductions.writer import Writer
from sagann.kernels.edge.kinds import lanes
from sagann.machine_code import compiled

Array = NDArray[Any]


class Product(Writer):
    """The product of a group's factors that are not 0, and how many are 0."""

    def start(self) -> list[str]:
        return [
            f"product_{self.number} = {self.rows.fill(self.kind, self.count, 1.0)}",
            f"zeros_{self.number} = {self.zero()}",
        ]

    def resume(self) -> list[str]:
        total = lanes(self.value)
        return [
            f"product_{self.number} = {self.loaded(self.result, self.kind, self.count, total)}",
            f"zeros_{self.number} = {self.loaded(self.result + 1, self.kind, self.count, total)}",
        ]

    def update(self) -> list[str]:
        product, zeros, operation = f"product_{self.number}", f"zeros_{self.number}", self.rows.operation
        none, one = self.rows.fill(self.kind, 1, 0.0), self.rows.fill(self.kind, 1, 1.0)
        return [
            f"is_zero = {operation('eq')}({self.name}, {none})",
            f"{product} = {operation('mul')}({product}, elementwise.where(is_zero, {one}, {self.name}))",
            f"{zeros} = {operation('add')}({zeros}, elementwise.where(is_zero, {one}, {none}))",
        ]

    def finish(self) -> list[str]:
        return [
            *self.replaced(self.result, f"product_{self.number}"),
            *self.replaced(self.result + 1, f"zeros_{self.number}"),
        ]


@compiled()
def merge_products(
    rows: Array, part_rows: Array, product: Array, zeros: Array, more: Array, more_zeros: Array
) -> None:
    """Merge rows of a part into rows of a state, pair by pair."""
    for pair in range(len(rows)):
        row, other = rows[pair], part_rows[pair]
        for lane in range(product.shape[1]):
            product[row, lane] *= more[other, lane]
            zeros[row, lane] += more_zeros[other, lane]
