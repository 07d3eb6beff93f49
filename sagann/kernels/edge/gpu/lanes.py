"""Moving lanes in registers: reshape, permute, slice and cat of padded rows, as Triton expressions.

A row of shape [H, D] lies in a block [edges, H', D'], with every dimension padded to a power of two. So a reshape keeps lanes in
place only where no padding stands between them. Elsewhere ``tl.gather`` fetches each lane. Padding holds arbitrary values.
"""

from __future__ import annotations

import math

import numpy as np

from sagann.kernels.edge.function import Shape
from sagann.kernels.edge.gpu.layout import padded


def block(lead: str, shape: Shape) -> str:
    """Text of a block's shape."""
    return f"[{', '.join([lead, *map(str, padded(shape))])}]"


def along(rank: int, dim: int) -> str:
    """Text of the index that puts a vector along a feature dimension of a row of that rank."""
    return "[" + ", ".join(["None"] + [":" if at == dim else "None" for at in range(rank)]) + "]"


def offsets(shape: Shape) -> str:
    """Text of every lane's position in an unpadded row."""
    if not shape:
        return "tl.arange(0, 1)"
    terms = []
    for dim, size in enumerate(padded(shape)):
        stride = math.prod(shape[dim + 1 :])
        term = f"tl.arange(0, {size}){along(len(shape), dim)}"
        terms.append(term if stride == 1 else f"{term} * {stride}")
    return " + ".join(terms)


def mask(shape: Shape) -> str | None:
    """Text of the mask of lanes that are no padding; None where there is no padding."""
    terms = [
        f"(tl.arange(0, {size}){along(len(shape), dim)} < {shape[dim]})"
        for dim, size in enumerate(padded(shape))
        if size != shape[dim]
    ]
    return " & ".join(terms) or None


def reshape_index(source: Shape, target: Shape, o_target: str) -> str | None:
    """Text of each target lane's place among the source's padded lanes, [1, lanes]; None where lanes keep theirs.

    ``o_target`` is the text of the target's :func:`offsets`.
    """
    if np.array_equal(_places(source), _places(target)):
        return None
    flat = f"tl.reshape({o_target}, [1, {math.prod(padded(target))}])"
    terms = []
    for dim, size in enumerate(source):
        stride, place = math.prod(source[dim + 1 :]), math.prod(padded(source)[dim + 1 :])
        term = flat if stride == 1 else f"{flat} // {stride}"
        terms.append(f"{term} % {size}" if place == 1 else f"{term} % {size} * {place}")
    return " + ".join(terms) if terms else f"{flat} * 0"


def _places(shape: Shape) -> np.ndarray:
    """Places of a row's lanes among its padded lanes, and the number of padded lanes."""
    grid = np.arange(math.prod(padded(shape))).reshape(padded(shape))
    return np.append(grid[tuple(slice(size) for size in shape)], grid.size)


def reshaped(value: str, lead: str, source: Shape, target: Shape, index: str | None) -> str:
    """Text of a reshape; ``index`` names what :func:`reshape_index` says."""
    if index is None:
        return f"tl.reshape({value}, {block(lead, target)})"
    before, after = math.prod(padded(source)), math.prod(padded(target))
    places = f"tl.broadcast_to({index}, [{lead}, {after}])"
    return f"tl.reshape(tl.gather(tl.reshape({value}, [{lead}, {before}]), {places}, 1), {block(lead, target)})"


def slice_index(shape: Shape, dim: int, start: int, step: int, size: int) -> str:
    """Text of the places of a slice's lanes along ``dim``. Padding repeats the last lane."""
    lanes = f"tl.arange(0, {padded((size,))[0]})"
    return f"tl.minimum({lanes} * {step} + {start}, {shape[dim] - 1}){along(len(shape), dim)}"


def gathered(value: str, lead: str, shape: Shape, dim: int, index: str) -> str:
    """Text of lanes fetched along ``dim``; ``shape`` is the result's shape."""
    return f"tl.gather({value}, tl.broadcast_to({index}, {block(lead, shape)}), {dim + 1})"
