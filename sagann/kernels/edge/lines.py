"""Lines of generated sources: what the dialects that generate kernels share."""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable

from sagann.kernels.edge.function import COMPARISONS, EdgeFunction, Input, Op, Output
from sagann.kernels.edge.kinds import kind_of, lanes

ITEM = ("first_row", "last_row", "first_edge", "last_edge", "slot")
"Fields of a work item, in order."


def indented(depth: int, lines: Iterable[str]) -> list[str]:
    """The lines, ``depth`` levels further to the right."""
    return ["    " * depth + line for line in lines]


def mention(lines: Iterable[str], name: str) -> bool:
    """Whether lines mention a variable. A longer name that contains ``name`` does not count."""
    found = re.compile(rf"\b{re.escape(name)}\b")
    return any(found.search(line) for line in lines)


def float_text(number: float) -> str:
    """A floating number as source, infinity and NaN included."""
    return repr(number) if math.isfinite(number) else f'float("{number}")'


def edge_names(*, continued: bool) -> tuple[str, str]:
    """Variables of an edge's position and of its id. The two differ in chunks, over which a pass continues."""
    return ("edge_local", "edge_global") if continued else ("edge_id", "edge_id")


def operand_kind(function: EdgeFunction, op: Op) -> str:
    """The kind of lanes that an element-wise op computes in."""
    if op.op in ("and", "or", "not"):
        return "b1"
    kinds = [kind_of(function.value(arg)) for arg in op.args if isinstance(arg, str)]
    # The mask of a where is converted to no other kind.
    kinds = kinds[1:] if op.op == "where" else kinds
    kinds = kinds if op.op in COMPARISONS else [*kinds, kind_of(op)]
    return max(kinds, key=["b1", "i4", "i8", "f4", "f8"].index)


class OutputWriter(ABC):
    """Writes the lines that one output adds to a kernel: its state in registers, the update, and the result.

    The output is the function's ``number``-th. Its first tensor is the ``result``-th of the pass.
    """

    state: tuple[str, ...] = ()
    "Stems of the variables that hold the state, in the order of the reduction's tensors."

    def __init__(self, function: EdgeFunction, output: Output, number: int, result: int) -> None:
        self.output, self.number, self.result = output, number, result
        self.value, self.score = function.value(output.values[-1]), function.value(output.values[0])
        self.kind = "f8" if kind_of(self.value) == "f8" else "f4"

    def part(self, place: int) -> Input | Op | None:
        """The value with the feature shape of the state's tensor at ``place``; None for a tensor of single numbers."""
        return {"value": self.value, "score": self.score, "row": None}[self.output.reduction.state[place].of]

    def part_lanes(self, place: int) -> int:
        """Lanes in memory of a row of the state's tensor at ``place``."""
        part = self.part(place)
        return 1 if part is None else lanes(part)

    def variable(self, place: int) -> str:
        """Name of the variable that holds the state's tensor at ``place``."""
        return f"{self.state[place]}_{self.number}"

    @abstractmethod
    def filled(self, place: int, number: float) -> str:
        """An expression for a variable of the state whose lanes are all ``number``."""

    def before(self) -> list[str]:
        """Lines before the first row of the work item."""
        return []

    def start(self) -> list[str]:
        """Lines at the start of a row: the state is neutral."""
        neutral = [part.neutral for part in self.output.reduction.state]
        return [
            f"{self.variable(place)} = {self.filled(place, neutral[place])}" for place in range(len(self.state))
        ]

    @abstractmethod
    def update(self) -> list[str]:
        """Lines for every edge, or every tile of edges."""

    def finish(self) -> list[str]:
        """Lines at the end of a row."""
        return []

    def resume(self) -> list[str]:
        """Lines that take up a row's earlier results, where a pass continues."""
        return []

    def after(self) -> list[str]:
        """Lines after the last row of the work item."""
        return []
