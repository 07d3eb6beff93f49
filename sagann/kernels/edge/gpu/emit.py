"""From an edge function to the source of a Triton kernel: one line per operation, readable in the cache folder.

A program takes one work item (axis 0) and one tile of features (axis 1). What depends on parameters alone is
computed once per program, what depends on the group's own rows once per row, the rest for a tile of edges at a time:
blocks are [1, ...] or [EDGES, ...].
"""

from __future__ import annotations

import math

import torch

from sagann.kernels.edge import random
from sagann.kernels.edge.function import BINARY, COMPARISONS, UNARY, EdgeFunction, Input, Op, Output, Shape
from sagann.kernels.edge.gpu import lanes as moves
from sagann.kernels.edge.gpu.layout import Layout, choose_layout, padded, shared_results
from sagann.kernels.edge.kinds import common_kind, kind_of, lanes, results_of

TYPES = {"f4": "tl.float32", "f8": "tl.float64", "i4": "tl.int32", "i8": "tl.int64", "b1": "tl.int1"}
# By op: how its operands, in order, become its result.
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
    "relu": "device.relu({0})",
    "erf": "tl.erf({0})",
    "sign": "device.sign({0})",
    "floor": "tl.floor({0})",
    "sin": "tl.sin({0})",
    "cos": "tl.cos({0})",
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
# What an exponent that stands in the source comes down to.
_POWERS = {2: "{0} * {0}", 3: "{0} * {0} * {0}", 1: "{0}", 0.5: "device.sqrt({0})", -1: "1.0 / {0}"}
# Levels: computed once per program, per row, per tile of edges.
_PROGRAM, _ROW, _EDGE = range(3)


def emit(function: EdgeFunction, in_order: frozenset[str] = frozenset(), *, continued: bool = False) -> str:
    """The source of a function's kernel.

    Args:
        function: verified, and supported (:func:`sagann.kernels.edge.gpu.layout.supports`).
        in_order: edge inputs that lie in the order of the pass; the others lie in CSC order.
        continued: whether rows are merged into earlier results, and rows without edges left as they are.
    """
    return _Writer(function, choose_layout(function), in_order, continued).source()


class _Writer:
    """Writes a kernel."""

    def __init__(self, function: EdgeFunction, layout: Layout, in_order: frozenset[str], continued: bool) -> None:
        self.function, self.layout, self.in_order, self.continued = function, layout, in_order, continued
        # A chunk's edges have a position in the chunk and an id beyond it; elsewhere the two are one.
        self.edge_local, self.edge_global = ("edge_local", "edge_global") if continued else ("edge_id", "edge_id")
        self.lines: list[list[str]] = [[], [], []]
        self.levels: dict[str, int] = {}
        self.named: dict[str, str] = {}

    # Blocks.

    def shape(self, value: Input | Op) -> Shape:
        """Shape of a row in registers: a tile of features, or all of them."""
        if not self.layout.tile:
            return value.shape
        return () if lanes(value) == 1 else (self.layout.tile,)

    def lead(self, level: int) -> str:
        """Text of a block's first dimension."""
        return "EDGES" if level == _EDGE else "1"

    def name(self, stem: str, text: str) -> str:
        """A name for something that the program computes once."""
        if text not in self.named:
            self.named[text] = f"{stem}_{len(self.named)}"
            self.lines[_PROGRAM].append(f"{self.named[text]} = {text}")
        return self.named[text]

    def offsets(self, shape: Shape) -> str:
        """Name of every lane's position in a row."""
        if self.layout.tile and shape:
            return "o_feature"
        return self.name("o", moves.offsets(shape))

    def mask(self, shape: Shape) -> str | None:
        """Name of which lanes are no padding; None where all are."""
        if self.layout.tile and shape:
            return "m_feature" if self.layout.num_features % self.layout.tile else None
        text = moves.mask(shape)
        return None if text is None else self.name("m", text)

    def aligned(self, text: str, rank: int, target: int, *, trailing: bool = False) -> str:
        """A block of rows of one rank as rows of a higher one, features to the right (or to the left)."""
        if rank == target:
            return text
        new, old = ["None"] * (target - rank), [":"] * rank
        return f"{text}[{', '.join([':', *(old + new if trailing else new + old)])}]"

    def edges(self, text: str, rank: int) -> str:
        """A vector over the edges beside rows of that rank."""
        return self.aligned(text, 0, rank)

    def masks(self, shape: Shape, level: int) -> str | None:
        """Text of the lanes that are loaded or stored; None where all are."""
        terms = [self.edges("m_edge", len(shape))] if level == _EDGE else []
        own = self.mask(shape)
        return " & ".join([*terms, *([own] if own else [])]) or None

    # Loads.

    def load(self, given: Input) -> None:
        """One line per input."""
        shape = self.shape(given)
        of_edge = "edge" if given.name in self.in_order or self.function.at == "dst" else self.edge_local
        row = {self.function.at: "row", "param": None, "edge": of_edge}.get(given.side, "other")
        level = {None: _PROGRAM, "row": _ROW}.get(row, _EDGE)
        at = f"p_{given.name}"
        if level == _ROW:
            at += f" + row * stride_{given.name}"
        elif level == _EDGE:
            at += " + " + self.edges(f"({row} * stride_{given.name})", len(shape))
        if shape or level != _EDGE:
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

    # Operations.

    def compute(self, op: Op) -> None:
        """One line per op, no deeper than it must be."""
        level = max([_PROGRAM, *(self.levels[arg] for arg in op.args if isinstance(arg, str))])
        level = _EDGE if op.op in ("random", "edge_id") else level
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
        kinds = [kind_of(self.function.value(arg)) for arg in op.args if isinstance(arg, str)]
        kinds = kinds[1:] if op.op == "where" else kinds
        if op.op not in COMPARISONS:
            kinds.append(kind_of(op))
        kind = "b1" if op.op in ("and", "or", "not") else common_kind(kinds)
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
            # Where no tensor says the type, or a function wants one.
            needs_block = op.op in ("where", "pow", "div", "maximum", "minimum")
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
        number = float(number)
        return repr(number) if math.isfinite(number) else f'float("{number}")'

    def converted(self, name: str, kind: str) -> str:
        """A value in another kind."""
        if kind_of(self.function.value(name)) == kind:
            return f"v_{name}"
        return f"(v_{name} != 0)" if kind == "b1" else f"v_{name}.to({TYPES[kind]})"

    # Lanes.

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

    def masked(self, kind: str, form: object, value: str, *args: object) -> str:
        """A move of lanes; masks move as bytes."""
        assert callable(form)
        if kind != "b1":
            return str(form(value, *args))
        return f"({form(f'{value}.to(tl.int8)', *args)} != 0)"

    def joined(self, op: Op, level: int) -> str:
        """A concatenation: every part is fetched to where it belongs, and each lane takes its own."""
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
        """A reduction over feature dimensions; padding counts for nothing."""
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
        """What a reduction takes for absent."""
        if reduce == "sum":
            return "0"
        if kind.startswith("f"):
            return 'float("-inf")' if reduce == "amax" else 'float("inf")'
        bounds = torch.iinfo(torch.int32 if kind == "i4" else torch.int64)
        return str(bounds.min if reduce == "amax" else bounds.max)

    # The kernel.

    def source(self) -> str:
        """The source of the module."""
        for given in self.function.inputs:
            self.load(given)
        for op in self.function.ops:
            self.compute(op)
        reductions, result = [], 0
        for number, output in enumerate(self.function.outputs):
            reductions.append(_Reduction(self, output, number, result))
            result += output.num_results
        before = [line for reduction in reductions for line in reduction.before()]
        start = [line for reduction in reductions for line in reduction.start()]
        update = [line for reduction in reductions for line in reduction.update()]
        finish = [line for reduction in reductions for line in reduction.finish()]
        after = [line for reduction in reductions for line in reduction.after()]
        row = [
            "at = tl.where(slot >= 0, slot, row)",
            *self.lines[_ROW],
            *start,
            "for first in range(begin, end, EDGES):",
            "    edge = first + o_edge",
            "    m_edge = edge < end",
            *_indented(1, [*self.edge(update), *self.lines[_EDGE], *update]),
            *finish,
        ]
        if self.continued:
            row = ["if end > begin:", *_indented(1, row)]
        fixed = '"seed", "edge_offset"' if self.continued else '"seed"'
        return "\n".join(
            [
                '"""A pass over the edges; generated, and free to be read."""',
                "",
                "import triton",
                "import triton.language as tl",
                "",
                "from sagann.kernels.edge.gpu import device",
                "",
                f"EDGES = tl.constexpr({self.layout.edges})",
                f"WARPS = {self.layout.warps}",
                f"NUM_TILES = {self.layout.num_tiles}",
                "",
                "",
                f"@triton.jit(do_not_specialize=[{fixed}])",
                f"def kernel({', '.join(self.arguments())}):",
                *_indented(1, self.item()),
                *_indented(1, [*self.lines[_PROGRAM], *before]),
                "    for row in range(first_row, last_row):",
                "        begin = tl.maximum(tl.load(p_indptr + row), first_edge)",
                "        end = tl.minimum(tl.load(p_indptr + row + 1), last_edge)",
                *_indented(2, row),
                *_indented(1, after),
                "",
            ]
        )

    def arguments(self) -> list[str]:
        """Parameters of the kernel; :mod:`sagann.kernels.edge.gpu.run` passes them in this order."""
        names = ["p_items", "p_indptr", "p_indices"]
        names += ["p_edge_ids"] if self.function.at == "src" else []
        names.append("seed")
        for given in self.function.inputs:
            names += [f"p_{given.name}"] if given.side == "param" else [f"p_{given.name}", f"stride_{given.name}"]
        for number, result in enumerate(results_of(self.function)):
            names += [f"p_out_{number}", f"p_slots_{number}"] if result.rows == "row" else [f"p_out_{number}"]
        names += ["edge_offset"] if self.continued else []
        for number in self.shared:
            names += [f"p_known_{number}", f"p_known_slots_{number}"]
        return names

    @property
    def shared(self) -> list[int]:
        """Results that a continued pass has to read from a copy."""
        return shared_results(self.function, self.layout) if self.continued else []

    def item(self) -> list[str]:
        """What a program does, and where its results go."""
        fields = ["first_row", "last_row", "first_edge", "last_edge", "slot"]
        lines = ["item = tl.program_id(0).to(tl.int64)"]
        lines += [f"{name} = tl.load(p_items + item * 5 + {position})" for position, name in enumerate(fields)]
        lines.append("o_edge = tl.arange(0, EDGES).to(tl.int64)")
        if self.layout.tile:
            tile = self.layout.tile
            lines.append(f"o_feature = (tl.program_id(1) * {tile} + tl.arange(0, {tile}))[None, :]")
            if self.layout.num_features % tile:
                lines.append(f"m_feature = o_feature < {self.layout.num_features}")
        rows = [number for number, result in enumerate(results_of(self.function)) if result.rows == "row"]
        if rows:
            lines += [f"p_row_{number} = p_out_{number}" for number in rows]
            lines += [f"p_was_{number} = p_known_{number}" for number in self.shared]
            lines += ["if slot >= 0:", *(f"    p_row_{number} = p_slots_{number}" for number in rows)]
            lines += [f"    p_was_{number} = p_known_slots_{number}" for number in self.shared]
        return lines

    def edge(self, update: list[str]) -> list[str]:
        """Lines that find an edge's other end and its id, where these are asked for."""
        used = [*self.lines[_EDGE], *update]
        lines = []
        if any("(other *" in line for line in used):
            lines.append("other = tl.load(p_indices + edge, mask=m_edge, other=0).to(tl.int64)")
        local, known = self.edge_local, self.edge_global
        if any(local in line or known in line for line in used):
            loaded = "tl.load(p_edge_ids + edge, mask=m_edge, other=0).to(tl.int64)"
            lines.append(f"{local} = {loaded if self.function.at == 'src' else 'edge'}")
        if local != known and any(known in line for line in used):
            lines.append(f"{known} = {local} + edge_offset")
        return lines


class _Reduction:
    """Writes the lines of one output: its accumulators, their update and what becomes of them."""

    def __init__(self, writer: _Writer, output: Output, number: int, result: int) -> None:
        self.writer, self.output, self.number, self.result = writer, output, number, result
        value = writer.function.value(output.values[-1])
        self.kind = "f8" if kind_of(value) == "f8" else "f4"
        self.shape, self.num_lanes = writer.shape(value), lanes(value)
        self.value = writer.converted(value.name, self.kind)
        self.m_edge = writer.edges("m_edge", len(self.shape))
        score = writer.function.value(output.values[0])
        self.score_shape, self.num_scores = writer.shape(score), lanes(score)

    def full(self, shape: Shape, number: str, lead: str = "EDGES") -> str:
        """A block of one number."""
        return f"tl.full({moves.block(lead, shape)}, {number}, {TYPES[self.kind]})"

    def beside(self, score: str) -> str:
        """A block like the score's beside the value's lanes."""
        return self.writer.aligned(score, len(self.score_shape), len(self.shape), trailing=True)

    def stored(self, pointer: str, row: str, shape: Shape, num_lanes: int, value: str) -> str:
        """A line that writes a row."""
        at = f"{pointer} + {row} * {num_lanes} + {self.writer.offsets(shape)}"
        own = self.writer.mask(shape)
        return f"tl.store({at}, {value}, mask={own})" if own else f"tl.store({at}, {value})"

    def before(self) -> list[str]:
        """Before the first row; names what the later lines need of the program."""
        self.writer.offsets(self.shape)
        self.writer.mask(self.shape)
        if self.output.reduce == "softmax":
            self.writer.offsets(self.score_shape)
            self.writer.mask(self.score_shape)
        return [f"sum_{self.number} = {self.full(self.shape, '0.0')}"] if self.output.reduce == "total" else []

    def start(self) -> list[str]:
        """At the start of a row."""
        number = self.number
        if self.output.reduce == "sum":
            return [f"sum_{number} = {self.full(self.shape, '0.0')}"]
        if self.output.reduce in ("max", "min"):
            worst = 'float("-inf")' if self.output.reduce == "max" else 'float("inf")'
            # Each edge of a tile begins at its own position, so that the first counts where nothing beats the worst.
            first = self.writer.edges("tl.arange(0, EDGES)", len(self.shape))
            return [
                f"best_{number} = {self.full(self.shape, worst)}",
                f"where_{number} = tl.broadcast_to({first}, {moves.block('EDGES', self.shape)})",
            ]
        if self.output.reduce == "softmax":
            return [
                f"top_{number} = {self.full(self.score_shape, self.lowest)}",
                f"weight_{number} = {self.full(self.score_shape, '0.0')}",
                f"sum_{number} = {self.full(self.shape, '0.0')}",
            ]
        return []

    @property
    def lowest(self) -> str:
        """The least finite number."""
        return repr(float(torch.finfo(torch.float64 if self.kind == "f8" else torch.float32).min))

    def update(self) -> list[str]:
        """For every tile of edges."""
        number = self.number
        if self.output.reduce in ("sum", "total"):
            return [f"sum_{number} += tl.where({self.m_edge}, {self.value}, 0.0)"]
        if self.output.reduce == "edge":
            row = self.writer.edges(f"({self.writer.edge_local} * {self.num_lanes})", len(self.shape))
            at = f"p_out_{self.result} + {row}" + (f" + {self.writer.offsets(self.shape)}" if self.shape else "")
            level = self.writer.masks(self.shape, _EDGE)
            # A block of one row is written for each edge.
            value = f"tl.broadcast_to({self.value}, {moves.block('EDGES', self.shape)})"
            return [f"tl.store({at}, {value}, mask={level})"]
        if self.output.reduce in ("max", "min"):
            beyond = ">" if self.output.reduce == "max" else "<"
            best, value = f"best_{number}", self.value
            isnan = f"(({value} != {value}) & ({best} == {best}))"
            position = self.writer.edges("(edge - begin).to(tl.int32)", len(self.shape))
            return [
                f"better = {self.m_edge} & (({value} {beyond} {best}) | {isnan})",
                f"where_{number} = tl.where(better, {position}, where_{number})",
                f"{best} = tl.where(better, {value}, {best})",
            ]
        score = self.writer.converted(self.output.values[0], self.kind)
        m_edge = self.writer.edges("m_edge", len(self.score_shape))
        return [
            f"top = device.maximum(tl.where({m_edge}, {score}, {self.lowest}), top_{number})",
            f"shrink = device.exp(top_{number} - top)",
            f"weight = tl.where({m_edge}, device.exp({score} - top), 0.0)",
            f"weight_{number} = weight_{number} * shrink + weight",
            f"weighted = tl.where({self.m_edge}, {self.beside('weight')} * {self.value}, 0.0)",
            f"sum_{number} = sum_{number} * {self.beside('shrink')} + weighted",
            f"top_{number} = top",
        ]

    def loaded(self, result: int, shape: Shape, num_lanes: int) -> str:
        """What a row holds so far."""
        pointer = f"p_was_{result}" if result in self.writer.shared else f"p_row_{result}"
        at = f"{pointer} + at * {num_lanes} + {self.writer.offsets(shape)}"
        own = self.writer.mask(shape)
        return f"tl.load({at}, mask={own}, other=0)" if own else f"tl.load({at})"

    def resume(self) -> list[str]:
        """At the end of a row of which earlier edges have given something: the edges of a tile join these."""
        number, row, more = self.number, f"p_row_{self.result}", f"p_row_{self.result + 1}"
        known = self.loaded(self.result, self.shape, self.num_lanes)
        if self.output.reduce == "sum":
            total = f"{known} + tl.sum(sum_{number}, 0, keep_dims=True)"
            return [self.stored(row, "at", self.shape, self.num_lanes, total)]
        if self.output.reduce in ("max", "min"):
            beyond = ">" if self.output.reduce == "max" else "<"
            best, place = f"extremum_{number}", f"place_{number}"
            isnan = f"(({best} != {best}) & (known_{number} == known_{number}))"
            ids = place if self.writer.function.at == "dst" else f"tl.load(p_edge_ids + {place}).to(tl.int64)"
            return [
                f"{best} = device.a{self.output.reduce}(best_{number}, 0, keep_dims=True)",
                f"{place} = device.first_of(best_{number}, where_{number}, {best}) + begin",
                f"known_{number} = {known}",
                f"edge_{number} = {self.loaded(self.result + 1, self.shape, self.num_lanes)}",
                f"better = (edge_{number} < 0) | ({best} {beyond} known_{number}) | {isnan}",
                f"edge_{number} = tl.where(better, {ids} + edge_offset, edge_{number})",
                f"known_{number} = tl.where(better, {best}, known_{number})",
                self.stored(row, "at", self.shape, self.num_lanes, f"known_{number}"),
                self.stored(more, "at", self.shape, self.num_lanes, f"edge_{number}"),
            ]
        if self.output.reduce == "softmax":
            # Where all scores so far are -inf the mean is 0 / 0, but weighs nothing.
            heavy = self.beside("heavy")
            weighed = f"tl.where({heavy} == 0, 0.0, {heavy} * {known})"
            return [
                f"log_weight = {self.loaded(self.result + 1, self.score_shape, self.num_scores)}",
                f"top = device.maximum(tl.max(top_{number}, 0, keep_dims=True), log_weight)",
                f"share = device.exp(top_{number} - top)",
                "heavy = device.exp(log_weight - top)",
                f"weight = tl.sum(weight_{number} * share, 0, keep_dims=True) + heavy",
                f"total = tl.sum(sum_{number} * {self.beside('share')}, 0, keep_dims=True) + {weighed}",
                self.stored(row, "at", self.shape, self.num_lanes, f"total / {self.beside('weight')}"),
                self.stored(more, "at", self.score_shape, self.num_scores, "top + tl.log(weight)"),
            ]
        return []

    def finish(self) -> list[str]:
        """At the end of a row: the edges of a tile come together."""
        if self.writer.continued:
            return self.resume()
        number, row = self.number, f"p_row_{self.result}"
        if self.output.reduce == "sum":
            total = f"tl.sum(sum_{number}, 0, keep_dims=True)"
            return [self.stored(row, "at", self.shape, self.num_lanes, total)]
        if self.output.reduce in ("max", "min"):
            best = f"tl.where(end > begin, extremum_{number}, 0.0)"
            ids = f"tl.where(end > begin, device.first_of(best_{number}, where_{number}, extremum_{number}) + begin, -1)"
            return [
                f"extremum_{number} = device.a{self.output.reduce}(best_{number}, 0, keep_dims=True)",
                self.stored(row, "at", self.shape, self.num_lanes, best),
                self.stored(f"p_row_{self.result + 1}", "at", self.shape, self.num_lanes, ids),
            ]
        if self.output.reduce == "softmax":
            mean = f"tl.where(end > begin, mean_{number}, 0.0)"
            log = 'tl.where(end > begin, top + tl.log(weight), float("-inf"))'
            total = f"tl.sum(sum_{number} * {self.beside('share')}, 0, keep_dims=True)"
            return [
                f"top = tl.max(top_{number}, 0, keep_dims=True)",
                f"share = device.exp(top_{number} - top)",
                f"weight = tl.sum(weight_{number} * share, 0, keep_dims=True)",
                f"mean_{number} = {total} / {self.beside('weight')}",
                self.stored(row, "at", self.shape, self.num_lanes, mean),
                self.stored(f"p_row_{self.result + 1}", "at", self.score_shape, self.num_scores, log),
            ]
        return []

    def after(self) -> list[str]:
        """After the last row of the item."""
        if self.output.reduce != "total":
            return []
        total = f"tl.sum(sum_{self.number}, 0, keep_dims=True)"
        return [self.stored(f"p_out_{self.result}", "item", self.shape, self.num_lanes, total)]


def _indented(depth: int, lines: list[str]) -> list[str]:
    return ["    " * depth + line for line in lines]
