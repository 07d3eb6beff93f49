"""CompilerOptions: every optimisation can be switched off, for measuring what it gives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

MapOrder = Literal["cheaper", "first", "last"]


@dataclass(frozen=True, kw_only=True, slots=True)
class CompilerOptions:
    """What the compiler may do. All of it by default."""

    hoist: bool = True
    "Compute what depends on one end of an edge once per vertex."
    split_concat: bool = True
    "Split a linear map of a concatenation into maps of its parts, so that they can be hoisted."
    commute: bool = True
    "Swap linear maps and linear accumulators where that moves fewer bytes."
    invariant: bool = True
    "Keep what was gathered from constant features."
    fuse: bool = True
    "One pass over the edges without edge tensors; else every edge tensor is materialised."
    typed_maps: MapOrder = "cheaper"
    """Maps by edge type before the gather ("first"), after it where they may ("last"), or what moves fewer bytes in
    the topology at hand. They move at all where ``hoist`` is on, and to the end where ``commute`` is, too."""

    def __post_init__(self) -> None:
        if self.typed_maps not in get_args(MapOrder):
            raise ValueError(
                f"typed_maps is {self.typed_maps!r} in CompilerOptions, expected one of "
                f"{', '.join(get_args(MapOrder))}; leave it out to take the cheaper order"
            )
