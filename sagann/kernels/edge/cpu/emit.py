"""From an edge function to the source of a Numba kernel: one line per operation, readable in the cache folder.

The kernel takes one array of int64: :data:`HEADER`, then address and row stride of every input, then address and address of
the slots of every result, and where the pass continues from earlier results the id of the first edge. A kernel that continues
reads the rows that an ordinary kernel writes from nothing. The caller fills its slots with neutral numbers beforehand.
"""

from __future__ import annotations

from sagann.kernels.edge.cpu.expressions import Expressions, Form, Layout, choose_layout
from sagann.kernels.edge.cpu.writers import WRITERS
from sagann.kernels.edge.function import KINDS, EdgeFunction, placed
from sagann.kernels.edge.source import ITEM, indented, mention

HEADER = ("counter", "runs", "num_runs", "items", "indptr", "indices", "edge_ids", "seed")
"The first arguments of every kernel."
# Edges ahead of the current edge whose rows are prefetched.
AHEAD = 8


def emit(function: EdgeFunction, form: Form) -> str:
    """The source of a function's kernel for arrays of that form."""
    layout = choose_layout(function)
    parts = [_Rows(function, layout, width, form) for width in dict.fromkeys(layout.tiles)]
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


def _in_kernel(layout: Layout, part: _Rows, body: list[str]) -> list[str]:
    """The lines that do a run's rows in the kernel itself."""
    if len(layout.tiles) == 1:
        return [*(["first = 0"] if mention(body, "first") else []), *body]
    return [_over_tiles(layout, part), *indented(1, body)]


def _function(part: _Rows, body: list[str]) -> list[str]:
    """A function that does a run's rows: values of tiles of several widths have several types."""
    return [
        "",
        # Only the kernel calls it. What Python and C would call it by takes a twelfth of the time of compiling.
        "@njit(no_cpython_wrapper=True, no_cfunc_wrapper=True, no_rewrites=True)",
        f"def rows_{part.tile}(p_args, run, first):",
        *indented(1, [*part.arguments(body), *body]),
        "",
    ]


def _call(layout: Layout, part: _Rows) -> list[str]:
    return [_over_tiles(layout, part), f"    rows_{part.tile}(p_args, run, first)"]


def _over_tiles(layout: Layout, part: _Rows) -> str:
    """The head of the loop over the tiles of a width; ``first`` is the first feature of a tile."""
    first = layout.tiles.index(part.tile) * layout.tile
    return f"for first in range({first}, {first + layout.tiles.count(part.tile) * part.tile}, {part.tile}):"


class _Rows(Expressions):
    """Writes the lines that do the rows of a run of work items, a tile of features at a time."""

    def __init__(self, function: EdgeFunction, layout: Layout, width: int, form: Form) -> None:
        super().__init__(function, layout, width, form)
        self.at_row: list[str] = []
        self.at_edge: list[str] = []
        self.constant: set[str] = set()

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
