"""From an edge function to the source of a Triton kernel, readable in the cache folder.

A program takes one work item (axis 0) and one tile of features (axis 1).
"""

from __future__ import annotations

from sagann.kernels.edge.function import EdgeFunction, placed
from sagann.kernels.edge.gpu.expressions import EDGE, PROGRAM, ROW, Expressions
from sagann.kernels.edge.gpu.layout import choose_layout
from sagann.kernels.edge.gpu.writers import WRITERS
from sagann.kernels.edge.source import ITEM, indented, mention


def emit(function: EdgeFunction, in_order: frozenset[str] = frozenset(), *, continued: bool = False) -> str:
    """The source of a function's kernel, for edge inputs ``in_order`` in the order of the pass and others in CSC order.

    A kernel that is continued merges rows into earlier results, and leaves rows without edges as they are.
    """
    return _Kernel(function, choose_layout(function), in_order, continued).source()


class _Kernel(Expressions):
    """Writes the module of a kernel."""

    def source(self) -> str:
        """The source of the module."""
        for given in self.function.inputs:
            self.load(given)
        for op in self.function.ops:
            self.compute(op)
        before, start, update, finish, after = [], [], [], [], []
        for number, (output, here) in enumerate(placed(self.function.outputs)):
            writer = WRITERS[output.reduce](self, output, number, here.start)
            before += writer.before()
            start += writer.start()
            update += writer.update()
            finish += writer.resume() if self.continued else writer.finish()
            after += writer.after()
        row = [
            "at = tl.where(slot >= 0, slot, row)",
            # An array may have no rows for vertices that no edge reaches.
            "own = tl.where(end > begin, row, 0)",
            *self.lines[ROW],
            *start,
            "for first in range(begin, end, EDGES):",
            "    edge = first + o_edge",
            "    m_edge = edge < end",
            *indented(1, [*self.edge(update), *self.lines[EDGE], *update]),
            *finish,
        ]
        if self.continued:
            row = ["if end > begin:", *indented(1, row)]
        fixed = '"p_seed", "edge_offset"' if self.continued else '"p_seed"'
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
                *indented(1, self.item()),
                *indented(1, [*self.lines[PROGRAM], *before]),
                "    for row in range(first_row, last_row):",
                "        begin = tl.maximum(tl.load(p_indptr + row), first_edge)",
                "        end = tl.minimum(tl.load(p_indptr + row + 1), last_edge)",
                *indented(2, row),
                *indented(1, after),
                "",
            ]
        )

    def arguments(self) -> list[str]:
        """Parameters of the kernel; :mod:`sagann.kernels.edge.gpu.run` passes them in this order."""
        names = ["p_items", "p_indptr", "p_indices"]
        names += ["p_edge_ids"] if self.function.at == "src" else []
        names.append("p_seed")
        for given in self.function.inputs:
            names += [f"p_{given.name}"] if given.side == "param" else [f"p_{given.name}", f"stride_{given.name}"]
        for number, result in enumerate(self.function.results):
            names += [f"p_out_{number}", f"p_slots_{number}"] if result.rows == "row" else [f"p_out_{number}"]
        names += ["edge_offset"] if self.continued else []
        for number in self.shared:
            names += [f"p_known_{number}", f"p_known_slots_{number}"]
        return names

    def item(self) -> list[str]:
        """Lines that load a program's work item, and point to its results."""
        lines = ["item = tl.program_id(0).to(tl.int64)"]
        lines += [f"{name} = tl.load(p_items + item * 5 + {position})" for position, name in enumerate(ITEM)]
        if self.function.random:
            lines.append("seed = tl.load(p_seed)")
        lines.append("o_edge = tl.arange(0, EDGES).to(tl.int64)")
        if self.layout.tile:
            tile = self.layout.tile
            lines.append(f"o_feature = (tl.program_id(1) * {tile} + tl.arange(0, {tile}))[None, :]")
            if self.layout.num_features % tile:
                lines.append(f"m_feature = o_feature < {self.layout.num_features}")
        rows = [number for number, result in enumerate(self.function.results) if result.rows == "row"]
        if rows:
            lines += [f"p_row_{number} = p_out_{number}" for number in rows]
            lines += [f"p_was_{number} = p_known_{number}" for number in self.shared]
            lines += ["if slot >= 0:", *(f"    p_row_{number} = p_slots_{number}" for number in rows)]
            lines += [f"    p_was_{number} = p_known_slots_{number}" for number in self.shared]
        return lines

    def edge(self, update: list[str]) -> list[str]:
        """Lines that find an edge's other end and its id, where later lines mention them."""
        used = [*self.lines[EDGE], *update]
        lines = []
        if any("(other *" in line for line in used):
            lines.append("other = tl.load(p_indices + edge, mask=m_edge, other=0).to(tl.int64)")
        local, known = self.edge_local, self.edge_global
        if mention(used, local) or mention(used, known):
            loaded = "tl.load(p_edge_ids + edge, mask=m_edge, other=0).to(tl.int64)"
            lines.append(f"{local} = {loaded if self.function.at == 'src' else 'edge'}")
        if local != known and mention(used, known):
            lines.append(f"{known} = {local} + edge_offset")
        return lines
