"""Pairs of a vertex and an edge type. A map picked by type is computed once per distinct pair.

Pairs are sorted by type, so each type is one matrix product over a run of pairs. In the topology of pairs, edges have pairs in
place of sources (same edges, same order, other ids) or in place of destinations (edges grouped anew). Pairs and their counts
are found once per topology and kept with the topology.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sagann.compiler.program import End
from sagann.graph.counting_sort import group_by_key
from sagann.graph.rows import id_dtype
from sagann.graph.topology import Topology, for_training_as_well
from sagann.kernels import typed_linear


@dataclass(frozen=True, kw_only=True, slots=True)
class Pairs:
    """The distinct pairs of type and vertex that the edges of a topology have at one end."""

    topology: Topology
    """The edges, with pairs at that end. A topology has at least as many sources as destinations, so there may be more sources
    than rows of an array of sources. No edge has one of those."""
    types: Tensor
    "Types of the edges in that topology's order [num_edges]."
    vertex: Tensor
    "Vertex of each pair, int64 [num_pairs]; ascending within a type."
    counts: tuple[int, ...]
    "Pairs of each type."
    members: Topology
    "Topology from pairs to their vertices, which sums the pairs of a vertex."
    order: Tensor | None
    "For each edge of that topology, its id in the graph; None where the edges are in the same order."

    def in_order(self, rows: Tensor) -> Tensor:
        """Rows of the graph's edges in the order of these edges."""
        return rows if self.order is None else rows.index_select(0, self.order)


def check_types(topology: Topology, types: Tensor, num_types: int) -> None:
    """Refuse types that are negative or not below ``num_types``; checked once per topology."""
    _kept(topology, "checked types", types, num_types, lambda: typed_linear.check_types(types, num_types))


def _kept(topology: Topology, what: str, types: Tensor, num_types: int, build: Callable[[], Any]) -> Any:
    """A result of ``build`` from the types, kept with the topology until the types change."""
    if types.is_inference():
        return build()
    kept: dict[object, tuple[int, Any]] = topology.derived(what, dict)
    key = (types.data_ptr(), types.dtype, types.stride(), num_types)
    if key not in kept or kept[key][0] != types._version:
        with for_training_as_well():
            kept[key] = (types._version, build())
    return kept[key][1]


def count_pairs(topology: Topology, types: Tensor, num_types: int) -> dict[End, int]:
    """Number of pairs at either end; counted once."""
    check_types(topology, types, num_types)

    def count() -> dict[End, int]:
        return {end: len(torch.unique(_keys(topology, types, end))) for end in ("src", "dst")}

    counts: dict[End, int] = _kept(topology, "numbers of typed pairs", types, num_types, count)
    return counts


def pairs_of(topology: Topology, types: Tensor, num_types: int, end: End) -> Pairs:
    """The pairs of a topology at the end of the edges that pairs replace; found once."""
    check_types(topology, types, num_types)
    find = _at_sources if end == "src" else _at_destinations
    pairs: Pairs = _kept(
        topology, f"typed pairs, {end}", types, num_types, lambda: find(topology, types, num_types)
    )
    return pairs


def _keys(topology: Topology, types: Tensor, end: End) -> Tensor:
    """A number for every edge's pair. The numbers order pairs by type, then by vertex."""
    ids, num_vertices = _vertices(topology, end)
    return types.long() * num_vertices + ids


def _vertices(topology: Topology, end: End) -> tuple[Tensor, int]:
    return (topology.indices, topology.num_src) if end == "src" else (topology.edge_dst(), topology.num_dst)


def _at_sources(topology: Topology, types: Tensor, num_types: int) -> Pairs:
    distinct, index = torch.unique(_keys(topology, types, "src"), return_inverse=True)
    num_rows = max(len(distinct), topology.num_dst)
    part = Topology(
        indptr=topology.indptr,
        indices=index.to(id_dtype(num_rows)),
        num_src=num_rows,
        edge_data={"type": types},
        validate=False,
    )
    return _pairs(part, distinct, topology.num_src, num_types, None)


def _at_destinations(topology: Topology, types: Tensor, num_types: int) -> Pairs:
    distinct, index = torch.unique(_keys(topology, types, "dst"), return_inverse=True)
    grouped = group_by_key(index, len(distinct), values=topology.indices, positions=True)
    part = Topology(
        indptr=grouped.indptr,
        indices=grouped.values,
        num_src=max(topology.num_src, len(distinct)),
        edge_data={"type": types.index_select(0, grouped.positions)},
        validate=False,
    )
    return _pairs(part, distinct, topology.num_dst, num_types, grouped.positions)


def _pairs(part: Topology, distinct: Tensor, num_vertices: int, num_types: int, order: Tensor | None) -> Pairs:
    # Without vertices there are no pairs either.
    per_type = max(num_vertices, 1)
    vertex = distinct % per_type
    grouped = group_by_key(vertex, num_vertices, positions=True)
    num_rows = max(len(distinct), num_vertices)
    members = Topology(
        indptr=grouped.indptr, indices=grouped.positions.to(id_dtype(num_rows)), num_src=num_rows, validate=False
    )
    counts = torch.bincount(distinct // per_type, minlength=num_types)
    return Pairs(
        topology=part,
        types=part.edge_data["type"],
        vertex=vertex,
        counts=tuple(counts.tolist()),
        members=members,
        order=order,
    )
