"""Compiler options: every optimisation can be switched off, to measure its gain."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

MapOrder = Literal["cheaper", "first", "last"]


@dataclass(frozen=True, kw_only=True, slots=True)
class CompilerOptions:
    """Optimisations that the compiler may use; by default all."""

    hoist: bool = True
    "Compute values that depend on one end of an edge once per vertex."
    split_concat: bool = True
    "Split a linear map of a concatenation into maps of its parts, so that they can be hoisted."
    commute: bool = True
    "Swap linear maps and linear accumulators where that moves fewer bytes."
    invariant: bool = True
    "Keep rows that were gathered from constant features."
    fuse: bool = True
    "Run the edges as one pass without edge tensors; otherwise every edge tensor is materialised."
    typed_maps: MapOrder = "cheaper"
    """Where maps by edge type run: before the gather ("first"), after the gather if possible ("last"), or where fewer bytes move
    in the topology ("cheaper"). "first" needs ``hoist``; "last" needs ``hoist`` and ``commute``."""

    def __post_init__(self) -> None:
        if self.typed_maps not in get_args(MapOrder):
            raise ValueError(
                f"typed_maps is {self.typed_maps!r} in CompilerOptions, expected one of "
                f"{', '.join(get_args(MapOrder))}; leave it out to take the cheaper order"
            )
