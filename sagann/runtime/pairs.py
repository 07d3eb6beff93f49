"""Pairs of source and edge type: where maps picked by type are computed, once per distinct pair.

Pairs are sorted by type, so each type is one matrix product over a run of them. The edges of a topology then read
rows of pairs instead of rows of sources: the same edges in the same order, with other ids.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sagann.errors import InputError
from sagann.graph.topology import Topology
from sagann.graph.widths import id_dtype


@dataclass(frozen=True, kw_only=True, slots=True)
class Pairs:
    """The distinct pairs of source and type that edges have."""

    topology: Topology
    "The same edges; their sources are pairs."
    src: Tensor
    "Source of each pair, int64, sorted by type."
    counts: tuple[int, ...]
    "Pairs of each type."


def check_types(topology: Topology, types: Tensor, num_types: int) -> None:
    """Refuse types out of range; looked at once per topology.

    Raises:
        InputError: a type is negative, or not below ``num_types``.
    """
    _kept(topology, "checked types", types, num_types, lambda: _check(types, num_types))


def _kept(topology: Topology, what: str, types: Tensor, num_types: int, build: Callable[[], Any]) -> Any:
    """What follows from the types, found again when they have changed."""
    if types.is_inference():
        return build()
    kept: dict[object, tuple[int, Any]] = topology.derived(what, dict)
    key = (types.data_ptr(), types.dtype, num_types)
    if key not in kept or kept[key][0] != types._version:
        kept[key] = (types._version, build())
    return kept[key][1]


def _check(types: Tensor, num_types: int) -> bool:
    outside = (types < 0) | (types >= num_types)
    if outside.any():
        edge = int(outside.nonzero()[0])
        raise InputError(
            "edge type out of range",
            value=f"{int(types[edge])}, but there are {num_types} types",
            where=f"typed_linear, row {edge}",
            fix="Build the layer with the graph's num_edge_types.",
        )
    return True


def pairs_of(topology: Topology, types: Tensor, num_types: int) -> Pairs:
    """The pairs of a topology; found once."""
    check_types(topology, types, num_types)
    pairs: Pairs = _kept(topology, "typed pairs", types, num_types, lambda: _find(topology, types, num_types))
    return pairs


def _find(topology: Topology, types: Tensor, num_types: int) -> Pairs:
    keys = types.long() * topology.num_src + topology.indices.long()
    distinct, index = torch.unique(keys, return_inverse=True)
    counts = torch.bincount(distinct // max(topology.num_src, 1), minlength=num_types)
    num_rows = max(len(distinct), topology.num_dst)
    part = Topology(indptr=topology.indptr, indices=index.to(id_dtype(num_rows)), num_src=num_rows, validate=False)
    return Pairs(topology=part, src=distinct % max(topology.num_src, 1), counts=tuple(counts.tolist()))


def mapped(x: Tensor, pairs: Pairs, weight: Tensor) -> Tensor:
    """Each pair's source row through the map of its type: [rows of the pairs' topology, F']."""
    runs = pairs.src.split(pairs.counts)
    rows = [x.index_select(0, run) @ weight[kind] for kind, run in enumerate(runs) if len(run)]
    rows.append(x.new_zeros(pairs.topology.num_src - len(pairs.src), weight.shape[2]))
    return torch.cat(rows)


def spread(rows: Tensor, pairs: Pairs) -> Tensor:
    """Each pair's source row as it is."""
    missing = pairs.topology.num_src - len(pairs.src)
    return torch.cat([rows.index_select(0, pairs.src), rows.new_zeros(missing, *rows.shape[1:])])
