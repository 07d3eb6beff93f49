"""Loads and operations of a Triton kernel: one line per input and per operation.

A value that depends on parameters alone is computed once per program, a value that depends on the group's own rows once per
row, and any other value for a tile of edges at a time. Blocks are [1, ...] or [EDGES, ...].
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from sagann.kernels.edge import random
from sagann.kernels.edge.function import BINARY, COMPARISONS, UNARY, EdgeFunction, Input, Op, Shape, kind_of, lanes
from sagann.kernels.edge.gpu import layout as moves
from sagann.kernels.edge.gpu.layout import Layout, padded, shared_results
from sagann.kernels.edge.source import edge_names, float_text, operand_kind

TYPES = {"f4": "tl.float32", "f8": "tl.float64", "i4": "tl.int32", "i8": "tl.int64", "b1": "tl.int1"}
# By op, the result from the operands, in order.
_FORMS = {
    "neg": "-{0}",
    "abs": "tl.abs({0})",
    "exp": "device.exp({0})",
    "expm1": "device.expm1({0})",
    "log": "tl.log({0})",
    "log1p": "device.log1p({0})",
    "sqrt": "device.sqrt({0})",
    "rsqrt": "1.0 / device.sqrt({0})",
    "reciprocal": "1.0 / {0}",
    "tanh": "device.tanh({0})",
    "sigmoid": "device.sigmoid({0})",
    "erf": "tl.erf({0})",
    "sign": "device.sign({0})",
    "floor": "tl.floor({0})",
    "sin": "tl.sin({0})",
    "cos": "tl.cos({0})",
    "detach": "{0}",
    "not": "{0} == 0",
    "add": "{0} + {1}",
    "sub": "{0} - {1}",
    "mul": "{0} * {1}",
    "div": "tl.div_rn({0}, {1})",
    "pow": "device.power({0}, {1})",
    "maximum": "device.maximum({0}, {1})",
    "minimum": "device.minimum({0}, {1})",
    "lt": "{0} < {1}",
    "le": "{0} <= {1}",
    "gt": "{0} > {1}",
    "ge": "{0} >= {1}",
    "eq": "{0} == {1}",
    "ne": "{0} != {1}",
    "and": "{0} & {1}",
    "or": "{0} | {1}",
    "where": "tl.where({0}, {1}, {2})",
}
# By a constant exponent, the power of the base.
_POWERS = {
    2: "{0} * {0}",
    3: "{0} * {0} * {0}",
    1: "{0}",
    0.5: "device.sqrt({0})",
    -0.5: "1.0 / device.sqrt({0})",
    -1: "1.0 / {0}",
}
# Levels: lines that run once per program, per row, or per tile of edges.
PROGRAM, ROW, EDGE = range(3)


class Expressions:
    """Collects the lines that load and compute, each at the highest level that it depends on."""

    def __init__(self, function: EdgeFunction, layout: Layout, in_order: frozenset[str], continued: bool) -> None:
        self.function, self.layout, self.in_order, self.continued = function, layout, in_order, continued
        self.edge_local, self.edge_global = edge_names(continued=continued)
        self.lines: list[list[str]] = [[], [], []]
        self.levels: dict[str, int] = {}
        self.named: dict[str, str] = {}

    def shape(self, value: Input | Op) -> Shape:
        """Shape of a row in registers: a tile of features, or all of them."""
        if not self.layout.tile:
            return value.shape
        return () if lanes(value) == 1 else (self.layout.tile,)

    def lead(self, level: int) -> str:
        """First dimension of a block at that level."""
        return "EDGES" if level == EDGE else "1"

    def name(self, stem: str, text: str) -> str:
        """Name of an expression that the program computes once."""
        if text not in self.named:
            self.named[text] = f"{stem}_{len(self.named)}"
            self.lines[PROGRAM].append(f"{self.named[text]} = {text}")
        return self.named[text]

    def offsets(self, shape: Shape) -> str:
        """Name of every lane's position in a row."""
        if self.layout.tile and shape:
            return "o_feature"
        return self.name("o", moves.offsets(shape))

    def mask(self, shape: Shape) -> str | None:
        """Name of the mask of lanes that are no padding; None where all are."""
        if self.layout.tile and shape:
            return "m_feature" if self.layout.num_features % self.layout.tile else None
        text = moves.mask(shape)
        return None if text is None else self.name("m", text)

    def aligned(self, text: str, rank: int, target: int, *, trailing: bool = False) -> str:
        """A block of rows of one rank as rows of a higher rank, with new dimensions to the left, or trailing."""
        if rank == target:
            return text
        new, old = ["None"] * (target - rank), [":"] * rank
        return f"{text}[{', '.join([':', *(old + new if trailing else new + old)])}]"

    def edges(self, text: str, rank: int) -> str:
        """A vector over the edges beside rows of that rank."""
        return self.aligned(text, 0, rank)

    def masks(self, shape: Shape, level: int) -> str | None:
        """The mask of a load or a store; None where all lanes take part."""
        terms = [self.edges("m_edge", len(shape))] if level == EDGE else []
        own = self.mask(shape)
        return " & ".join([*terms, *([own] if own else [])]) or None

    def load(self, given: Input) -> None:
        """One line per input."""
        shape = self.shape(given)
        of_edge = "edge" if given.name in self.in_order or self.function.at == "dst" else self.edge_local
        row = {self.function.at: "own", "param": None, "edge": of_edge}.get(given.side, "other")
        level = {None: PROGRAM, "own": ROW}.get(row, EDGE)
        at = f"p_{given.name}"
        if level == ROW:
            at += f" + own * stride_{given.name}"
        elif level == EDGE:
            at += " + " + self.edges(f"({row} * stride_{given.name})", len(shape))
        if shape or level != EDGE:
            at += f" + {self.offsets(shape)}"
        masks = self.masks(shape, level)
        loaded = f"tl.load({at}, mask={masks}, other=0)" if masks else f"tl.load({at})"
        kind = kind_of(given)
        if kind == "b1":
            loaded += " != 0"
        elif given.dtype not in (torch.float32, torch.float64):
            loaded += f".to({TYPES[kind]})"
        self.lines[level].append(f"v_{given.name} = {loaded}")
        self.levels[given.name] = level

    def compute(self, op: Op) -> None:
        """One line per op, no deeper than it must be."""
        level = max([PROGRAM, *(self.levels[arg] for arg in op.args if isinstance(arg, str))])
        level = EDGE if op.op in ("random", "edge_id") else level
        self.levels[op.name] = level
        self.lines[level].append(f"v_{op.name} = {self.expression(op, level)}")

    def expression(self, op: Op, level: int) -> str:
        """The right-hand side of an op."""
        shape, kind = self.shape(op), kind_of(op)
        if op.op in UNARY or op.op in BINARY or op.op == "where":
            return self.elementwise(op)
        if op.op == "cast":
            return self.converted(str(op.args[0]), kind)
        if op.op == "full":
            return f"tl.full({moves.block('1', shape)}, {self.number(op.args[0], kind)}, {TYPES[kind]})"
        if op.op == "edge_id":
            return self.edge_global
        if op.op == "random":
            p, salt = op.attrs["p"], op.attrs["salt"]
            edge_id = self.edges(self.edge_global, len(shape))
            salted = salt * random.SALT_STEP & random.MASK
            numbers = f"{salted}, {random.threshold(p)}, {random.scale(p)!r}, {TYPES[kind]}"
            return f"device.draw({edge_id}, {self.offsets(shape)}, seed, {numbers})"
        value = self.converted(str(op.args[0]), kind)
        source = self.shape(self.function.value(str(op.args[0])))
        own_level = self.levels[str(op.args[0])]
        if op.op == "broadcast":
            value = self.aligned(value, len(source), len(shape))
            return f"tl.broadcast_to({value}, {moves.block(self.lead(own_level), shape)})"
        if self.layout.tile:
            return value
        return self.moved(op, value, level) if op.op != "cat" else self.joined(op, level)

    def elementwise(self, op: Op) -> str:
        """An op that computes lane by lane."""
        kind = operand_kind(self.function, op)
        operands = [self.operand(op, position, kind) for position in range(len(op.args))]
        form = _FORMS[op.op]
        if op.op == "pow" and not isinstance(op.args[1], str):
            form = _POWERS.get(float(op.args[1]), form)
        if op.op == "div" and kind != "f4":
            # Only in float32 is Triton's own division coarse.
            form = "{0} / {1}"
        return form.format(*operands)

    def operand(self, op: Op, position: int, kind: str) -> str:
        """An argument in the kind and rank that the op computes in."""
        arg, rank = op.args[position], len(self.shape(op))
        if not isinstance(arg, str):
            number = self.number(arg, kind)
            # A bare number has no type for these ops, and Triton would round a compared float64 to float32.
            needs_block = op.op in ("where", "pow", "div", "maximum", "minimum")
            needs_block = needs_block or (op.op in COMPARISONS and kind == "f8")
            block = "[" + ", ".join(["1"] * (rank + 1)) + "]"
            return f"tl.full({block}, {number}, {TYPES[kind]})" if needs_block else number
        value = self.function.value(arg)
        text = f"v_{arg}" if op.op == "where" and position == 0 else self.converted(arg, kind)
        return self.aligned(text, len(self.shape(value)), rank)

    def number(self, number: float | int | bool | str, kind: str) -> str:
        """A constant."""
        if kind == "b1":
            return str(bool(number))
        if kind.startswith("i"):
            return str(int(number))
        return float_text(float(number))

    def converted(self, name: str, kind: str) -> str:
        """A value in another kind."""
        if kind_of(self.function.value(name)) == kind:
            return f"v_{name}"
        return f"(v_{name} != 0)" if kind == "b1" else f"v_{name}.to({TYPES[kind]})"

    def moved(self, op: Op, value: str, level: int) -> str:
        """Ops that move lanes or reduce them."""
        source, lead = self.function.value(str(op.args[0])).shape, self.lead(level)
        if op.op == "reshape":
            index = moves.reshape_index(source, op.shape, self.offsets(op.shape))
            index = None if index is None else self.name("i", index)
            return self.masked(kind_of(op), moves.reshaped, value, lead, source, op.shape, index)
        if op.op == "permute":
            return f"tl.permute({value}, {[0, *(dim + 1 for dim in op.attrs['dims'])]})"
        if op.op == "slice":
            if source == op.shape:
                return value
            dim, start, step = op.attrs["dim"], op.attrs["start"], op.attrs["step"]
            index = self.name("i", moves.slice_index(source, dim, start, step, op.shape[dim]))
            return self.masked(kind_of(op), moves.gathered, value, lead, op.shape, dim, index)
        return self.reduced(op, value)

    def masked(self, kind: str, form: Callable[..., str], value: str, *args: object) -> str:
        """The move ``form`` of lanes; masks move as bytes."""
        if kind != "b1":
            return form(value, *args)
        return f"({form(f'{value}.to(tl.int8)', *args)} != 0)"

    def joined(self, op: Op, level: int) -> str:
        """A concatenation: every part is gathered to its place, and each lane is picked from its part."""
        dim, kind, lead = op.attrs["dim"], kind_of(op), self.lead(level)
        size, text, begin = padded(op.shape)[dim], "", 0
        for arg in op.args:
            part = self.function.value(str(arg))
            value = self.converted(part.name, kind)
            if self.levels[part.name] != level:
                value = f"tl.broadcast_to({value}, {moves.block(lead, part.shape)})"
            lane = f"tl.arange(0, {size}) - {begin}"
            place = f"tl.minimum(tl.maximum({lane}, 0), {part.shape[dim] - 1})"
            index = self.name("i", f"({place}){moves.along(len(op.shape), dim)}")
            fetched = self.masked(kind, moves.gathered, value, lead, op.shape, dim, index)
            if begin:
                own = self.name("m", f"(tl.arange(0, {size}) >= {begin}){moves.along(len(op.shape), dim)}")
                fetched = f"tl.where({own}, {fetched}, {text})"
            text, begin = fetched, begin + part.shape[dim]
        return text

    def reduced(self, op: Op, value: str) -> str:
        """A reduction over feature dimensions, without padding."""
        source, kind = self.function.value(str(op.args[0])).shape, kind_of(op)
        form = {"sum": "tl.sum", "amax": "device.amax", "amin": "device.amin"}[op.op]
        dims = sorted(op.attrs["dims"], reverse=True)
        own = self.mask(source)
        if own and any(padded(source)[dim] != source[dim] for dim in dims):
            value = f"tl.where({own}, {value}, {self.neutral(op.op, kind)})"
        for dim in dims:
            value = f"{form}({value}, {dim + 1})"
        return value

    def neutral(self, reduce: str, kind: str) -> str:
        """The number that leaves a reduction as it is."""
        if reduce == "sum":
            return "0"
        if kind.startswith("f"):
            return 'float("-inf")' if reduce == "amax" else 'float("inf")'
        bounds = torch.iinfo(torch.int32 if kind == "i4" else torch.int64)
        return str(bounds.min if reduce == "amax" else bounds.max)

    @property
    def shared(self) -> list[int]:
        """Results that a continued pass has to read from a copy."""
        return shared_results(self.function, self.layout.num_tiles) if self.continued else []
