"""Compact: a chunk's edges, counting the other end's rows among those that the chunk needs; and the way back."""

from __future__ import annotations

import torch
from torch import Tensor

# Ids that are turned back at a time: no second array of all of them is made.
_AT_ONCE = 1 << 16


def needed_ids(ids: Tensor, num_rows: int) -> Tensor:
    """The rows that edges have at one end, ascending: [n], of the ids' type.

    Args:
        ids: the edges' rows at that end.
        num_rows: how many rows there are.
    """
    has_edges = torch.zeros(num_rows, dtype=torch.bool, device=ids.device)
    has_edges[ids.long()] = True
    return has_edges.nonzero().squeeze(1).to(ids.dtype)


def compact_ids(ids: Tensor, needed: Tensor, num_rows: int) -> Tensor:
    """The edges' rows, numbered among those that are needed.

    Args:
        ids: the edges' rows at one end.
        needed: as :func:`needed_ids` gives them.
        num_rows: how many rows there are.
    """
    numbers = torch.empty(num_rows, dtype=ids.dtype, device=ids.device)
    numbers[needed.long()] = torch.arange(len(needed), dtype=ids.dtype, device=ids.device)
    return numbers[ids.long()]


def expand_ids(numbers: Tensor, needed: Tensor) -> None:
    """Put ids within the interval in the place of numbers among those that are needed."""
    for begin in range(0, len(numbers), _AT_ONCE):
        part = numbers[begin : begin + _AT_ONCE]
        part.copy_(needed[part.long()])
