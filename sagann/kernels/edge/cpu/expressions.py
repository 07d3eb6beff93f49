"""One line of generated source per value: expressions over blocks, and the helpers that they name.

Every value of an edge function becomes a variable ``v_<name>``. Helpers (a load of 41 float32, a shuffle) are made
when the generated module is imported, and named at its top: :attr:`Expressions.definitions`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from sagann.kernels.edge.cpu.layout import Layout
from sagann.kernels.edge.function import BINARY, UNARY, EdgeFunction, Input, Op
from sagann.kernels.edge.kinds import kind_of, lanes
from sagann.kernels.edge.lines import float_text, operand_kind

# Exponents that are roots to PyTorch: of minus infinity NaN, where the C library's pow gives infinity.
_ROOTS: dict[object, str] = {0.5: "sqrt", -0.5: "rsqrt"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Form:
    """How the arrays of a pass lie in memory."""

    index_kind: str
    "Integer type of the ids of the other endpoint: i2, i4 or i8."
    id_kind: str
    "Integer type of edge ids: i4 or i8."
    stored: tuple[str, ...]
    "Kind of every input's array."
    in_order: frozenset[str] = frozenset()
    "Edge inputs that lie in the order of the pass; the others lie in CSC order."
    into_id_kind: str | None = None
    "Where the pass continues from earlier results, the kind of their ids of edges; None where it starts anew."
    offset_kind: str = "i8"
    "Integer type of the offsets of the rows: i4 or i8."

    @property
    def continued(self) -> bool:
        """Whether the pass continues from earlier results."""
        return self.into_id_kind is not None


class Expressions:
    """Expressions for the values of a function, for one tile width (0: resident rows)."""

    def __init__(self, function: EdgeFunction, layout: Layout, width: int, form: Form) -> None:
        self.function, self.layout, self.tile, self.form = function, layout, width, form
        self.definitions: dict[str, str] = {}
        # A chunk's edges have a position in the chunk and an id beyond it; elsewhere the two are one.
        self.edge_local, self.edge_global = (
            ("edge_local", "edge_global") if form.continued else ("edge_id", "edge_id")
        )

    # Widths and helpers of the generated module.

    def lanes(self, value: Input | Op) -> int:
        """Lanes of a value in registers."""
        count = lanes(value)
        return self.tile if self.tile and count > 1 else count

    def offset(self, value: Input | Op) -> str:
        """What is added to the place of a value's first lane in memory: where the tile begins, also one of one lane."""
        return " + first" if self.tile and lanes(value) > 1 else ""

    def define(self, name: str, value: str) -> str:
        """Name a helper at the top of the generated module."""
        name = name.replace(".", "_").replace("-", "m").replace("+", "")
        self.definitions[name] = value
        return name

    def fill(self, kind: str, count: int, number: float) -> str:
        """An expression for a block of one number."""
        short = f"{number:g}"
        text = {"inf": "inf", "-inf": "minus_inf"}.get(short) or (short if float(short) == number else repr(number))
        made = f'block.filler("{kind}", {count}, {self.layout.width}, {float_text(number)})'
        return self.define(f"fill_{kind}_{count}_{text}", made) + "()"

    def pick(self, picks: np.ndarray, value: str, source_lanes: int) -> str:
        """An expression that rearranges lanes."""
        flat = [int(pick) for pick in np.ravel(picks)]
        if flat == list(range(source_lanes)):
            return value
        name = self.define_list("pick", f"shuffle.picker({flat}, {self.layout.width})")
        return f"{name}({value})"

    def define_list(self, stem: str, value: str) -> str:
        """Name a helper that has no short name of its own."""
        for name, present in self.definitions.items():
            if present == value:
                return name
        count = sum(name.startswith(f"{stem}_{self.tile}_") for name in self.definitions)
        return self.define(f"{stem}_{self.tile}_{count}", value)

    def spread(self, value: str, source: tuple[int, ...], target: tuple[int, ...]) -> str:
        """An operand of shape ``source`` where ``target`` is computed; one lane spreads by itself."""
        if math.prod(source) in (1, math.prod(target)):
            return value
        picks = np.broadcast_to(np.arange(math.prod(source)).reshape(source), target)
        return self.pick(picks, value, math.prod(source))

    def expression(self, op: Op) -> str:
        """The right-hand side of an op."""
        if op.op in UNARY:
            return f"{self.operation(op.op)}({self.operands(op)[0]})"
        if op.op == "pow" and op.args[1] in _ROOTS:
            return f"{self.operation(_ROOTS[op.args[1]])}({self.operands(op)[0]})"
        if op.op in BINARY or op.op == "where":
            return f"{self.operation(op.op)}({', '.join(self.operands(op))})"
        if op.op == "cast":
            return self.converted(str(op.args[0]), kind_of(op))
        if op.op == "full":
            return self.number(op.args[0], kind_of(op), self.lanes(op))
        if op.op == "edge_id":
            return f"block.as_scalar({self.edge_global})"
        if op.op == "random":
            p, salt = op.attrs["p"], op.attrs["salt"]
            made = f'access.drawer("{kind_of(op)}", {self.lanes(op)}, {self.layout.width}, {p!r}, {salt})'
            return f"{self.define_list('draw', made)}({self.edge_global}, seed, 0{self.offset(op)})"
        return self.moved(op)

    def operation(self, name: str) -> str:
        """The intrinsic of an op."""
        if name == "where":
            return "elementwise.where"
        return self.define(f"op_{name}", f'elementwise.OPERATIONS["{name}"]')

    def operands(self, op: Op) -> list[str]:
        """Arguments in the kind and shape that the op computes in."""
        target = operand_kind(self.function, op)
        operands = []
        for position, arg in enumerate(op.args):
            if not isinstance(arg, str):
                operands.append(self.number(arg, target))
                continue
            value = self.function.value(arg)
            converted = f"v_{arg}" if op.op == "where" and position == 0 else self.converted(arg, target)
            operands.append(converted if self.tile else self.spread(converted, value.shape, op.shape))
        return operands

    def number(self, number: float | str, kind: str, count: int = 1) -> str:
        """A constant; as an operand one lane."""
        return self.fill(kind, count, float(number) if kind.startswith("f") else int(number))

    def converted(self, name: str, kind: str) -> str:
        """A value in another kind."""
        present = kind_of(self.function.value(name))
        return f"v_{name}" if present == kind else self.cast(f"v_{name}", kind)

    def cast(self, value: str, kind: str) -> str:
        """An expression that converts lanes to a kind."""
        return self.define(f"to_{kind}", f'elementwise.caster("{kind}")') + f"({value})"

    def moved(self, op: Op) -> str:
        """Ops that move lanes or reduce them."""
        source = self.function.value(str(op.args[0]))
        value = self.converted(source.name, kind_of(op))
        if self.tile:
            if op.op == "broadcast" and self.lanes(source) != self.lanes(op):
                return self.pick(np.zeros(self.lanes(op), int), value, 1)
            return value
        positions = np.arange(lanes(source)).reshape(source.shape)
        if op.op == "reshape":
            return value
        if op.op == "broadcast":
            return self.pick(np.broadcast_to(positions, op.shape), value, lanes(source))
        if op.op == "permute":
            return self.pick(positions.transpose(op.attrs["dims"]), value, lanes(source))
        if op.op == "slice":
            dim, start, step = op.attrs["dim"], op.attrs["start"], op.attrs["step"]
            picks = positions.take(range(start, start + step * op.shape[dim], step), dim)
            return self.pick(picks, value, lanes(source))
        return self.joined(op) if op.op == "cat" else self.reduced(op, source, value)

    def joined(self, op: Op) -> str:
        """A concatenation: side by side, two at a time, then in order."""
        parts = [self.function.value(str(arg)) for arg in op.args]
        value, count = self.converted(parts[0].name, kind_of(op)), lanes(parts[0])
        positions = [np.arange(count).reshape(parts[0].shape)]
        for part in parts[1:]:
            picks = list(range(count + lanes(part)))
            name = self.define_list("join", f"shuffle.joiner({picks}, {self.layout.width})")
            value = f"{name}({value}, {self.converted(part.name, kind_of(op))})"
            positions.append(np.arange(count, count + lanes(part)).reshape(part.shape))
            count += lanes(part)
        return self.pick(np.concatenate(positions, op.attrs["dim"]), value, count)

    def reduced(self, op: Op, source: Input | Op, value: str) -> str:
        """A reduction over feature dimensions, brought together first where they are apart."""
        dims = sorted(op.attrs["dims"])
        rank = len(source.shape)
        if not dims:
            return value
        positions = np.arange(lanes(source)).reshape(source.shape)
        if dims != list(range(dims[0], dims[-1] + 1)):
            kept = [dim for dim in range(rank) if dim not in dims]
            value = self.pick(positions.transpose([*kept, *dims]), value, lanes(source))
            outer, inner = math.prod(source.shape[dim] for dim in kept), 1
        else:
            outer, inner = math.prod(source.shape[: dims[0]]), math.prod(source.shape[dims[-1] + 1 :])
        size = math.prod(source.shape[dim] for dim in dims)
        operation = {"sum": "add", "amax": "maximum", "amin": "minimum"}[op.op]
        made = f'shuffle.reducer("{operation}", {outer}, {size}, {inner}, {self.layout.width})'
        return f"{self.define_list('reduce', made)}({value})"
