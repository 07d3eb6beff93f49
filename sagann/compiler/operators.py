"""Operators of traces: nodes that the passes look for, in place of ATen's decompositions.

``sagann::gather`` stands between the edges and the vertices. ``sagann::linear`` is a linear map without its bias.
``sagann::dropout`` is dropout in training. In the trace of a model, ``sagann::saga_layer`` is a call of a layer, and
``sagann::gathered`` is the work of its edges between two stages. ``sagann::batch_means``, ``sagann::edge_means`` and
``sagann::batch_scales`` are what a BatchNorm computes of all rows. These operators exist in traces only: stages run functions in their place (:mod:`sagann.compiler.stages`).
``sagann::typed_linear``, a linear map picked by type, is an operator of :mod:`sagann.kernels` and runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from sagann.kernels import typed_linear as typed_linear
from sagann.kernels.accumulators import gathering


def _of_traces(form: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Define an operator by a function that gives the form of its result. The operator cannot run, nor be differentiated."""
    name = f"sagann::{form.__name__}"
    torch.library.define(name, torch.library.infer_schema(form, mutates_args=()))
    torch.library.register_fake(name)(form)
    return form


@_of_traces
def gather(values: Sequence[Tensor], accumulator: str, max_degree: int) -> Tensor:
    """Reduce the values of all messages of an edge: -> accum."""
    shape = gathering(accumulator, max_degree).shape([value.shape[1:] for value in values])
    return values[-1].new_empty(values[-1].shape[0], *shape)


@_of_traces
def linear(x: Tensor, weight: Tensor) -> Tensor:
    """``x @ weight.T``."""
    if x.shape[-1] != weight.shape[-1]:
        raise RuntimeError(f"a linear map of {weight.shape[-1]} features got {x.shape[-1]}")
    return x.new_empty(*x.shape[:-1], weight.shape[0])


@_of_traces
def dropout(x: Tensor, p: float, number: int = 0) -> Tensor:
    """Set entries of ``x`` to 0 with probability ``p``, and scale the others by 1 / (1 - p); ``number`` is that in a model."""
    return torch.empty_like(x)


@_of_traces
def saga_layer(x: Sequence[Tensor], call: int, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """The result of a layer's call for the rows ``x``: ``call`` is the call's number, ``shape`` and ``dtype`` are a row's."""
    return x[0].new_empty(x[0].shape[0], *shape, dtype=dtype)


@_of_traces
def gathered(values: Sequence[Tensor], call: int) -> Tensor:
    """The gathered rows of a layer's call, from the rows ``values`` that the edges read. Placed in graphs, never traced."""
    raise AssertionError("stands in graphs only")


@_of_traces
def batch_means(x: Tensor, norm: str) -> Tensor:
    """The means of all vertices' rows by channel, [C]; ``norm`` is the name of the BatchNorm."""
    return x.new_empty(x.shape[1], dtype=torch.float64 if x.dtype == torch.float64 else torch.float32)


@_of_traces
def edge_means(values: Sequence[Tensor], norm: str) -> Tensor:
    """The means of all edges' rows by channel, [C]. In the trace of a layer, ``values`` are the rows and a column of ones; then what is
    gathered of both, for each part of the edges."""
    return values[0].new_empty(values[0].shape[1])


@_of_traces
def batch_scales(means: Tensor) -> Tensor:
    """The reciprocals of the standard deviations by channel, [C], of the rows that ``means`` are of."""
    return torch.empty_like(means)


GATHER = torch.ops.sagann.gather.default
LINEAR = torch.ops.sagann.linear.default
DROPOUT = torch.ops.sagann.dropout.default
SAGA_LAYER = torch.ops.sagann.saga_layer.default
GATHERED = torch.ops.sagann.gathered.default
BATCH_MEANS = torch.ops.sagann.batch_means.default
EDGE_MEANS = torch.ops.sagann.edge_means.default
BATCH_SCALES = torch.ops.sagann.batch_scales.default
MEANS = (BATCH_MEANS, EDGE_MEANS)
"Means that BatchNorms compute. Two equal calls of a BatchNorm are two: each of them moves its running means."
LINKS = (GATHERED, *MEANS)
"What stands between the stages of a model."
TYPED_LINEAR = torch.ops.sagann.typed_linear.default
