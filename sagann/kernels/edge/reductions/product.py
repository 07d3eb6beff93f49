r"""Product: of the factors that are not 0, and how many are.

With both, the gradient of a factor, the product of all others, is known without dividing by 0: it is the product over the
factor where no factor is 0, and the product for the one factor that is 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from sagann.graph.topology import Topology
from sagann.kernels.edge.reductions.record import Part, Read, Reduction
from sagann.kernels.gather.naive import gather_mul, gather_sum

if TYPE_CHECKING:
    from sagann.kernels.edge.builder import Builder


def _reduce(topology: Topology, values: Sequence[Tensor]) -> tuple[Tensor, ...]:
    (value,) = values
    zero = value == 0
    return gather_mul(topology, torch.where(zero, 1, value)), gather_sum(topology, zero.to(value.dtype))


def _merge(into: Sequence[Tensor], part: Sequence[Tensor]) -> None:
    into[0].mul_(part[0])
    into[1].add_(part[1])


def _seeds(b: Builder, values: Sequence[str], reads: Mapping[str, str]) -> dict[str, str]:
    (value,) = values
    is_zero = b.op("eq", value, 0.0)
    return {value: b.op("where", is_zero, reads["grad_of_zero"], b.op("div", reads["grad"], value))}


PRODUCT = Reduction(
    name="product",
    state=(Part(neutral=1.0), Part()),
    registers=2,
    reads=(Read(), Read(name="grad_of_zero")),
    seeds=_seeds,
    reduce=_reduce,
    merge=_merge,
)
