"""Dropout of vertices' rows: one pass, no stored mask, and the same values whichever rows are computed together.

Whether feature j of row v stays is :func:`sagann.kernels.edge.random.random_rows` of the dropout's seed, v and j. So the
backward pass draws the mask again, and an interval, a block or a worker's part drops what the whole graph would drop.

In memory each call draws its seed from PyTorch's generator. A streamed model draws the seeds of an epoch beforehand, in
the order in which the model in memory would, and states rows and seeds with :func:`rows_of`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Protocol, Self, TypeVar, overload

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sagann.kernels.edge.random import random_rows
from sagann.kernels.seeds import drawn_seed

_ARITHMETIC = (torch.float32, torch.float64)


@dataclass(frozen=True, kw_only=True, slots=True)
class Mask:
    """Which values a dropout keeps."""

    p: float
    "Probability of dropping a value, from 0 to 1."
    seed: int
    "Seed of the dropout, from 0 to 2**31 - 1."
    first: int = 0
    "Id of the first row; ids ascend by one."

    def after(self, num_rows: int) -> Mask:
        """The mask of the rows that follow the first ``num_rows``."""
        return Mask(p=self.p, seed=self.seed, first=self.first + num_rows)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Part:
    """The rows that a stage of a streamed model computes."""

    vertices: slice
    seeds: Sequence[int]


_PART: ContextVar[_Part | None] = ContextVar("part", default=None)


@contextmanager
def rows_of(vertices: slice, seeds: Sequence[int]) -> Iterator[None]:
    """Inside the ``with`` block, dropout is of these vertices' rows.

    Args:
        vertices: ids of the vertices.
        seeds: seeds of the model's dropouts, by their numbers.
    """
    token = _PART.set(_Part(vertices=vertices, seeds=seeds))
    try:
        yield
    finally:
        _PART.reset(token)


class Dropped(Protocol):
    """Rows that are no tensor, and know how to be dropped."""

    def dropped(self, p: float, number: int = 0) -> Self:
        """See :func:`dropout`."""
        ...


T = TypeVar("T", bound=Dropped)


@overload
def dropout(x: Tensor, p: float, number: int = 0) -> Tensor: ...
@overload
def dropout(x: T, p: float, number: int = 0) -> T: ...
def dropout(x: Tensor | T, p: float, number: int = 0) -> Tensor | T:
    """Set values to 0 with probability ``p``, and scale the others by 1 / (1 - p).

    Args:
        x: [rows, ...]. Inside :func:`rows_of`, the same number of rows for each vertex. Or rows that are no tensor.
        p: probability of a zero, from 0 to 1.
        number: number of the dropout within its model; only :func:`rows_of` asks for it.
    """
    if not isinstance(x, Tensor):
        return x.dropped(p, number)
    if not is_plain(x) or not x.numel() or not x.ndim or not x.is_floating_point():
        return F.dropout(x, p, training=True)
    return drop(x, drawn_mask(len(x), p, number))


def is_plain(x: Tensor) -> bool:
    """Whether ``x`` holds values of its own: it is no tensor of a trace, and of no function transform."""
    return type(x) in (Tensor, nn.Parameter) and not (
        torch.compiler.is_compiling() or torch._C._functorch.is_functorch_wrapped_tensor(x)
    )


def drawn_mask(num_rows: int, p: float, number: int = 0) -> Mask:
    """The mask of a dropout that begins now.

    Args:
        num_rows: rows that it is of.
        p: probability of a zero.
        number: number of the dropout within its model.
    """
    part = _PART.get()
    if part is None:
        return Mask(p=p, seed=drawn_seed())
    rows_per_vertex = max(1, num_rows // (part.vertices.stop - part.vertices.start))
    return Mask(p=p, seed=part.seeds[number], first=part.vertices.start * rows_per_vertex)


def drop(x: Tensor, mask: Mask) -> Tensor:
    """Drop what ``mask`` says; differentiable any number of times."""
    out: Tensor = _Drop.apply(x, mask)  # type: ignore[no-untyped-call]
    return out


def dropped(x: Tensor, mask: Mask, out: Tensor | None = None) -> Tensor:
    """:func:`drop` without a gradient.

    Args:
        x: [rows, ...], of a floating type.
        mask: of these rows.
        out: where to write to, contiguous and of ``x``'s form; by default memory of its own.
    """
    if mask.p == 0.0 and out is None:
        return x.clone()
    if x.dtype not in _ARITHMETIC:
        return dropped(x.float(), mask).to(x.dtype) if out is None else out.copy_(dropped(x.float(), mask))
    x = x.contiguous()
    kernel = _kernel(x.device.type)
    if mask.p == 1.0 or kernel is None:
        kept = random_rows(_ids(x, mask), x.shape[1:], mask.p, 0, mask.seed, x.dtype)
        return torch.mul(x, kept, out=out)
    out = torch.empty_like(x) if out is None else out
    kernel.drop_rows(x, out, math.prod(x.shape[1:]), mask)
    return out


def _ids(x: Tensor, mask: Mask) -> Tensor:
    return torch.arange(mask.first, mask.first + len(x), device=x.device)


def _kernel(device_type: str) -> Any:
    """The module with the kernel for a kind of device; None where there is none."""
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
