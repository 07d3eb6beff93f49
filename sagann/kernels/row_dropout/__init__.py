"""Dropout of vertices' rows in one pass, without a stored mask.

Whether a value stays is a function of the dropout's seed, the row and the feature
(:func:`sagann.kernels.edge.random.random_rows`). So the backward pass draws the mask again, and an interval of the vertices
drops the same values as the whole graph.

In memory each call draws its seed from PyTorch's generator. A streamed model draws the seeds of an epoch beforehand, in the
order of the model in memory, and states rows and seeds with :func:`rows_of`. A worker draws seeds as in memory, and states the rows
that are its own. The rows of a mini-batch have the ids of their vertices (:func:`rows_of`), so that trainers who share its seeds, with the same
state of PyTorch's generator, drop the same values of a vertex that several of them reach.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, NamedTuple, overload

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sagann.kernels.edge.random import random_rows
from sagann.kernels.seeds import Seed, drawn_seed

if TYPE_CHECKING:
    from sagann.kernels.feature_rows import FeatureRows

_ARITHMETIC = (torch.float32, torch.float64)


@dataclass(frozen=True, kw_only=True, slots=True)
class Mask:
    """The values that a dropout keeps."""

    p: float
    seed: Seed
    "Seed of the dropout."
    first: int = 0
    "Id of the first row. The next rows have the next ids."
    ids: Tensor | None = None
    "Ids of the rows and perhaps of others after them, int64, in place of ``first``; None where they are a range."

    def after(self, num_rows: int) -> Mask:
        """The mask of the rows that follow the first ``num_rows``."""
        if self.ids is not None:
            return replace(self, ids=self.ids[num_rows:])
        return replace(self, first=self.first + num_rows)

    def ids_of(self, rows: Tensor) -> Tensor:
        """Ids of the first rows, int64 [num_rows], on the device of ``rows``."""
        if self.ids is None:
            return torch.arange(self.first, self.first + len(rows), device=rows.device)
        return self.ids[: len(rows)].to(rows.device)


class _Part(NamedTuple):
    """The rows that dropouts drop."""

    vertices: slice | Tensor
    "Vertices whose rows they are: an interval, or ids, of which each tensor has rows of the first ones."
    seeds: Sequence[Seed] | None = None
    "Seeds of the model's dropouts, in order; None where each dropout draws its seed."
    first_value: int = 0


_PART: ContextVar[_Part | None] = ContextVar("part", default=None)
"The part of the graph that a stage of a streamed model, a worker or a mini-batch computes."


@contextmanager
def rows_of(
    vertices: slice | Tensor, seeds: Sequence[Seed] | None = None, *, first_value: int = 0
) -> Iterator[None]:
    """Inside the ``with`` block, dropouts drop rows of these vertices: an interval, or ids, int64.

    With ids, as in a mini-batch, a dropout of n rows drops rows of the first n of these vertices. Dropouts of more rows than there are ids, and of
    sparse features, go by position. ``seeds`` are the seeds of the model's dropouts in order; None has each dropout draw its seed, as in memory.
    ``first_value`` is the id of the first non-zero where the features of these vertices are sparse.
    """
    token = _PART.set(_Part(vertices, seeds, first_value))
    try:
        yield
    finally:
        _PART.reset(token)


@overload
def dropout(x: Tensor, p: float, number: int = 0) -> Tensor: ...
@overload
def dropout(x: FeatureRows, p: float, number: int = 0) -> FeatureRows: ...
def dropout(x: Tensor | FeatureRows, p: float, number: int = 0) -> Tensor | FeatureRows:
    """Set values to 0 with probability ``p``, and scale the others by 1 / (1 - p).

    Inside :func:`rows_of`, ``x`` has the same number of rows for each vertex, and ``number`` is that of the dropout within its
    model.
    """
    if not isinstance(x, Tensor):
        return x.dropped(p, number)
    if not is_plain(x) or not x.ndim or not x.is_floating_point():
        return F.dropout(x, p, training=True)
    # A worker that owns no vertex draws the seeds that the others draw.
    mask = drawn_mask(len(x), p, number)
    return drop(x, mask) if x.numel() else x.clone()


def is_plain(x: Tensor) -> bool:
    """Whether ``x`` is an ordinary tensor, not a tensor of a trace or of a function transform."""
    return type(x) in (Tensor, nn.Parameter) and not (
        torch.compiler.is_compiling() or torch._C._functorch.is_functorch_wrapped_tensor(x)
    )


def drawn_mask(num_rows: int, p: float, number: int = 0) -> Mask:
    """The mask of a new dropout of ``num_rows`` rows; other arguments as in :func:`dropout`."""
    part = _PART.get()
    if part is None:
        return Mask(p=p, seed=drawn_seed())
    seed = drawn_seed() if part.seeds is None else part.seeds[number]
    if isinstance(part.vertices, Tensor):
        ids = part.vertices[:num_rows] if num_rows <= len(part.vertices) else None
        return Mask(p=p, seed=seed, ids=ids)
    num_vertices = part.vertices.stop - part.vertices.start
    # A worker may own no vertex.
    rows_per_vertex = max(1, num_rows // max(1, num_vertices))
    return Mask(p=p, seed=seed, first=part.vertices.start * rows_per_vertex)


def first_value() -> int:
    """Id of the first non-zero of sparse features, as :func:`rows_of` states it; 0 outside of its block."""
    part = _PART.get()
    return 0 if part is None else part.first_value


def drop(x: Tensor, mask: Mask) -> Tensor:
    """Drop the values that ``mask`` drops; differentiable any number of times."""
    out: Tensor = _Drop.apply(x, mask)  # type: ignore[no-untyped-call]
    return out


def dropped(x: Tensor, mask: Mask, out: Tensor | None = None) -> Tensor:
    """:func:`drop` without a gradient, to a contiguous ``out`` or a new tensor."""
    if mask.p == 0.0 and out is None:
        return x.clone()
    if x.dtype not in _ARITHMETIC:
        return dropped(x.float(), mask).to(x.dtype) if out is None else out.copy_(dropped(x.float(), mask))
    x = x.contiguous()
    kernel = _kernel(x.device.type)
    if mask.p == 1.0 or kernel is None:
        return torch.mul(x, random_rows(mask.ids_of(x), x.shape[1:], mask.p, 0, mask.seed, x.dtype), out=out)
    out = torch.empty_like(x) if out is None else out
    kernel.drop_rows(x, out, math.prod(x.shape[1:]), mask)
    return out


def _kernel(device_type: str) -> Any:
    """The module with the kernel for a kind of device, if any."""
    if device_type == "cpu":
        return import_module("sagann.kernels.row_dropout.cpu")
    if device_type == "cuda" and find_spec("triton") is not None:
        return import_module("sagann.kernels.row_dropout.gpu")
    return None


class _Drop(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, mask: Mask) -> Tensor:
        ctx.mask = mask
        return dropped(x, mask)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return drop(grad, ctx.mask), None
