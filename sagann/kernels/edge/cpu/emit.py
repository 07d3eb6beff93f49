"""From an edge function to the source of a Numba kernel: one line per operation, readable in the cache folder.

The kernel takes one array of int64: :data:`HEADER`, then address and row stride of every input, then address and address of
the slots of every result, and where the pass continues from earlier results the id of the first edge. A kernel that continues
reads the rows that an ordinary kernel writes from nothing. The caller fills its slots with neutral numbers beforehand.

A kernel holds resident rows, or tiles of features (:mod:`sagann.kernels.edge.function`), in vector registers. Every value of an
edge function becomes a variable ``v_<name>``. Helpers (a load of 41 float32, a shuffle) are named at the top of the generated
module (:attr:`Rows.definitions`), and made when the module is imported.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from sagann.kernels.edge.cpu.writers import WRITERS
from sagann.kernels.edge.function import BINARY, KINDS, UNARY, EdgeFunction, Input, Op, kind_of, lanes, placed
from sagann.kernels.edge.source import ITEM, edge_names, float_text, indented, mention, operand_kind

HEADER = ("counter", "runs", "num_runs", "items", "indptr", "indices", "edge_ids", "seed")
"The first arguments of every kernel."
# Edges ahead of the current edge whose rows are prefetched.
AHEAD = 8
VECTOR_BYTES = 64
# Vector registers for a tile's accumulators, rows and temporaries, of 32 that exist.
REGISTERS = 30
# Exponents that PyTorch computes as roots: NaN for minus infinity, where the C library's pow gives infinity.
_ROOTS: dict[object, str] = {0.5: "sqrt", -0.5: "rsqrt"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """How a kernel holds its values."""

    width: int
    "Lanes of a vector register."
    num_features: int
    "Number of features that are cut into tiles; 0 where rows are resident."
    tile: int
    "Number of features of a tile; 0 where rows are resident."

    @property
    def tiles(self) -> list[int]:
        """The widths of the tiles, in order."""
        if not self.num_features:
            return [0]
        full, rest = divmod(self.num_features, self.tile)
        return [self.tile] * full + ([rest] if rest else [])


def choose_layout(function: EdgeFunction) -> Layout:
    """The layout for a function."""
    values = function.values
    width = VECTOR_BYTES // (8 if any(kind_of(value) == "f8" for value in values) else 4)
    num_features = function.feature_width
    if num_features is None:
        return Layout(width=width, num_features=0, tile=0)
    chunks = max(1, REGISTERS // _pressure(function))
    chunks = 1 << (min(chunks, 8).bit_length() - 1)
    return Layout(width=width, num_features=num_features, tile=chunks * width)


def _pressure(function: EdgeFunction) -> int:
    """Registers that one chunk of features takes: accumulators, loaded rows and temporaries."""
    held = sum(output.reduction.registers for output in function.outputs)
    held += sum(1 for given in function.inputs if lanes(given) > 1)
    held += sum(1 for op in function.ops if lanes(op) > 1 and op.op in ("exp", "sigmoid", "tanh", "expm1")) * 2
    # Rows that are reduced as loaded need no registers for temporaries.
    return held + any(lanes(op) > 1 for op in function.ops)


# Every pass makes one of these, and a tuple is made faster than a dataclass.
class Form(NamedTuple):
    """How the arrays of a pass lie in memory."""

    index_kind: str
    "Integer type of the ids of the other endpoint: i2, i4 or i8."
    id_kind: str
    "Integer type of edge ids: i4 or i8."
    stored: tuple[str, ...]
    "Kind of every input's array."
    in_order: frozenset[str] = frozenset()
    "Names of edge inputs that lie in the order of the pass. Other edge inputs lie in CSC order."
    into_id_kind: str | None = None
    "Integer type of the ids of edges in earlier results; None where the pass starts anew."
    offset_kind: str = "i8"
    "Integer type of the offsets of the rows: i4 or i8."

    @property
    def continued(self) -> bool:
        """Whether the pass continues from earlier results."""
        return self.into_id_kind is not None


def emit(function: EdgeFunction, form: Form) -> str:
    """The source of a function's kernel for arrays of that form."""
    layout = choose_layout(function)
    parts = [Rows(function, layout, width, form) for width in dict.fromkeys(layout.tiles)]
    bodies = [part.lines() for part in parts]
    definitions = dict(line for part in parts for line in part.definitions.items())
    if len(parts) == 1:
        # Numba and LLVM compile one function sooner than two.
        before, rows = [], [_in_kernel(layout, parts[0], bodies[0])]
        arguments = parts[0].arguments(bodies[0])
    else:
        before = [line for part, body in zip(parts, bodies, strict=True) for line in _function(part, body)]
        rows, arguments = [_call(layout, part) for part in parts], []
    lines = [
        '"""A pass over the edges; generated, and free to be read."""',
        "",
        *(["from numba import njit", ""] if before else []),
        "from sagann.kernels.edge.cpu import block, elementwise, shuffle",
        "from sagann.jit import compiled_callback",
        "",
        f'other_end = block.indexer("{form.index_kind}")',
        f'id_of_edge = block.indexer("{form.id_kind}")',
        f'offset_at = block.indexer("{form.offset_kind}")',
        'int64_at = block.indexer("i8")',
        *(f"{name} = {value}" for name, value in definitions.items()),
        "",
        *before,
        "",
        "@compiled_callback",
        "def kernel(p_args):",
        "    p_counter = block.argument(p_args, 0)",
        "    num_runs = block.argument(p_args, 2)",
        "    while True:",
        "        run = block.claim(p_counter)",
        "        if run >= num_runs:",
        "            break",
        *indented(2, arguments),
        *(line for each in rows for line in indented(2, each)),
    ]
    return "\n".join(lines) + "\n"


def _in_kernel(layout: Layout, part: Rows, body: list[str]) -> list[str]:
    """The lines that do a run's rows in the kernel itself."""
    if len(layout.tiles) == 1:
        return [*(["first = 0"] if mention(body, "first") else []), *body]
    return [_over_tiles(layout, part), *indented(1, body)]


def _function(part: Rows, body: list[str]) -> list[str]:
    """A function that does a run's rows: values of tiles of several widths have several types."""
    return [
        "",
        # Only the kernel calls it. What Python and C would call it by takes a twelfth of the time of compiling.
        "@njit(no_cpython_wrapper=True, no_cfunc_wrapper=True, no_rewrites=True)",
        f"def rows_{part.tile}(p_args, run, first):",
        *indented(1, [*part.arguments(body), *body]),
        "",
    ]


def _call(layout: Layout, part: Rows) -> list[str]:
    return [_over_tiles(layout, part), f"    rows_{part.tile}(p_args, run, first)"]


def _over_tiles(layout: Layout, part: Rows) -> str:
    """The head of the loop over the tiles of a width; ``first`` is the first feature of a tile."""
    first = layout.tiles.index(part.tile) * layout.tile
    return f"for first in range({first}, {first + layout.tiles.count(part.tile) * part.tile}, {part.tile}):"


class Rows:
    """Writes the lines that do the rows of a run of work items, for tiles of one width (0 for resident rows)."""

    def __init__(self, function: EdgeFunction, layout: Layout, width: int, form: Form) -> None:
        self.function, self.layout, self.tile, self.form = function, layout, width, form
        self.definitions: dict[str, str] = {}
        self.edge_local, self.edge_global = edge_names(continued=form.continued)
        self.at_row: list[str] = []
        self.at_edge: list[str] = []
        self.constant: set[str] = set()

    def lanes(self, value: Input | Op) -> int:
        """Lanes of a value in registers."""
        count = lanes(value)
        return self.tile if self.tile and count > 1 else count

    def offset(self, value: Input | Op) -> str:
        """The offset of the tile's first lane, as a term of an address; empty for values of one lane."""
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
        """An operand of shape ``source`` broadcast to ``target``. One lane needs no broadcast."""
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
            made = f'block.drawer("{kind_of(op)}", {self.lanes(op)}, {self.layout.width}, {p!r}, {salt})'
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
        """A constant; one lane for an operand."""
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
        if op.op == "reshape":
            return value
        if op.op == "cat":
            return self.joined(op)
        picks = np.arange(lanes(source)).reshape(source.shape)
        if op.op == "broadcast":
            picks = np.broadcast_to(picks, op.shape)
        elif op.op == "permute":
            picks = picks.transpose(op.attrs["dims"])
        elif op.op == "slice":
            dim, start, step = op.attrs["dim"], op.attrs["start"], op.attrs["step"]
            picks = picks.take(range(start, start + step * op.shape[dim], step), dim)
        else:
            return self.reduced(op, source, value)
        return self.pick(picks, value, lanes(source))

    def joined(self, op: Op) -> str:
        """A concatenation: parts are put side by side, two at a time, and then put in order."""
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
        """A reduction over feature dimensions, which are first permuted to be neighbours."""
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

    def lines(self) -> list[str]:
        """The lines, after those of :meth:`arguments`."""
        self.load_inputs()
        self.compute()
        before, per_row, update, finish, after = [], [], [], [], []
        for number, (output, here) in enumerate(placed(self.function.outputs)):
            writer = WRITERS[output.reduce](self, output, number, here.start)
            before += writer.before()
            per_row += writer.resume() if self.form.continued else writer.start()
            update += writer.update()
            finish += writer.finish()
            after += writer.after()
        ahead = self.prefetches()
        if ahead:
            ahead.insert(0, f"ahead = other_end(p_indices, block.smaller(edge + {AHEAD}, last_edge - 1))")
        reads_other = mention(self.at_edge, "other")
        each_row = [*self.at_row, *per_row]
        each_edge = [
            *(["other = other_end(p_indices, edge)"] if reads_other else []),
            *ahead,
            *self.edge_ids([*self.at_edge, *update]),
            *self.at_edge,
            *update,
        ]
        rows = [
            *before,
            "edge = first_edge",
            "for row in range(first_row, last_row):",
            "    begin = edge",
            "    end = block.smaller(offset_at(p_indptr, row + 1), last_edge)",
            # A row that no edge of a chunk reaches stays as it is.
            *(["    if begin == end:", "        continue"] if self.form.continued else []),
            *(["    at = slot if slot >= 0 else row"] if mention([*each_row, *finish], "at") else []),
            # An array may have no rows for vertices that no edge reaches.
            *(["    own = row if begin < end else 0"] if mention(each_row, "own") else []),
            *indented(1, each_row),
            "    for edge in range(begin, end):",
            *indented(2, each_edge or ["pass"]),
            "    edge = end",
            *indented(1, finish),
            *after,
        ]
        results = range(len(self.function.results))
        choices = {f"target_{number}": f"p_slots_{number} if slot >= 0 else p_out_{number}" for number in results}
        return [
            "for item in range(int64_at(p_runs, run), int64_at(p_runs, run + 1)):",
            *(f"    {name} = int64_at(p_items, item * 5 + {position})" for position, name in enumerate(ITEM)),
            *(f"    {name} = {choice}" for name, choice in choices.items() if mention(rows, name)),
            *indented(1, rows),
        ]

    def load_inputs(self) -> None:
        """Load rows of the own side once per row, rows of the other side and of the edge once per edge."""
        for given, stored in zip(self.function.inputs, self.form.stored, strict=True):
            count = self.lanes(given)
            load = self.define(f"load_{stored}_{count}", f'block.loader("{stored}", {count}, {self.layout.width})')
            of_edge = "edge" if given.name in self.form.in_order else self.edge_local
            row = {self.function.at: "own", "param": None, "edge": of_edge}.get(given.side, "other")
            index = "0" if row is None else f"{row} * stride_{given.name}"
            loaded = f"{load}(p_{given.name}, {index}{self.offset(given)})"
            kind = KINDS[given.dtype]
            if stored in ("i4", "i8") and stored != kind:
                loaded = self.cast(loaded, kind)
            self._place(given.name, loaded, per_row=row in (None, "own"))

    def compute(self) -> None:
        """Write one line per op, outside of the loop over edges where the op reads no edge."""
        for op in self.function.ops:
            names = [arg for arg in op.args if isinstance(arg, str)]
            per_row = op.op not in ("random", "edge_id") and all(name in self.constant for name in names)
            self._place(op.name, self.expression(op), per_row=per_row)

    def _place(self, name: str, value: str, *, per_row: bool) -> None:
        (self.at_row if per_row else self.at_edge).append(f"v_{name} = {value}")
        if per_row:
            self.constant.add(name)

    def prefetches(self) -> list[str]:
        """Lines that prefetch the other side's rows."""
        lines = []
        for given, stored in zip(self.function.inputs, self.form.stored, strict=True):
            if given.side in (self.function.at, "param", "edge"):
                continue
            count = self.lanes(given)
            name = self.define(f"prefetch_{stored}_{count}", f'block.prefetcher("{stored}", {count})')
            lines.append(f"{name}(p_{given.name}, ahead * stride_{given.name}{self.offset(given)})")
        return lines

    def edge_ids(self, used: list[str]) -> list[str]:
        """Lines that find an edge's position in CSC order and its id, where the lines ``used`` mention them."""
        local, known = self.edge_local, self.edge_global
        lines = []
        if mention(used, local) or mention(used, known):
            of_pass = "edge" if self.function.at == "dst" else "id_of_edge(p_edge_ids, edge)"
            lines.append(f"{local} = {of_pass}")
        if local != known and mention(used, known):
            lines.append(f"{known} = {local} + edge_offset")
        return lines

    def arguments(self, body: list[str]) -> list[str]:
        """Lines that unpack what the lines ``body`` mention of the argument array."""
        names = [f"p_{name}" if name not in ("num_runs", "seed") else name for name in HEADER]
        for given in self.function.inputs:
            names += [f"p_{given.name}", f"stride_{given.name}"]
        for number in range(len(self.function.results)):
            names += [f"p_out_{number}", f"p_slots_{number}"]
        names += ["edge_offset"] if self.form.continued else []
        return [
            f"{name} = block.argument(p_args, {position})"
            for position, name in enumerate(names)
            if mention(body, name)
        ]
