r"""Reductions: one record for each way in which the rows of a group of edges become one row.

A **state** is what a reduction keeps of the edges so far: a few tensors with a row per group. A pass makes a state, a
continued pass goes on from a state, and two states of the same rows can be merged. A row that no edge has reached holds
every tensor's neutral number, which is also the result of a row without edges.

A record states the tensors of the state, and its formulas in PyTorch. Each dialect has formulas of its own
(``writers`` and ``merge`` of :mod:`sagann.kernels.edge.cpu` and :mod:`sagann.kernels.edge.gpu`), by the record's name.

**Extrema** (max, min): the best value, and the first edge that attains it. NaN is better than any number. Among equal values
the lower id of an edge wins.

**Moments**: the sum of squared deviations :math:`d = \sum_e (v_e - m)^2`, the mean :math:`m`, and the number :math:`n` of
edges. Two states become :math:`n = n_1 + n_2`, :math:`m = m_1 + (m_2 - m_1) n_2 / n` and
:math:`d = d_1 + d_2 + (m_2 - m_1)^2 n_1 n_2 / n`. The mean of squares less the square of the mean would lose all digits of
values that are large beside their spread.

**Product**: the product of the factors that are not 0, and the number of factors that are 0. The gradient of a factor is the
product of all other factors. With both tensors no division by 0 is needed: the gradient is product over factor where no
factor is 0, and the product for the only factor that is 0.

**Softmax**: the mean :math:`m` of the values weighted by the exponentials of the scores, the largest score :math:`t`, and
the denominator :math:`w = \sum_e e^{s_e - t}`. Two states become :math:`t = \max(t_1, t_2)`, :math:`v_i = w_i e^{t_i - t}`,
:math:`w = v_1 + v_2` and :math:`m = (v_1 m_1 + v_2 m_2) / w`. Where all scores are -inf, the mean is NaN, the largest score
is the least finite number, and the denominator is 0, so the state weighs nothing beside another state. Largest score and
denominator stay apart: in a log-sum-exp a score of 1e9 would round the denominator away.

References:
    Chan, Golub and LeVeque, Updating formulae and a pairwise algorithm for computing sample variances, 1979: moments.
    Milakov and Gimelshein, Online normalizer calculation for softmax, 2018, Sec. 3.1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from sagann.graph.topology import Topology
from sagann.kernels import naive

if TYPE_CHECKING:
    from sagann.kernels.edge.builder import Builder


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """One tensor of a state."""

    of: Literal["value", "score", "row"] = "value"
    'Feature shape of the tensor\'s rows: that of the value, that of the score, or () for "row".'
    neutral: float = 0.0
    "Number in every entry of the tensor before the first edge."
    is_edge: bool = False
    "Whether the tensor's entries are ids of edges."


@dataclass(frozen=True, kw_only=True, slots=True)
class Read:
    """One tensor that the backward's passes read besides the forward's inputs, with a row for each row of the result."""

    name: str = "grad"
    "Name, unique within the reduction."
    of: Literal["value", "score"] = "value"
    "Feature shape of the tensor's rows: that of the value or of the score."
    is_edge: bool = False
    "Whether the tensor's entries are ids of edges."


Seeds = Callable[["Builder", Sequence[str], Mapping[str, str]], dict[str, str]]
"""From a builder, the names of an edge's values, and the values' names of the tensors that are read, to the name of the
gradient of each value."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Reduction:
    """How the rows of a group of edges become one row."""

    name: str
    "Unique name."
    state: tuple[Part, ...]
    "The tensors of the state, in the order in which a pass returns them. The first tensor is the result."
    num_values: Literal[1, 2] = 1
    "Number of values of an edge that are read: one, or a score and a value."
    rows: Literal["row", "edge", "item"] = "row"
    "The rows of a result: one per group, one per edge, or one per work item (then summed to one)."
    registers: int = 1
    "Vector registers that the state takes in a kernel, for each register of the value."
    exponentials: int = 0
    "Exponentials for each lane of the score, in estimates of work."
    reads: tuple[Read, ...] = (Read(),)
    "The tensors that the backward reads. An accumulator makes them from the gradient of the gathered rows."
    seeds: Seeds = lambda builder, values, reads: {values[-1]: reads["grad"]}
    "The gradients of an edge's values. Default: the value's gradient is the result's."
    reduce: Callable[[Topology, Sequence[Tensor]], tuple[Tensor, ...]]
    "The state of every destination's in-edges, from their rows in CSC order. Ids of edges are positions, int64."
    merge: Callable[[Sequence[Tensor], Sequence[Tensor]], None]
    "Merges the second state into the first, in place. The tensors keep their dtypes."

    @property
    def names_edges(self) -> bool:
        """Whether the state holds ids of edges."""
        return any(part.is_edge for part in self.state)


def _add(into: Sequence[Tensor], part: Sequence[Tensor]) -> None:
    for known, more in zip(into, part, strict=True):
        known.add_(more)


def _not_merged(*_: object) -> None:
    raise AssertionError("rows of edges are no state")


_SUM = Reduction(
    name="sum",
    state=(Part(),),
    reduce=lambda topology, values: (naive.gather_sum(topology, values[0]),),
    merge=_add,
)
_TOTAL = Reduction(
    name="total",
    state=(Part(),),
    rows="item",
    reduce=lambda topology, values: (values[0].sum(0, dtype=torch.float64),),
    merge=_add,
)
_EDGE = Reduction(
    name="edge",
    state=(Part(),),
    rows="edge",
    registers=0,
    reduce=lambda topology, values: (values[0],),
    merge=_not_merged,
)


def _merge_extrema(largest: bool, into: Sequence[Tensor], part: Sequence[Tensor]) -> None:
    (best, edge), (value, where) = into, part
    beyond = value > best if largest else value < best
    equal = value == best
    if value.is_floating_point():
        isnan, known_nan = value.isnan(), best.isnan()
        beyond |= isnan & ~known_nan
        equal |= isnan & known_nan
    taken = (where >= 0) & ((edge < 0) | beyond | (equal & (where < edge)))
    best.copy_(torch.where(taken, value, best))
    edge.copy_(torch.where(taken, where, edge))


def _seeds_of_extremum(b: Builder, values: Sequence[str], reads: Mapping[str, str]) -> dict[str, str]:
    (value,) = values
    here = b.op("eq", reads["argument"], b.op("edge_id", dtype=torch.int64))
    return {value: b.op("where", here, reads["grad"], b.full(0, b.shape(value), b.dtype(value)))}


def _extremum(name: str) -> Reduction:
    return Reduction(
        name=name,
        state=(Part(), Part(neutral=-1, is_edge=True)),
        registers=2,
        reads=(Read(), Read(name="argument", is_edge=True)),
        seeds=_seeds_of_extremum,
        reduce=lambda topology, values: naive.gather_extremum(topology, values[0], name),
        merge=partial(_merge_extrema, name == "max"),
    )


def _moments(topology: Topology, values: Sequence[Tensor]) -> tuple[Tensor, ...]:
    (value,) = values
    degrees = topology.in_degrees().to(value.dtype)
    return naive.gather_spread(topology, value), naive.gather_mean(topology, value), degrees


def _merge_moments(into: Sequence[Tensor], part: Sequence[Tensor]) -> None:
    (spread, mean, count), (more_spread, more_mean, more_count) = into, part
    together = (count + more_count).clamp(min=1)
    share, distance = naive.columns(more_count / together, mean.ndim), more_mean - mean
    spread.add_(more_spread + distance.square() * share * naive.columns(count, mean.ndim))
    mean.add_(distance * share)
    count.add_(more_count)


def _seeds_of_moments(b: Builder, values: Sequence[str], reads: Mapping[str, str]) -> dict[str, str]:
    (value,) = values
    return {value: b.op("mul", reads["grad"], b.op("sub", value, reads["mean"]))}


_MOMENTS = Reduction(
    name="moments",
    state=(Part(), Part(), Part(of="row")),
    registers=3,
    reads=(Read(), Read(name="mean")),
    seeds=_seeds_of_moments,
    reduce=_moments,
    merge=_merge_moments,
)


def _product(topology: Topology, values: Sequence[Tensor]) -> tuple[Tensor, ...]:
    (value,) = values
    zero = value == 0
    product = naive.gather_mul(topology, torch.where(zero, 1, value))
    return product, naive.gather_sum(topology, zero.to(value.dtype))


def _merge_products(into: Sequence[Tensor], part: Sequence[Tensor]) -> None:
    into[0].mul_(part[0])
    into[1].add_(part[1])


def _seeds_of_product(b: Builder, values: Sequence[str], reads: Mapping[str, str]) -> dict[str, str]:
    (value,) = values
    is_zero = b.op("eq", value, 0.0)
    return {value: b.op("where", is_zero, reads["grad_of_zero"], b.op("div", reads["grad"], value))}


_PRODUCT = Reduction(
    name="product",
    state=(Part(neutral=1.0), Part()),
    registers=2,
    reads=(Read(), Read(name="grad_of_zero")),
    seeds=_seeds_of_product,
    reduce=_product,
    merge=_merge_products,
)


def _softmax(topology: Topology, values: Sequence[Tensor]) -> tuple[Tensor, ...]:
    return naive.gather_softmax(topology, *values), *naive.gather_denominator(topology, values[0])


def _merge_softmax(into: Sequence[Tensor], part: Sequence[Tensor]) -> None:
    (mean, top, weight), (value, peak, share) = into, part
    highest = torch.maximum(top, peak)
    # Rows without edges have the exponent -inf - -inf.
    known = torch.where(weight == 0, 0, weight * torch.exp(top - highest))
    more = torch.where(share == 0, 0, share * torch.exp(peak - highest))
    together = known + more

    def weighted(rows: Tensor, weight: Tensor) -> Tensor:
        # A mean of weight 0 may be 0 / 0.
        weight = naive.columns(weight, rows.ndim)
        return torch.where(weight == 0, 0, rows * weight)

    total = naive.columns(together, mean.ndim)
    mean.copy_(torch.where(total == 0, mean + value, (weighted(mean, known) + weighted(value, more)) / total))
    top.copy_(highest)
    weight.copy_(together)


def _seeds_of_softmax(b: Builder, values: Sequence[str], reads: Mapping[str, str]) -> dict[str, str]:
    score, message = values
    grad, shape, heads = reads["grad"], b.shape(message), b.shape(score)
    # Gradient and agreement are divided by the denominator already, so an edge's weight is one exponential.
    weight = b.op("exp", b.op("sub", score, reads["top"]))
    to_message = b.op("mul", grad, b.reshape(weight, heads + (1,) * (len(shape) - len(heads))))
    agreement = b.op("sum", b.op("mul", grad, message), dims=tuple(range(len(heads), len(shape))))
    to_score = b.op("mul", weight, b.op("sub", agreement, reads["delta"]))
    if score == message:
        return {message: b.op("add", to_message, to_score)}
    return {message: to_message, score: to_score}


_SOFTMAX = Reduction(
    name="softmax",
    state=(Part(), Part(of="score", neutral=-math.inf), Part(of="score")),
    num_values=2,
    exponentials=1,
    reads=(Read(), Read(name="top", of="score"), Read(name="delta", of="score")),
    seeds=_seeds_of_softmax,
    reduce=_softmax,
    merge=_merge_softmax,
)

_ALL = (_SUM, _TOTAL, _EDGE, _extremum("max"), _extremum("min"), _SOFTMAX, _MOMENTS, _PRODUCT)
_RECORDS: Mapping[str, Reduction] = {record.name: record for record in _ALL}


def reduction(name: str) -> Reduction:
    """The record of that name."""
    return _RECORDS[name]
