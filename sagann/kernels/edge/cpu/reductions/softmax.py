"""Softmax in CPU kernels: one pass with a running maximum and denominator."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from sagann.kernels.edge.cpu.reductions.writer import Writer
from sagann.kernels.edge.kinds import lanes
from sagann.machine_code import compiled

Array = NDArray[Any]


class Softmax(Writer):
    """The mean of a group's edges weighted by the exponentials of their scores, and these weights' scale."""

    @property
    def score_lanes(self) -> int:
        """Lanes of the score in registers."""
        return self.rows.lanes(self.rows.function.value(self.output.values[0]))

    @property
    def scores(self) -> int:
        """Lanes of the score in memory."""
        return lanes(self.rows.function.value(self.output.values[0]))

    def lowest(self) -> str:
        """A block of the least finite number, for scores."""
        number = float(torch.finfo(torch.float64 if self.kind == "f8" else torch.float32).min)
        return self.rows.fill(self.kind, self.score_lanes, number)

    def per_head(self, value: str) -> str:
        """A block like the score's, spread over the value's lanes."""
        score = self.rows.function.value(self.output.values[0])
        if self.rows.tile:
            return value
        shape = (*score.shape, *(1,) * (len(self.value.shape) - len(score.shape)))
        return self.rows.spread(value, shape, self.value.shape)

    def start(self) -> list[str]:
        return [
            f"top_{self.number} = {self.lowest()}",
            f"weight_{self.number} = {self.rows.fill(self.kind, self.score_lanes, 0.0)}",
            f"sum_{self.number} = {self.zero()}",
        ]

    def resume(self) -> list[str]:
        number, operation = self.number, self.rows.operation
        known = self.loaded(self.result, self.kind, self.count, lanes(self.value))
        top = self.loaded(self.result + 1, self.kind, self.score_lanes, self.scores)
        # Where all scores so far are -inf the mean is 0 / 0, but weighs nothing.
        return [
            f"top_{number} = {operation('maximum')}({self.lowest()}, {top})",
            f"weight_{number} = {self.loaded(self.result + 2, self.kind, self.score_lanes, self.scores)}",
            f"heavy = {self.per_head(f'weight_{number}')}",
            f"none = {operation('eq')}(heavy, {self.rows.fill(self.kind, 1, 0.0)})",
            f"sum_{number} = elementwise.where(none, {self.zero()}, {operation('mul')}({known}, heavy))",
        ]

    def update(self) -> list[str]:
        number, operation = self.number, self.rows.operation
        score = self.rows.converted(self.output.values[0], self.kind)
        add, mul, sub, exp = operation("add"), operation("mul"), operation("sub"), operation("exp")
        return [
            f"top = {operation('maximum')}(top_{number}, {score})",
            f"if elementwise.any_lane({operation('ne')}(top, top_{number})):",
            f"    shrink = {exp}({sub}(top_{number}, top))",
            f"    weight_{number} = {mul}(weight_{number}, shrink)",
            f"    sum_{number} = {mul}(sum_{number}, {self.per_head('shrink')})",
            f"    top_{number} = top",
            f"weight = {exp}({sub}({score}, top_{number}))",
            f"weight_{number} = {add}(weight_{number}, weight)",
            f"sum_{number} = {add}(sum_{number}, {mul}({self.per_head('weight')}, {self.name}))",
        ]

    def finish(self) -> list[str]:
        number, top, weight = self.number, f"top_{self.number}", f"weight_{self.number}"
        mean = f"{self.rows.operation('div')}(sum_{number}, {self.per_head(weight)})"
        if self.rows.form.continued:
            return [
                *self.replaced(self.result, mean),
                *self.replaced(self.result + 1, top, self.scores),
                *self.replaced(self.result + 2, weight, self.scores),
            ]
        nothing = self.rows.fill(self.kind, self.score_lanes, -math.inf)
        return [
            "if end > begin:",
            "    " + self.stored(self.result, "at", mean),
            "    " + self.stored(self.result + 1, "at", top, self.scores),
            "else:",
            "    " + self.stored(self.result, "at", self.zero()),
            "    " + self.stored(self.result + 1, "at", nothing, self.scores),
            self.stored(self.result + 2, "at", weight, self.scores),
        ]


@compiled()
def merge_softmax(
    rows: Array,
    part_rows: Array,
    mean: Array,
    top: Array,
    weight: Array,
    part: Array,
    peak: Array,
    share: Array,
) -> None:
    """Merge rows of a part into rows of a state, pair by pair."""
    for pair in range(len(rows)):
        row, other = rows[pair], part_rows[pair]
        per_score = mean.shape[1] // top.shape[1]
        for score in range(top.shape[1]):
            highest = np.maximum(top[row, score], peak[other, score])
            # Rows without edges have -inf - -inf for an exponent.
            known = weight[row, score] * np.exp(top[row, score] - highest) if weight[row, score] != 0 else 0.0
            more = share[other, score] * np.exp(peak[other, score] - highest) if share[other, score] != 0 else 0.0
            for lane in range(score * per_score, (score + 1) * per_score):
                if known + more == 0:
                    mean[row, lane] += part[other, lane]
                    continue
                # What weighs nothing beside others may be 0 / 0.
                kept = mean[row, lane] * known if known != 0 else 0.0
                added = part[other, lane] * more if more != 0 else 0.0
                mean[row, lane] = (kept + added) / (known + more)
            top[row, score], weight[row, score] = highest, known + more
