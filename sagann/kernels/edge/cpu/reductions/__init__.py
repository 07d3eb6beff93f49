"""Formulas of the reductions in CPU kernels, by the name of the record: the generated lines, and the merge of cut rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType

from sagann.kernels.edge.cpu.reductions.extrema import Maximum, Minimum, merge_extrema
from sagann.kernels.edge.cpu.reductions.moments import Moments, merge_moments
from sagann.kernels.edge.cpu.reductions.product import Product, merge_products
from sagann.kernels.edge.cpu.reductions.softmax import Softmax, merge_softmax
from sagann.kernels.edge.cpu.reductions.sums import EdgeRows, Sum, Total, merge_sums
from sagann.kernels.edge.cpu.reductions.writer import Writer

__all__ = ["MERGES", "WRITERS", "Writer"]

WRITERS: Mapping[str, type[Writer]] = MappingProxyType(
    {
        "sum": Sum,
        "total": Total,
        "edge": EdgeRows,
        "max": Maximum,
        "min": Minimum,
        "softmax": Softmax,
        "moments": Moments,
        "product": Product,
    }
)
"Writers of the lines of an output."
MERGES: Mapping[str, Callable[..., None]] = MappingProxyType(
    {
        "sum": merge_sums,
        "max": partial(merge_extrema, True),
        "min": partial(merge_extrema, False),
        "softmax": merge_softmax,
        "moments": merge_moments,
        "product": merge_products,
    }
)
"Merges of states: rows taken into, rows taken, tensors taken into, tensors taken, [rows, lanes] each."
