"""Writers of the reductions in CPU kernels, by the name of the record (:mod:`sagann.kernels.edge.reductions`)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch

from sagann.kernels.edge.function import Output, lanes
from sagann.kernels.edge.source import OutputWriter

if TYPE_CHECKING:
    from sagann.kernels.edge.cpu.emit import Rows


class Writer(OutputWriter):
    """Writes the lines of one output. Where a pass continues, ``resume`` takes the place of ``start``."""

    def __init__(self, rows: Rows, output: Output, number: int, result: int) -> None:
        super().__init__(rows.function, output, number, result)
        self.rows = rows
        self.count, self.first = rows.lanes(self.value), rows.offset(self.value)
        self.name = rows.converted(self.value.name, self.kind)

    def registers(self, place: int) -> int:
        """Lanes in registers of the state's tensor at ``place``."""
        part = self.part(place)
        return 1 if part is None else self.rows.lanes(part)

    def filled(self, place: int, number: float) -> str:
        return self.rows.fill(self.kind, self.registers(place), number)

    def number_of(self, number: float) -> str:
        """One lane of a number, which spreads over all lanes."""
        return self.rows.fill(self.kind, 1, number)

    def resume(self) -> list[str]:
        return [f"{self.variable(place)} = {self.loaded(place)}" for place in range(len(self.state))]

    def finish(self) -> list[str]:
        return [line for place in range(len(self.state)) for line in self.replaced(place, self.variable(place))]

    def stored(self, place: int, value: str) -> str:
        """A line that writes a row of the state's tensor at ``place``."""
        return f"block.store(target_{self.result + place}, {self._at(place)}, {value})"

    def replaced(self, place: int, value: str) -> list[str]:
        """Lines that write a row of the state's tensor at ``place``.

        In a pass that continues, every tile of a row starts from the same earlier lane where there is one lane alone, so only
        the last tile writes that lane.
        """
        line = self.stored(place, value)
        return self.in_last_tile(line) if self.rows.form.continued and self.part_lanes(place) == 1 else [line]

    def in_last_tile(self, line: str) -> list[str]:
        """A line that runs once for each row, by the last of its tiles."""
        tiles = self.rows.layout.tiles
        if len(tiles) == 1:
            return [line]
        return [f"if first == {(len(tiles) - 1) * self.rows.layout.tile}:", "    " + line]

    def loaded(self, place: int, kind: str | None = None) -> str:
        """The row of the state's tensor at ``place``, as earlier edges have left it."""
        count, kind = self.registers(place), kind or self.kind
        load = self.rows.define(
            f"load_{kind}_{count}", f'block.loader("{kind}", {count}, {self.rows.layout.width})'
        )
        return f"{load}(target_{self.result + place}, {self._at(place)})"

    def _at(self, place: int) -> str:
        total = self.part_lanes(place)
        return f"at * {total}{self.first if total > 1 else ''}"


class _Sum(Writer):
    state = ("sum",)

    # A term added to the large sum of earlier edges would lose more than terms added to each other do.
    resume = Writer.start

    def update(self) -> list[str]:
        return [f"sum_{self.number} = {self.rows.operation('add')}(sum_{self.number}, {self.name})"]

    def finish(self) -> list[str]:
        found = self.variable(0)
        if self.rows.form.continued:
            found = f"{self.rows.operation('add')}({self.loaded(0)}, {found})"
        return self.replaced(0, found)


class _Total(_Sum):
    """The sum of an item's edges, added to that of the run in float64. The sums of all runs are added up afterwards."""

    def before(self) -> list[str]:
        return super().start()

    def start(self) -> list[str]:
        return []

    resume = finish = start

    def after(self) -> list[str]:
        row = f"p_out_{self.result}, run * {lanes(self.value)}{self.first}"
        load = f'block.loader("f8", {self.count}, {self.rows.layout.width})'
        known = f"{self.rows.define(f'load_f8_{self.count}', load)}({row})"
        found = self.rows.cast(f"sum_{self.number}", "f8")
        line = f"block.store({row}, {self.rows.operation('add')}({known}, {found}))"
        # Every tile has the same sum where it is one lane.
        return self.in_last_tile(line) if lanes(self.value) == 1 else [line]


class _EdgeRows(Writer):
    def update(self) -> list[str]:
        at = f"{self.rows.edge_local} * {lanes(self.value)}{self.first}"
        return [f"block.store(p_out_{self.result}, {at}, {self.name})"]


class _Maximum(Writer):
    state = ("best", "where")
    worst, beyond = -math.inf, "gt"

    def start(self) -> list[str]:
        positions = "i8" if self.kind == "f8" else "i4"
        return [
            f"best_{self.number} = {self.filled(0, self.worst)}",
            f"where_{self.number} = {self.rows.fill(positions, self.count, 0)}",
        ]

    def resume(self) -> list[str]:
        number, rows = self.number, self.rows
        kind = str(rows.form.into_id_kind)
        first = "begin" if rows.function.at == "dst" else "id_of_edge(p_edge_ids, begin)"
        known = self.loaded(0)
        return [
            f"where_{number} = {self.loaded(1, kind)}",
            f"absent = {rows.operation('lt')}(where_{number}, {rows.fill(kind, 1, 0)})",
            f"best_{number} = elementwise.where(absent, {self.filled(0, self.worst)}, {known})",
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
        if self.rows.form.continued:
            return super().finish()
        kind = self.rows.form.id_kind
        convert = self.rows.define(f"to_{kind}", f'elementwise.caster("{kind}")')
        ids = f"{self.rows.operation('add')}({convert}(where_{self.number}), begin)"
        return [
            "if end > begin:",
            "    " + self.stored(0, f"best_{self.number}"),
            "    " + self.stored(1, ids),
            "else:",
            "    " + self.stored(0, self.filled(0, 0.0)),
            "    " + self.stored(1, self.rows.fill(kind, self.count, -1)),
        ]


class _Minimum(_Maximum):
    worst, beyond = math.inf, "lt"


class _Moments(Writer):
    """Mean and spread are updated edge by edge."""

    state = ("spread", "mean", "count")
    resume = Writer.start

    def update(self) -> list[str]:
        spread, mean, count = (self.variable(place) for place in range(3))
        add, mul, sub = (self.rows.operation(name) for name in ("add", "mul", "sub"))
        one = self.number_of(1.0)
        return [
            f"{count} = {add}({count}, {one})",
            f"distance = {sub}({self.name}, {mean})",
            f"{mean} = {add}({mean}, {mul}(distance, {self.rows.operation('div')}({one}, {count})))",
            f"{spread} = {add}({spread}, {mul}(distance, {sub}({self.name}, {mean})))",
        ]

    def finish(self) -> list[str]:
        if not self.rows.form.continued:
            return super().finish()
        spread, mean, count = (self.variable(place) for place in range(3))
        add, mul, sub = (self.rows.operation(name) for name in ("add", "mul", "sub"))
        return [
            f"known = {self.loaded(2)}",
            f"distance = {sub}({mean}, {self.loaded(1)})",
            f"share = {self.rows.operation('div')}({count}, {add}(known, {count}))",
            f"apart = {mul}(distance, {mul}(distance, {mul}(share, known)))",
            *self.replaced(0, f"{add}({self.loaded(0)}, {add}({spread}, apart))"),
            *self.replaced(1, f"{add}({self.loaded(1)}, {mul}(distance, share))"),
            *self.replaced(2, f"{add}(known, {count})"),
        ]


class _Product(Writer):
    state = ("product", "zeros")

    def update(self) -> list[str]:
        (product, zeros), operation = map(self.variable, range(2)), self.rows.operation
        none, one = self.number_of(0.0), self.number_of(1.0)
        return [
            f"is_zero = {operation('eq')}({self.name}, {none})",
            f"{product} = {operation('mul')}({product}, elementwise.where(is_zero, {one}, {self.name}))",
            f"{zeros} = {operation('add')}({zeros}, elementwise.where(is_zero, {one}, {none}))",
        ]


class _Softmax(Writer):
    """One pass with a running maximum and denominator. ``sum`` is the mean times the denominator."""

    state = ("sum", "top", "weight")

    def lowest(self) -> str:
        """A block of the least finite number, for scores."""
        return self.filled(1, float(torch.finfo(torch.float64 if self.kind == "f8" else torch.float32).min))

    def per_head(self, value: str) -> str:
        """A block like the score's, spread over the value's lanes."""
        if self.rows.tile:
            return value
        shape = (*self.score.shape, *(1,) * (len(self.value.shape) - len(self.score.shape)))
        return self.rows.spread(value, shape, self.value.shape)

    def start(self) -> list[str]:
        return [
            f"top_{self.number} = {self.lowest()}",
            f"weight_{self.number} = {self.filled(2, 0.0)}",
            f"sum_{self.number} = {self.filled(0, 0.0)}",
        ]

    def resume(self) -> list[str]:
        # Earlier edges are weighed anew only where a later score is larger.
        known_top = f"{self.rows.operation('maximum')}({self.lowest()}, {self.loaded(1)})"
        return [
            *self.start(),
            f"known_top_{self.number} = {known_top}",
            f"top_{self.number} = known_top_{self.number}",
        ]

    def joined(self) -> list[str]:
        """Lines that add the earlier results to sum and weight."""
        number, operation = self.number, self.rows.operation
        add, mul, sub, exp = operation("add"), operation("mul"), operation("sub"), operation("exp")
        heavy, known_top = f"heavy_{number}", f"known_top_{number}"
        # Where all scores so far are -inf the mean is 0 / 0, but has no weight.
        none = f"{operation('eq')}(heavy, {self.number_of(0.0)})"
        return [
            f"{heavy} = {self.loaded(2)}",
            f"if elementwise.any_lane({operation('ne')}(top_{number}, {known_top})):",
            f"    {heavy} = {mul}({heavy}, {exp}({sub}({known_top}, top_{number})))",
            f"weight_{number} = {add}(weight_{number}, {heavy})",
            f"heavy = {self.per_head(heavy)}",
            f"earlier = elementwise.where({none}, {self.filled(0, 0.0)}, {mul}({self.loaded(0)}, heavy))",
            f"sum_{number} = {add}(sum_{number}, earlier)",
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
        top, weight = self.variable(1), self.variable(2)
        mean = f"{self.rows.operation('div')}(sum_{self.number}, {self.per_head(weight)})"
        if self.rows.form.continued:
            return [*self.joined(), *self.replaced(0, mean), *self.replaced(1, top), *self.replaced(2, weight)]
        nothing = self.filled(1, -math.inf)
        return [
            "if end > begin:",
            "    " + self.stored(0, mean),
            "    " + self.stored(1, top),
            "else:",
            "    " + self.stored(0, self.filled(0, 0.0)),
            "    " + self.stored(1, nothing),
            self.stored(2, weight),
        ]


WRITERS: Mapping[str, type[Writer]] = {
    "sum": _Sum,
    "total": _Total,
    "edge": _EdgeRows,
    "max": _Maximum,
    "min": _Minimum,
    "softmax": _Softmax,
    "moments": _Moments,
    "product": _Product,
}
