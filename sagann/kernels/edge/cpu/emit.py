"""From an edge function to the source of a Numba kernel: one line per operation, readable in the cache folder.

The kernel takes one array of int64: see :data:`sagann.kernels.edge.cpu.rows.HEADER`, then address and row stride of
every input, then address and address of the slots of every result, and where the pass continues from earlier
results the id of the first edge. It then loads what the ordinary kernel fills in, of slots as well, which hold what
is neutral.
"""

from __future__ import annotations

from sagann.kernels.edge.cpu.expressions import Expressions, Form
from sagann.kernels.edge.cpu.layout import Layout, choose_layout
from sagann.kernels.edge.cpu.rows import Rows
from sagann.kernels.edge.function import EdgeFunction


def emit(function: EdgeFunction, form: Form) -> str:
    """The source of a function's kernel for arrays of that form."""
    layout = choose_layout(function)
    widths = list(dict.fromkeys(layout.tiles))
    parts = [Expressions(function, layout, width, form) for width in widths]
    bodies = [Rows(part).function_source() for part in parts]
    definitions = dict(line for part in parts for line in part.definitions.items())
    lines = [
        '"""A pass over the edges; generated, and free to be read."""',
        "",
        "from numba import njit",
        "",
        "from sagann.kernels.edge.cpu import access, block, elementwise, shuffle",
        "from sagann.machine_code import compiled_callback",
        "",
        f'other_end = access.indexer("{form.index_kind}")',
        f'id_of_edge = access.indexer("{form.id_kind}")',
        f'offset_at = access.indexer("{form.offset_kind}")',
        'int64_at = access.indexer("i8")',
        *(f"{name} = {value}" for name, value in definitions.items()),
        "",
        *(f"\n{body}\n" for body in bodies),
        *_kernel(layout, widths),
    ]
    return "\n".join(lines) + "\n"


def _kernel(layout: Layout, widths: list[int]) -> list[str]:
    calls = []
    common = "p_args, item, first_row, last_row, first_edge, last_edge, slot"
    for width in widths:
        count, first = layout.tiles.count(width), layout.tiles.index(width) * layout.tile
        calls.append(f"        for first in range({first}, {first + max(1, count * width)}, {max(1, width)}):")
        calls.append(f"            rows_{width}({common}, first)")
    return [
        "",
        "@compiled_callback",
        "def kernel(p_args):",
        "    p_counter = access.argument(p_args, 0)",
        "    p_items = access.argument(p_args, 1)",
        "    num_items = access.argument(p_args, 2)",
        "    while True:",
        "        item = access.claim(p_counter)",
        "        if item >= num_items:",
        "            break",
        *(
            f"        {name} = int64_at(p_items, item * 5 + {position})"
            for position, name in enumerate(["first_row", "last_row", "first_edge", "last_edge", "slot"])
        ),
        *calls,
    ]
