"""Product of the messages; 1 where a vertex has no in-edges, as in PyG."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from sagann.kernels.accumulators.record import Accumulator, Counts, computed
from sagann.kernels.edge.reductions import reduction
from sagann.kernels.gather import naive


def _product(state: Sequence[Tensor], counts: Counts) -> Tensor:
    product, zeros = state
    return product.masked_fill(zeros > 0, 0)


def _arrive(grad: Tensor, kept: Sequence[Tensor], result: Tensor, counts: Counts) -> tuple[Tensor, ...]:
    """What the factors that are not 0 read, and what those that are 0 read."""
    product, zeros = kept
    scaled = computed(grad).mul_(product)
    return scaled.masked_fill(zeros > 0, 0), scaled.masked_fill_(zeros != 1, 0)


MUL = Accumulator(
    name="mul",
    reduction=reduction("product"),
    gather=naive.gather_mul,
    finish=_product,
    keeps=(0, 1),
    arrive=_arrive,
)
