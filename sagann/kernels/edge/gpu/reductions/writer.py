"""Writer: the lines that one output adds to a Triton kernel."""

from __future__ import annotations

from abc import ABC, abstractmethod

from sagann.kernels.edge.function import Output, Shape
from sagann.kernels.edge.gpu import lanes as moves
from sagann.kernels.edge.gpu.expressions import TYPES, Expressions
from sagann.kernels.edge.kinds import kind_of, lanes


class Writer(ABC):
    """Writes the lines of one output: its accumulators, their update and what becomes of them."""

    def __init__(self, writer: Expressions, output: Output, number: int, result: int) -> None:
        self.writer, self.output, self.number, self.result = writer, output, number, result
        value = writer.function.value(output.values[-1])
        self.kind = "f8" if kind_of(value) == "f8" else "f4"
        self.shape, self.num_lanes = writer.shape(value), lanes(value)
        self.value = writer.converted(value.name, self.kind)
        self.m_edge = writer.edges("m_edge", len(self.shape))

    def before(self) -> list[str]:
        """Before the first row; names what the later lines need of the program."""
        self.writer.offsets(self.shape)
        self.writer.mask(self.shape)
        return []

    def start(self) -> list[str]:
        """At the start of a row."""
        return []

    @abstractmethod
    def update(self) -> list[str]:
        """For every tile of edges."""

    def finish(self) -> list[str]:
        """At the end of a row: the edges of a tile come together."""
        return []

    def resume(self) -> list[str]:
        """At the end of a row of which earlier edges have given something: the edges of a tile join these."""
        return []

    def after(self) -> list[str]:
        """After the last row of the item."""
        return []

    def full(self, shape: Shape, number: str, lead: str = "EDGES") -> str:
        """A block of one number."""
        return f"tl.full({moves.block(lead, shape)}, {number}, {TYPES[self.kind]})"

    def stored(self, pointer: str, row: str, shape: Shape, num_lanes: int, value: str) -> str:
        """A line that writes a row."""
        at = f"{pointer} + {row} * {num_lanes} + {self.writer.offsets(shape)}"
        own = self.writer.mask(shape)
        return f"tl.store({at}, {value}, mask={own})" if own else f"tl.store({at}, {value})"

    def loaded(self, result: int, shape: Shape, num_lanes: int) -> str:
        """What a row holds so far."""
        pointer = f"p_was_{result}" if result in self.writer.shared else f"p_row_{result}"
        at = f"{pointer} + at * {num_lanes} + {self.writer.offsets(shape)}"
        own = self.writer.mask(shape)
        return f"tl.load({at}, mask={own}, other=0)" if own else f"tl.load({at})"
