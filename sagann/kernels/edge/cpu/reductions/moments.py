"""Moments in CPU kernels: mean and spread are updated edge by edge."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from sagann.kernels.edge.cpu.reductions.writer import Writer
from sagann.kernels.edge.kinds import lanes
from sagann.machine_code import compiled

Array = NDArray[Any]


class Moments(Writer):
    """The sum of squared deviations, the mean, and the number of a group's edges."""

    def start(self) -> list[str]:
        return [
            f"spread_{self.number} = {self.zero()}",
            f"mean_{self.number} = {self.zero()}",
            f"count_{self.number} = {self.rows.fill(self.kind, 1, 0.0)}",
        ]

    def resume(self) -> list[str]:
        total = lanes(self.value)
        return [
            f"spread_{self.number} = {self.loaded(self.result, self.kind, self.count, total)}",
            f"mean_{self.number} = {self.loaded(self.result + 1, self.kind, self.count, total)}",
            f"count_{self.number} = {self.loaded(self.result + 2, self.kind, 1, 1)}",
        ]

    def update(self) -> list[str]:
        spread, mean, count = (f"{name}_{self.number}" for name in ("spread", "mean", "count"))
        add, mul, sub = (self.rows.operation(name) for name in ("add", "mul", "sub"))
        one = self.rows.fill(self.kind, 1, 1.0)
        return [
            f"{count} = {add}({count}, {one})",
            f"distance = {sub}({self.name}, {mean})",
            f"{mean} = {add}({mean}, {mul}(distance, {self.rows.operation('div')}({one}, {count})))",
            f"{spread} = {add}({spread}, {mul}(distance, {sub}({self.name}, {mean})))",
        ]

    def finish(self) -> list[str]:
        return [
            *self.replaced(self.result, f"spread_{self.number}"),
            *self.replaced(self.result + 1, f"mean_{self.number}"),
            *self.replaced(self.result + 2, f"count_{self.number}", 1),
        ]


@compiled()
def merge_moments(
    rows: Array,
    part_rows: Array,
    spread: Array,
    mean: Array,
    count: Array,
    more_spread: Array,
    more_mean: Array,
    more_count: Array,
) -> None:
    """Merge rows of a part into rows of a state, pair by pair."""
    for pair in range(len(rows)):
        row, other = rows[pair], part_rows[pair]
        known, more = count[row, 0], more_count[other, 0]
        share = more / max(known + more, 1)
        for lane in range(mean.shape[1]):
            distance = more_mean[other, lane] - mean[row, lane]
            spread[row, lane] += more_spread[other, lane] + distance * distance * share * known
            mean[row, lane] += distance * share
        count[row, 0] = known + more
