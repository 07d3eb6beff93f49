"""How a Triton kernel holds its values: a tile of edges by the lanes of a row, or by a tile of its features.

A program owns an item's rows (:mod:`sagann.kernels.edge.work`) and goes over a row's edges several at a time: that
is what keeps enough loads in flight. Every one of those edges has accumulators of its own, which meet at the end of
the row. Dimensions are padded to powers of two, as Triton asks for. The sizes depend on the function alone, so
every sum has one order.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from sagann.kernels.edge.function import EdgeFunction, Input, Op, Output, Shape
from sagann.kernels.edge.kinds import KINDS, feature_width, kind_of, lanes, results_of

# Features of a tile: with one warp and float32, 16 bytes for each thread and edge.
TILE = 128
# 4-byte words of a value that one warp holds: 16 registers of each thread.
WORDS_OF_WARP = 512
# Values of that size, accumulators and loaded rows, beyond which fewer edges are taken at a time.
MOST_VALUES = 6
MOST_EDGES = 16
MOST_WARPS = 8
# Padded lanes of a resident row beyond which it would not fit the registers of a program.
MOST_LANES = 4096


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """Sizes of a kernel."""

    num_features: int
    "Features that are cut into tiles; 0 where rows are resident."
    tile: int
    "Features of a tile, a power of two; 0 where rows are resident."
    edges: int
    "Edges at a time, a power of two."
    warps: int
    "Warps of a program."

    @property
    def num_tiles(self) -> int:
        """Programs that share the features of a row."""
        return -(-self.num_features // self.tile) if self.tile else 1


def padded(shape: Shape) -> Shape:
    """Every dimension as the next power of two."""
    return tuple(power_of_two(size) for size in shape)


def power_of_two(size: int) -> int:
    """The least power of two that is not below a positive size."""
    return 1 << (size - 1).bit_length()


def choose_layout(function: EdgeFunction) -> Layout:
    """The layout for a function."""
    num_features = feature_width(function)
    if num_features is not None:
        tile = min(TILE, power_of_two(num_features))
        return Layout(num_features=num_features, tile=tile, edges=_edges(function, tile), warps=1)
    widest = max((math.prod(padded(value.shape)) for value in function.values), default=1)
    edges = _edges(function, widest)
    warps = min(MOST_WARPS, max(1, edges * widest // WORDS_OF_WARP))
    return Layout(num_features=0, tile=0, edges=edges, warps=warps)


def shared_results(function: EdgeFunction, layout: Layout) -> list[int]:
    """Results of one lane a row that the programs of a row's tiles all write."""
    if layout.num_tiles == 1:
        return []
    results = enumerate(results_of(function))
    return [number for number, result in results if result.rows == "row" and math.prod(result.shape) == 1]


def _edges(function: EdgeFunction, num_lanes: int) -> int:
    """How many edges of that many lanes fit a warp's registers."""
    held = sum(output.reduction.registers for output in function.outputs if lanes(_value(function, output)) > 1)
    held += sum(1 for given in function.inputs if lanes(given) > 1)
    words = num_lanes * (2 if any(kind_of(value) == "f8" for value in function.values) else 1)
    edges = min(WORDS_OF_WARP // words, MOST_VALUES * WORDS_OF_WARP // (words * max(1, held)), MOST_EDGES)
    return 1 << (max(1, edges).bit_length() - 1)


def _value(function: EdgeFunction, output: Output) -> Input | Op:
    return function.value(output.values[-1])


def supports(function: EdgeFunction) -> str | None:
    """Why a function cannot be a Triton kernel, or None where it can; half precision is computed in float32."""
    for value in function.values:
        if value.dtype not in KINDS:
            return f"value '{value.name}' has the type {value.dtype}, which kernels have no lanes of"
    if feature_width(function) is not None:
        return None
    for value in function.values:
        if lanes(value) and (count := math.prod(padded(value.shape))) > MOST_LANES:
            shape = list(value.shape)
            return f"value '{value.name}' of shape {shape} takes {count} lanes where rows are resident, at most {MOST_LANES}"
    return None
