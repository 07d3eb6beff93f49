"""Formulas of the reductions in Triton kernels, by the name of the record: the generated lines, and the merge of cut rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType

from torch import Tensor

from sagann.kernels.edge.gpu.reductions.extrema import Maximum, Minimum, merge_extrema
from sagann.kernels.edge.gpu.reductions.moments import Moments, merge_moments
from sagann.kernels.edge.gpu.reductions.product import Product, merge_products
from sagann.kernels.edge.gpu.reductions.softmax import Softmax, merge_means
from sagann.kernels.edge.gpu.reductions.sums import EdgeRows, Sum, Total, merge_sums
from sagann.kernels.edge.gpu.reductions.writer import Writer

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
MERGES: Mapping[str, Callable[[Tensor, Sequence[Tensor]], None]] = MappingProxyType(
    {
        "sum": merge_sums,
        "max": partial(merge_extrema, True),
        "min": partial(merge_extrema, False),
        "softmax": merge_means,
        "moments": merge_moments,
        "product": merge_products,
    }
)
"Merges of states, one level of a tree at a time: groups of slots, and each tensor's slots and results."
