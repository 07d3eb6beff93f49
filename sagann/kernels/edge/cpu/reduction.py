"""What becomes of a function's outputs: accumulators, their update at every edge, and what is written at the end."""

from __future__ import annotations

import math

import torch

from sagann.kernels.edge.cpu.expressions import Expressions
from sagann.kernels.edge.function import Output
from sagann.kernels.edge.kinds import kind_of, lanes


class Reduction:
    """Writes the lines of one output: its accumulators, their update and what becomes of them."""

    def __init__(self, rows: Expressions, output: Output, number: int, result: int) -> None:
        self.rows, self.output, self.number, self.result = rows, output, number, result
        self.value = rows.function.value(output.values[-1])
        self.count, self.kind = rows.lanes(self.value), "f8" if kind_of(self.value) == "f8" else "f4"
        self.first = rows.offset(self.value)
        self.name = rows.converted(self.value.name, self.kind)

    def zero(self) -> str:
        """A block of zeros."""
        return self.rows.fill(self.kind, self.count, 0.0)

    def stored(self, result: int, at: str, value: str, count: int | None = None) -> str:
        """A line that writes a row of a result."""
        total = lanes(self.value) if count is None else count
        return f"block.store(target_{result}, {at} * {total}{self.first if total > 1 else ''}, {value})"

    def replaced(self, result: int, value: str, count: int | None = None) -> list[str]:
        """Lines that write a row of a result; one lane, which every tile of a row starts from, by the last tile."""
        line = self.stored(result, "at", value, count)
        tiles = self.rows.layout.tiles
        shared = (lanes(self.value) if count is None else count) == 1
        if not self.rows.form.continued or not shared or len(tiles) == 1:
            return [line]
        return [f"if first == {(len(tiles) - 1) * self.rows.layout.tile}:", "    " + line]

    def before(self) -> list[str]:
        """Before the first row."""
        return [f"sum_{self.number} = {self.zero()}"] if self.output.reduce == "total" else []

    def loaded(self, result: int, kind: str, count: int, total: int) -> str:
        """What a row of a result holds so far: ``count`` lanes in registers, ``total`` in memory."""
        name = f"load_{kind}_{count}"
        load = self.rows.define(name, f'block.loader("{kind}", {count}, {self.rows.layout.width})')
        return f"{load}(target_{result}, at * {total}{self.first if total > 1 else ''})"

    def resume(self) -> list[str]:
        """At the start of a row of which earlier edges have given something."""
        number, rows, operation = self.number, self.rows, self.rows.operation
        total = lanes(self.value)
        known = self.loaded(self.result, self.kind, self.count, total)
        if self.output.reduce == "sum":
            return [f"sum_{number} = {known}"]
        if self.output.reduce in ("max", "min"):
            kind = str(rows.form.into_id_kind)
            first = "begin" if rows.function.at == "dst" else "id_of_edge(p_edge_ids, begin)"
            return [
                f"where_{number} = {self.loaded(self.result + 1, kind, self.count, total)}",
                f"absent = {operation('lt')}(where_{number}, {rows.fill(kind, 1, 0)})",
                f"best_{number} = elementwise.where(absent, {self.worst()}, {known})",
                f"where_{number} = elementwise.where(absent, {first} + edge_offset, where_{number})",
            ]
        if self.output.reduce == "softmax":
            scores = lanes(rows.function.value(self.output.values[0]))
            top = self.loaded(self.result + 1, self.kind, self.score_lanes, scores)
            weighted = f"{operation('mul')}({known}, heavy)"
            # Where all scores so far are -inf the mean is 0 / 0, but weighs nothing.
            return [
                f"top_{number} = {operation('maximum')}({self.lowest()}, {top})",
                f"weight_{number} = {self.loaded(self.result + 2, self.kind, self.score_lanes, scores)}",
                f"heavy = {self.per_head(f'weight_{number}')}",
                f"none = {operation('eq')}(heavy, {rows.fill(self.kind, 1, 0.0)})",
                f"sum_{number} = elementwise.where(none, {self.zero()}, {weighted})",
            ]
        return []

    def worst(self) -> str:
        """A block that every number beats."""
        return self.rows.fill(self.kind, self.count, -math.inf if self.output.reduce == "max" else math.inf)

    def lowest(self) -> str:
        """A block of the least finite number, for scores."""
        number = float(torch.finfo(torch.float64 if self.kind == "f8" else torch.float32).min)
        return self.rows.fill(self.kind, self.score_lanes, number)

    def start(self) -> list[str]:
        """At the start of a row."""
        if self.rows.form.continued:
            return self.resume()
        number, rows = self.number, self.rows
        if self.output.reduce == "sum":
            return [f"sum_{number} = {self.zero()}"]
        if self.output.reduce in ("max", "min"):
            positions = "i8" if self.kind == "f8" else "i4"
            return [
                f"best_{number} = {self.worst()}",
                f"where_{number} = {rows.fill(positions, self.count, 0)}",
            ]
        if self.output.reduce == "softmax":
            return [
                f"top_{number} = {self.lowest()}",
                f"weight_{number} = {rows.fill(self.kind, self.score_lanes, 0.0)}",
                f"sum_{number} = {self.zero()}",
            ]
        return []

    @property
    def score_lanes(self) -> int:
        """Lanes of softmax's score."""
        return self.rows.lanes(self.rows.function.value(self.output.values[0]))

    def per_head(self, value: str) -> str:
        """A block like the score's, spread over the value's lanes."""
        score = self.rows.function.value(self.output.values[0])
        if self.rows.tile:
            return value
        shape = (*score.shape, *(1,) * (len(self.value.shape) - len(score.shape)))
        return self.rows.spread(value, shape, self.value.shape)

    def update(self) -> list[str]:
        """For every edge."""
        number, add, operation = self.number, self.rows.operation("add"), self.rows.operation
        if self.output.reduce in ("sum", "total"):
            return [f"sum_{number} = {add}(sum_{number}, {self.name})"]
        if self.output.reduce == "edge":
            total = lanes(self.value)
            return [f"block.store(p_out_{self.result}, {self.rows.edge_local} * {total}{self.first}, {self.name})"]
        if self.output.reduce in ("max", "min"):
            beyond = operation("gt" if self.output.reduce == "max" else "lt")
            best, isnan = f"best_{number}", f"{operation('ne')}({self.name}, {self.name})"
            first_nan = f"{operation('and')}({isnan}, {operation('eq')}({best}, {best}))"
            found = self.rows.edge_global if self.rows.form.continued else "edge - begin"
            return [
                f"better = {operation('or')}({beyond}({self.name}, {best}), {first_nan})",
                f"where_{number} = elementwise.where(better, {found}, where_{number})",
                f"{best} = elementwise.where(better, {self.name}, {best})",
            ]
        score = self.rows.converted(self.output.values[0], self.kind)
        mul, sub, exp = operation("mul"), operation("sub"), operation("exp")
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
        """At the end of a row."""
        number, operation = self.number, self.rows.operation
        if self.output.reduce == "sum":
            return self.replaced(self.result, f"sum_{number}")
        if self.output.reduce in ("max", "min"):
            if self.rows.form.continued:
                best = self.replaced(self.result, f"best_{number}")
                return best + self.replaced(self.result + 1, f"where_{number}")
            kind = self.rows.form.id_kind
            convert = self.rows.define(f"to_{kind}", f'elementwise.caster("{kind}")')
            none = self.rows.fill(kind, self.count, -1)
            ids = f"{operation('add')}({convert}(where_{number}), begin)"
            return [
                "if end > begin:",
                "    " + self.stored(self.result, "at", f"best_{number}"),
                "    " + self.stored(self.result + 1, "at", ids),
                "else:",
                "    " + self.stored(self.result, "at", self.zero()),
                "    " + self.stored(self.result + 1, "at", none),
            ]
        if self.output.reduce == "softmax":
            score_lanes = lanes(self.rows.function.value(self.output.values[0]))
            mean = f"{operation('div')}(sum_{number}, {self.per_head(f'weight_{number}')})"
            if self.rows.form.continued:
                return [
                    *self.replaced(self.result, mean),
                    *self.replaced(self.result + 1, f"top_{number}", score_lanes),
                    *self.replaced(self.result + 2, f"weight_{number}", score_lanes),
                ]
            nothing = self.rows.fill(self.kind, self.score_lanes, -math.inf)
            weight = self.stored(self.result + 2, "at", f"weight_{number}", score_lanes)
            return [
                "if end > begin:",
                "    " + self.stored(self.result, "at", mean),
                "    " + self.stored(self.result + 1, "at", f"top_{number}", score_lanes),
                "else:",
                "    " + self.stored(self.result, "at", self.zero()),
                "    " + self.stored(self.result + 1, "at", nothing, score_lanes),
                weight,
            ]
        return []

    def after(self) -> list[str]:
        """After the last row of the item."""
        if self.output.reduce != "total":
            return []
        total = lanes(self.value)
        return [f"block.store(p_out_{self.result}, item * {total}{self.first}, sum_{self.number})"]
