"""Checks of what callers pass to samplers, and the purposes of random numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sagann.errors import InputError, in_one_line, require_type, shown
from sagann.graph.topology import Topology
from sagann.ranges import RANGES

# Purposes of random numbers (`key_of`): equal seeds of a run give different numbers for each.
SHUFFLE, NEIGHBOURS, LINKS, MEASURED_LINKS, TRAINERS = range(16, 21)

MOST_DRAWN = 2**28
"Most edges that a hop of a batch picks with replacement. Without replacement, a hop has no more edges than the graph."


def require_some(seeds: Tensor) -> None:
    """Refuse a batch without a seed."""
    if len(seeds) == 0:
        raise InputError("batch is empty: 0 seeds, at least 1 is needed (in seeds)", hint="Pass seeds.")


def require_drawable(num_picks: int, num_dst: int, fanout: int, *, where: str) -> None:
    """Refuse a hop that picks more than :data:`MOST_DRAWN` edges with replacement."""
    if num_picks > MOST_DRAWN:
        raise InputError(
            f"a hop picks too many edges with replacement: {num_picks:,} for {num_dst:,} destinations of "
            f"{fanout:,} each, at most {MOST_DRAWN:,} are allowed (in {where})",
            hint="Lower the fanouts or the number of seeds, or pick without replacement.",
        )


def require_square(topology: Topology, *, where: str) -> None:
    """Refuse what is not a topology in memory of the processor, whose sources are its destinations; a LayerError where its edges were overwritten."""
    hint = "Pass a topology: that of a graph is graph.topology."
    require_type(topology, Topology, where=where, hint=hint)
    if topology.device.type != "cpu":
        raise InputError(
            f"edges are not in the processor's memory: they are on a device of type '{topology.device.type}' "
            f"(in {where})",
            hint="Move the topology with .to('cpu').",
        )
    if topology.num_src != topology.num_dst:
        raise InputError(
            f"sources and destinations differ: {topology.num_src} sources, {topology.num_dst} destinations (in "
            f"{where})",
            hint="Pass the topology of a whole graph, whose vertices are both.",
        )
    topology.require_unwritten()


def as_ids(ids: Tensor | Sequence[int] | np.ndarray[Any, Any], *, where: str) -> Tensor:
    """Ids or a mask as a tensor; a list, a tuple or a NumPy array is copied, and its integers become int64. What is in it is not checked."""
    if isinstance(ids, Tensor):
        return ids
    hint = "Pass ids as a tensor, a list or a NumPy array."
    require_type(ids, (Tensor, list, tuple, np.ndarray), where=where, hint=hint)
    try:
        found = torch.tensor(ids) if len(ids) else torch.empty(0, dtype=torch.int64)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"these are no ids: {in_one_line(error)} (in {where})", hint=hint) from error
    is_integer = not (found.dtype == torch.bool or found.is_floating_point() or found.is_complex())
    return found.to(torch.int64) if is_integer else found


def require_fanouts(
    fanouts: Sequence[int | np.integer[Any]], *, replace: bool = False, where: str
) -> tuple[int, ...]:
    """The number of in-edges that a destination of each hop picks; refuse what is no such list."""
    hint = "Pass a list of a number of edges for each hop, or -1 for all edges."
    require_type(fanouts, (list, tuple), where=where, hint=hint)
    allowed = RANGES["replacing_fanout" if replace else "fanout"]
    found = [int(fanout) if isinstance(fanout, np.integer) else fanout for fanout in fanouts]
    for hop, fanout in enumerate(found):
        require_type(fanout, int, where=f"{where}, hop {hop}", hint=hint)
        if fanout != -1 and fanout not in allowed:
            raise InputError(
                f"fanout out of range: {shown(fanout)}, expected {allowed}, or -1 for all "
                f"edges{', where edges are picked with replacement' if replace else ''} (in {where}, hop {hop})",
                hint=hint,
            )
    if not found:
        raise InputError(f"there are no hops: 0 fanouts, at least 1 is needed (in {where})", hint=hint)
    return tuple(found)
