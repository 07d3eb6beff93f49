"""Layout of a Triton kernel's values: a tile of edges by the lanes of a row, or by a tile of features.

A program does the rows of a work item (:mod:`sagann.kernels.edge.work`). It takes several edges of a row at a time, to keep
enough loads in flight. Each of these edges has accumulators of its own, which are reduced at the end of the row. Dimensions are
padded to powers of two, because Triton requires them. The sizes depend on the function alone, so every sum has one order.

A row of shape [H, D] lies in a block [edges, H', D']. So a reshape keeps lanes in place only where no padding stands between them. Elsewhere
``tl.gather`` fetches each lane. Padding holds arbitrary values.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from sagann.kernels.edge.function import KINDS, EdgeFunction, Shape, kind_of, lanes

# Features of a tile: one warp loads 16 bytes of float32 for each thread and edge.
TILE = 128
# 4-byte words of a value that one warp holds: 16 registers of each thread.
WORDS_OF_WARP = 512
# Most values of that size, accumulators and loaded rows. Beyond, a program takes fewer edges at a time.
MOST_VALUES = 6
MOST_EDGES = 16
MOST_WARPS = 8
# Most padded lanes of a resident row that fit the registers of a program.
MOST_LANES = 4096


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """Sizes of a kernel."""

    num_features: int
    "Number of features that are cut into tiles; 0 where rows are resident."
    tile: int
    "Number of features of a tile, a power of two; 0 where rows are resident."
    edges: int
    "Number of edges at a time, a power of two."
    warps: int
    "Number of warps of a program."

    @property
    def num_tiles(self) -> int:
        """Number of programs that share the features of a row."""
        return -(-self.num_features // self.tile) if self.tile else 1


def padded(shape: Shape) -> Shape:
    """Every dimension as the next power of two."""
    return tuple(power_of_two(size) for size in shape)


def power_of_two(size: int) -> int:
    """The least power of two that is at least a positive size."""
    return 1 << (size - 1).bit_length()


def choose_layout(function: EdgeFunction) -> Layout:
    """The layout for a function."""
    num_features = function.feature_width
    if num_features is not None:
        tile = min(TILE, power_of_two(num_features))
        return Layout(num_features=num_features, tile=tile, edges=_edges(function, tile), warps=1)
    widest = max((math.prod(padded(value.shape)) for value in function.values), default=1)
    edges = _edges(function, widest)
    warps = min(MOST_WARPS, max(1, edges * widest // WORDS_OF_WARP))
    return Layout(num_features=0, tile=0, edges=edges, warps=warps)


def shared_results(function: EdgeFunction, num_tiles: int) -> list[int]:
    """Positions of results with one lane per row, which the programs of all tiles write."""
    if num_tiles == 1:
        return []
    results = enumerate(function.results)
    return [number for number, result in results if result.rows == "row" and math.prod(result.shape) == 1]


def _edges(function: EdgeFunction, num_lanes: int) -> int:
    """Number of edges, of so many lanes, that fit a warp's registers."""
    held = sum(
        output.reduction.registers for output in function.outputs if lanes(function.value(output.values[-1])) > 1
    )
    held += sum(1 for given in function.inputs if lanes(given) > 1)
    words = num_lanes * (2 if any(kind_of(value) == "f8" for value in function.values) else 1)
    edges = min(WORDS_OF_WARP // words, MOST_VALUES * WORDS_OF_WARP // (words * max(1, held)), MOST_EDGES)
    return 1 << (max(1, edges).bit_length() - 1)


def supports(function: EdgeFunction) -> str | None:
    """The reason why a function cannot be a Triton kernel, or None. Half precision is computed in float32."""
    reason: str | None = function.derived(supports, lambda: _why_not(function))
    return reason


def _why_not(function: EdgeFunction) -> str | None:
    for value in function.values:
        if value.dtype not in KINDS:
            return f"value '{value.name}' has the type {value.dtype}, which kernels have no lanes of"
    if function.feature_width is not None:
        return None
    for value in function.values:
        if lanes(value) and (count := math.prod(padded(value.shape))) > MOST_LANES:
            shape = list(value.shape)
            return f"value '{value.name}' of shape {shape} takes {count} lanes where rows are resident, at most {MOST_LANES}"
    return None


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
