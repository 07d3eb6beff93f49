"""Writer: the lines that one output adds to a CPU kernel."""

from __future__ import annotations

from abc import ABC, abstractmethod

from sagann.kernels.edge.cpu.expressions import Expressions
from sagann.kernels.edge.function import Output
from sagann.kernels.edge.kinds import kind_of, lanes


class Writer(ABC):
    """Writes the lines of one output: its accumulators, their update and what becomes of them."""

    def __init__(self, rows: Expressions, output: Output, number: int, result: int) -> None:
        self.rows, self.output, self.number, self.result = rows, output, number, result
        self.value = rows.function.value(output.values[-1])
        self.count, self.kind = rows.lanes(self.value), "f8" if kind_of(self.value) == "f8" else "f4"
        self.first = rows.offset(self.value)
        self.name = rows.converted(self.value.name, self.kind)

    def before(self) -> list[str]:
        """Before the first row."""
        return []

    def start(self) -> list[str]:
        """At the start of a row."""
        return []

    def resume(self) -> list[str]:
        """At the start of a row of which earlier edges have given something."""
        return []

    @abstractmethod
    def update(self) -> list[str]:
        """For every edge."""

    def finish(self) -> list[str]:
        """At the end of a row."""
        return []

    def after(self) -> list[str]:
        """After the last row of the item."""
        return []

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

    def loaded(self, result: int, kind: str, count: int, total: int) -> str:
        """What a row of a result holds so far: ``count`` lanes in registers, ``total`` in memory."""
        name = f"load_{kind}_{count}"
        load = self.rows.define(name, f'block.loader("{kind}", {count}, {self.rows.layout.width})')
        return f"{load}(target_{result}, at * {total}{self.first if total > 1 else ''})"
