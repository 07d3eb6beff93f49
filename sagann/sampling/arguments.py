"""Checks of what callers pass to samplers, and the purposes of random numbers."""

from __future__ import annotations

import torch
from torch import Tensor

from sagann.errors import InputError, require_type
from sagann.graph.checks import check_ids, numbered, wrong_form
from sagann.graph.topology import Topology

# Purposes of random numbers (`key_of`): equal seeds of a run give different numbers for each.
SHUFFLE, NEIGHBOURS, LINKS = range(16, 19)


def require_ids(ids: Tensor, num_vertices: int | None = None, *, where: str) -> None:
    """Refuse what is not a tensor of vertex ids, int64 [n]."""
    require_type(ids, Tensor, where=where, fix="Convert the ids with torch.as_tensor.")
    if ids.dtype != torch.int64 or ids.ndim != 1:
        fix = "Pass ids with .to(torch.int64), or mask.nonzero().squeeze(1) for a mask."
        raise wrong_form(ids, "torch.int64 [n]", where=where, fix=fix)
    check_ids(ids, num_vertices, "vertex", where=numbered(where, "position"))


def require_square(topology: Topology, *, where: str) -> None:
    """Refuse what is not a topology in memory of the processor, whose sources are its destinations."""
    fix = "Pass a topology: that of a graph is graph.topology."
    require_type(topology, Topology, where=where, fix=fix)
    if topology.device.type != "cpu":
        raise InputError(
            "edges are not in the processor's memory",
            value=f"they are on a device of type '{topology.device.type}'",
            where=where,
            fix="Move the topology with .to('cpu').",
        )
    if topology.num_src != topology.num_dst:
        raise InputError(
            "sources and destinations differ",
            value=f"{topology.num_src} sources, {topology.num_dst} destinations",
            where=where,
            fix="Pass the topology of a whole graph, whose vertices are both.",
        )
