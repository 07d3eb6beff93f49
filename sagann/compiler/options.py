"""CompilerOptions: every optimisation can be switched off, for measuring what it gives."""

from __future__ import annotations

from dataclasses import dataclass


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
