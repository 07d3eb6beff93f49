"""Operators of traces, each one node: what the passes look for, free of ATen's decompositions.

``sagann::gather`` stands between the edges and the vertices; ``sagann::linear`` is a linear map without its bias;
``sagann::dropout`` is dropout with its training flag resolved; in the trace of a model ``sagann::saga_layer`` is a call of a
layer, and ``sagann::gathered`` what is left of it between the vertices' stages. They exist in traces only: stages that PyTorch
runs get its functions in their place (:mod:`sagann.compiler.stages`). ``sagann::typed_linear``, a linear map picked by type, is
an operator of :mod:`sagann.kernels` and runs as it is.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from sagann.kernels import typed_linear as typed_linear
from sagann.kernels.accumulators import gathering


@torch.library.custom_op("sagann::gather", mutates_args=())
def gather(values: Sequence[Tensor], accumulator: str, max_degree: int) -> Tensor:
    """What ApplyEdge returned, reduced: the values of all messages -> accum."""
    raise AssertionError("stands in traces only")


@gather.register_fake
def _(values: Sequence[Tensor], accumulator: str, max_degree: int) -> Tensor:
    shape = gathering(accumulator, max_degree).shape([value.shape[1:] for value in values])
    return values[-1].new_empty(values[-1].shape[0], *shape)


@torch.library.custom_op("sagann::linear", mutates_args=())
def linear(x: Tensor, weight: Tensor) -> Tensor:
    """``x @ weight.T``."""
    raise AssertionError("stands in traces only")


@linear.register_fake
def _(x: Tensor, weight: Tensor) -> Tensor:
    if x.shape[-1] != weight.shape[-1]:
        raise RuntimeError(f"a linear map of {weight.shape[-1]} features got {x.shape[-1]}")
    return x.new_empty(*x.shape[:-1], weight.shape[0])


@torch.library.custom_op("sagann::dropout", mutates_args=())
def dropout(x: Tensor, p: float, number: int = 0) -> Tensor:
    """``x`` with entries set to 0 with probability ``p``, the rest scaled by 1 / (1 - p); ``number`` is its in a model."""
    raise AssertionError("stands in traces only")


@dropout.register_fake
def _(x: Tensor, p: float, number: int = 0) -> Tensor:
    return torch.empty_like(x)


@torch.library.custom_op("sagann::saga_layer", mutates_args=())
def saga_layer(x: Sequence[Tensor], call: int, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """What a layer of a model returns for the rows ``x``; ``call`` is its number, ``shape`` that of a row, ``dtype`` of its values."""
    raise AssertionError("stands in traces only")


@saga_layer.register_fake
def _(x: Sequence[Tensor], call: int, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    return x[0].new_empty(x[0].shape[0], *shape, dtype=dtype)


@torch.library.custom_op("sagann::gathered", mutates_args=())
def gathered(values: Sequence[Tensor], call: int) -> Tensor:
    """What the edges of a layer's call give, from the rows ``values`` that they read."""
    raise AssertionError("stands in traces only")


GATHER = torch.ops.sagann.gather.default
LINEAR = torch.ops.sagann.linear.default
DROPOUT = torch.ops.sagann.dropout.default
SAGA_LAYER = torch.ops.sagann.saga_layer.default
GATHERED = torch.ops.sagann.gathered.default
TYPED_LINEAR = torch.ops.sagann.typed_linear.default
