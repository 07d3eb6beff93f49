"""Dropout of vertices' rows whose masks belong to the vertices, however these are cut into intervals.

Masks are drawn for blocks of vertices, each from a generator seeded by the epoch, the dropout and the block. An interval
draws the blocks that it touches.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

_BLOCK_ROWS = 1024
# Odd numbers that spread what is counted over 64 bits.
_OF_SEED, _OF_CALL, _OF_BLOCK = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


@dataclass(kw_only=True, slots=True)
class _Rows:
    seed: int
    vertices: slice
    calls: int = 0


_ROWS: ContextVar[_Rows | None] = ContextVar("rows", default=None)


@contextmanager
def rows_of(vertices: slice, seed: int) -> Iterator[None]:
    """Inside the ``with`` block, dropout is of these vertices' rows; the calls of it are told apart by their order."""
    token = _ROWS.set(_Rows(seed=seed, vertices=vertices))
    try:
        yield
    finally:
        _ROWS.reset(token)


def dropout(x: Tensor, p: float) -> Tensor:
    """PyTorch's dropout; of the rows of some vertices (:func:`rows_of`) with the vertices' masks.

    Args:
        x: [rows, ...]; as many rows per vertex for each.
        p: probability of a zero.
    """
    rows = _ROWS.get()
    if rows is None or not len(x):
        return F.dropout(x, p, training=True)
    rows.calls += 1
    if p == 1.0:
        return x * 0.0
    return x * _mask(x, p, rows).div_(1.0 - p)


def _mask(like: Tensor, p: float, rows: _Rows) -> Tensor:
    """1 where a value stays, 0 where it does not."""
    first, last = rows.vertices.start, rows.vertices.stop
    per_vertex = len(like) // (last - first)
    mask = torch.empty_like(like, requires_grad=False)
    for begin in range(first - first % _BLOCK_ROWS, last, _BLOCK_ROWS):
        mixed = rows.seed * _OF_SEED + rows.calls * _OF_CALL + begin // _BLOCK_ROWS * _OF_BLOCK
        generator = torch.Generator(like.device).manual_seed((mixed ^ mixed >> 29) % 2**63)
        # The whole block is drawn, so that its numbers do not depend on where it is cut.
        block = like.new_empty(_BLOCK_ROWS * per_vertex, *like.shape[1:], requires_grad=False)
        block.bernoulli_(1.0 - p, generator=generator)
        here = slice(max(begin, first), min(begin + _BLOCK_ROWS, last))
        into = mask[(here.start - first) * per_vertex : (here.stop - first) * per_vertex]
        into.copy_(block[(here.start - begin) * per_vertex : (here.stop - begin) * per_vertex])
    return mask
