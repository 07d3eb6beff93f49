"""Twins of the samplers in plain Python: a destination at a time, with sets and dictionaries."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import islice

import numpy as np
import torch
from torch import Tensor

from sagann.graph import Topology
from sagann.graph.random_numbers import GOLDEN, key_of, mix, stream_of, unit
from sagann.sampling import MiniBatch
from sagann.sampling.arguments import NEIGHBOURS


def draws(key: np.uint64, vertex: int) -> Iterator[float]:
    state = int(stream_of(key, np.uint64(vertex)))
    while True:
        state = (state + int(GOLDEN)) % 2**64
        yield unit(np.uint64(mix(np.uint64(state))))


def picked(
    edges: range, fanout: int, replace: bool, weights: Tensor | None, key: np.uint64, vertex: int
) -> list[int]:
    """The in-edges of a destination that a hop picks."""
    numbers = draws(key, vertex)
    if fanout == -1:
        replace, fanout = False, len(edges)
    if weights is not None:
        return _picked_by_weight(edges, fanout, replace, weights, numbers)
    if replace:
        return sorted(edges[int(u * len(edges))] for u in islice(numbers, fanout if edges else 0))
    if len(edges) <= fanout:
        return list(edges)
    found: set[int] = set()
    for last in range(len(edges) - fanout, len(edges)):
        edge = edges[int(next(numbers) * (last + 1))]
        found.add(edges[last] if edge in found else edge)
    return sorted(found)


def _picked_by_weight(
    edges: range, fanout: int, replace: bool, weights: Tensor, numbers: Iterator[float]
) -> list[int]:
    of = {edge: float(weights[edge]) for edge in edges}
    if not replace:
        times = [(-math.log(1 - u) / of[edge], edge) for edge, u in zip(edges, numbers, strict=False) if of[edge]]
        return sorted(edge for _, edge in sorted(times)[:fanout])
    total = sum(of.values())
    found = []
    for u in islice(numbers, fanout if total else 0):
        passed = 0.0
        for edge in edges:
            passed += of[edge]
            if passed > u * total:
                found.append(edge)
                break
    return sorted(found)


def blocks(
    topology: Topology,
    fanouts: Sequence[int],
    seeds: Sequence[int],
    *,
    replace: bool = False,
    weights: str | None = None,
    seed: int = 0,
    epoch: int = 0,
    batch: int = 0,
) -> tuple[list[Topology], list[int]]:
    """The blocks in the order in which a model walks them, and the ids of the first block's sources."""
    local = {vertex: number for number, vertex in enumerate(seeds)}
    data = None if weights is None else topology.edge_data[weights]
    made = []
    for hop, fanout in enumerate(fanouts):
        key = key_of(seed, NEIGHBOURS, epoch, batch, hop)
        indptr, indices, edge_ids = [0], [], []
        for vertex in list(local):
            edges = range(int(topology.indptr[vertex]), int(topology.indptr[vertex + 1]))
            edge_ids += picked(edges, fanout, replace, data, key, vertex)
            indptr.append(len(edge_ids))
        for edge in edge_ids:
            source = int(topology.indices[edge])
            indices.append(local.setdefault(source, len(local)))
        ids = torch.tensor(edge_ids, dtype=torch.int64)
        made.append(
            Topology(
                indptr=torch.tensor(indptr),
                indices=torch.tensor(indices, dtype=torch.int32),
                num_src=len(local),
                edge_data={name: rows[ids] for name, rows in topology.edge_data.items()},
                edge_ids=ids,
            )
        )
    return made[::-1], list(local)


def assert_same_block(ours: Topology, expected: Topology) -> None:
    """Equal edges, ids and data; ids may be wider in one."""
    assert (ours.num_src, ours.num_dst) == (expected.num_src, expected.num_dst)
    assert ours.indptr.equal(expected.indptr)
    assert ours.indices.long().equal(expected.indices.long())
    assert ours.edge_ids.long().equal(expected.edge_ids.long())
    assert ours.edge_data.keys() == expected.edge_data.keys()
    for name, rows in ours.edge_data.items():
        assert rows.dtype == expected.edge_data[name].dtype
        assert rows.equal(expected.edge_data[name])


def assert_same(ours: MiniBatch, expected: MiniBatch) -> None:
    """Equal seeds, sources and blocks, in every bit and type."""
    assert ours.src_ids.equal(expected.src_ids)
    assert ours.seeds.equal(expected.seeds)
    assert len(ours.blocks) == len(expected.blocks)
    for block, other in zip(ours.blocks, expected.blocks, strict=True):
        assert_same_block(block, other)
        for name in ("indptr", "indices", "edge_ids"):
            assert getattr(block, name).dtype == getattr(other, name).dtype
