"""The function that does the rows of one work item: loads, operations and reductions in their loops."""

from __future__ import annotations

from sagann.kernels.edge.cpu.expressions import Expressions
from sagann.kernels.edge.cpu.reductions import WRITERS
from sagann.kernels.edge.function import EdgeFunction
from sagann.kernels.edge.kinds import KINDS, results_of
from sagann.kernels.edge.source import mention

HEADER = ("counter", "items", "num_items", "indptr", "indices", "edge_ids", "seed")
"The first arguments of every kernel."
# Edges ahead of the one at work whose rows are asked for.
AHEAD = 8


class Rows:
    """Writes the source of ``rows_<tile>``."""

    def __init__(self, expressions: Expressions) -> None:
        self.expressions = expressions
        self.function: EdgeFunction = expressions.function
        self.own = self.function.at
        self.at_row: list[str] = []
        self.at_edge: list[str] = []
        self.constant: set[str] = set()

    def load_inputs(self) -> None:
        """Rows of this side once per row, the other side's and the edge's once per edge."""
        for given, stored in zip(self.function.inputs, self.expressions.form.stored, strict=True):
            count = self.expressions.lanes(given)
            name = self.expressions.define(
                f"load_{stored}_{count}", f'block.loader("{stored}", {count}, {self.expressions.layout.width})'
            )
            of_edge = "edge" if given.name in self.expressions.form.in_order else self.expressions.edge_local
            row = {self.own: "own", "param": None, "edge": of_edge}.get(given.side, "other")
            index = "0" if row is None else f"{row} * stride_{given.name}"
            loaded = f"{name}(p_{given.name}, {index}{self.expressions.offset(given)})"
            if stored in ("i4", "i8") and stored != KINDS[given.dtype]:
                loaded = (
                    self.expressions.define(
                        f"to_{KINDS[given.dtype]}", f'elementwise.caster("{KINDS[given.dtype]}")'
                    )
                    + f"({loaded})"
                )
            line = f"v_{given.name} = {loaded}"
            if row in (None, "own"):
                self.at_row.append(line)
                self.constant.add(given.name)
            else:
                self.at_edge.append(line)

    def prefetches(self) -> list[str]:
        """Lines that ask for the other side's rows a few edges ahead."""
        lines = []
        for given, stored in zip(self.function.inputs, self.expressions.form.stored, strict=True):
            if given.side in (self.own, "param", "edge"):
                continue
            count = self.expressions.lanes(given)
            name = self.expressions.define(f"prefetch_{stored}_{count}", f'access.prefetcher("{stored}", {count})')
            offset = self.expressions.offset(given)
            lines.append(f"{name}(p_{given.name}, ahead * stride_{given.name}{offset})")
        return lines

    # Operations.

    def compute(self) -> None:
        """One line per op, before the loop over edges where no edge matters."""
        for op in self.function.ops:
            line = f"v_{op.name} = {self.expressions.expression(op)}"
            names = [arg for arg in op.args if isinstance(arg, str)]
            if op.op not in ("random", "edge_id") and all(name in self.constant for name in names):
                self.at_row.append(line)
                self.constant.add(op.name)
            else:
                self.at_edge.append(line)

    def function_source(self) -> str:
        """The source of ``rows_<tile>``."""
        self.load_inputs()
        self.compute()
        result, before, per_row, update, finish, after = 0, [], [], [], [], []
        for number, output in enumerate(self.function.outputs):
            writer = WRITERS[output.reduce](self.expressions, output, number, result)
            result += output.num_results
            before += writer.before()
            per_row += writer.resume() if self.expressions.form.continued else writer.start()
            update += writer.update()
            finish += writer.finish()
            after += writer.after()
        prefetches = self.prefetches()
        ahead = (
            [f"ahead = other_end(p_indices, min(edge + {AHEAD}, last_edge - 1))", *prefetches] if prefetches else []
        )
        reads_other = mention(self.at_edge, "other")
        body = [
            "@njit",
            f"def rows_{self.expressions.tile}(p_args, item, first_row, last_row, first_edge, last_edge, slot, first):",
            *_indented(1, self.arguments()),
            *_indented(1, before),
            "    edge = first_edge",
            "    for row in range(first_row, last_row):",
            "        begin = edge",
            "        end = min(offset_at(p_indptr, row + 1), last_edge)",
            # Rows that no edge of a chunk reaches stay as they are.
            *(["        if begin == end:", "            continue"] if self.expressions.form.continued else []),
            "        at = slot if slot >= 0 else row",
            # An array may have rows for those vertices alone that an edge reaches.
            "        own = row if begin < end else 0",
            *_indented(2, [*self.at_row, *per_row]),
            "        for edge in range(begin, end):",
            *_indented(3, ["other = other_end(p_indices, edge)"] if reads_other else []),
            *_indented(3, [*ahead, *self.edge_ids([*self.at_edge, *update]), *self.at_edge, *update]),
            *_indented(3, [] if self.at_edge or update else ["pass"]),
            "        edge = end",
            *_indented(2, finish),
            *_indented(1, after),
        ]
        return "\n".join(body)

    def edge_ids(self, used: list[str]) -> list[str]:
        """Lines that find an edge's position in CSC order and its id, as far as the lines ``used`` ask for them."""
        local, known = self.expressions.edge_local, self.expressions.edge_global
        lines = []
        if mention(used, local) or mention(used, known):
            lines.append(f"{local} = edge" if self.own == "dst" else f"{local} = id_of_edge(p_edge_ids, edge)")
        if local != known and mention(used, known):
            lines.append(f"{known} = {local} + edge_offset")
        return lines

    def arguments(self) -> list[str]:
        """Lines that unpack the argument array."""
        names = [f"p_{name}" if name not in ("num_items", "seed") else name for name in HEADER]
        for given in self.function.inputs:
            names += [f"p_{given.name}", f"stride_{given.name}"]
        for number in range(len(results_of(self.function))):
            names += [f"p_out_{number}", f"p_slots_{number}"]
        names += ["edge_offset"] if self.expressions.form.continued else []
        return [
            *(
                f"{name} = access.argument(p_args, {position})"
                for position, name in enumerate(names)
                if position > 2
            ),
            *(
                f"target_{number} = p_slots_{number} if slot >= 0 else p_out_{number}"
                for number in range(len(results_of(self.function)))
            ),
        ]


def _indented(depth: int, lines: list[str]) -> list[str]:
    return ["    " * depth + line for line in lines]
