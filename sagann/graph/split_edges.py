"""Edge splits: which edges to train, validate and test on, where a model predicts edges.

A hash of the seed and of an edge's two ends puts the edges in an order, and the shares are cut from this order. So the edges
between two vertices, their directions included, are in the same part, without a search for the reverse of an edge. No threads and no
order of the edges change the split. The hash is computed twice, so that only one number per edge is kept: 8 bytes beside the result.

Self-loops are in the training part: a model that tells that a vertex is joined to itself has learned nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numba import prange
from torch import Tensor

from sagann.errors import require_type
from sagann.graph.checks import require_distinct, wrong_form
from sagann.graph.random_numbers import key_of, stream_of
from sagann.graph.split import require_shares
from sagann.graph.topology import Topology
from sagann.graph.transform import keep_edges
from sagann.jit import Array, compiled, pytorch_threads

# Purpose of the random numbers (`key_of`), above those of the generators of graphs.
EDGE_SPLIT = 8
_LOOP = -1
"Stands before the hash of every other edge."
_END = 2**63 - 1
"Stands after the hash of every edge."


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class EdgeSplit:
    """The edges of a topology in three parts, each a topology of the same vertices.

    Each edge is in one part, with its edge data. ``edge_ids`` of a part are the edges' ids in the topology that was split.
    """

    train: Topology
    "Edges to learn from. Messages travel along these edges only, also where a model is measured on the others."
    val: Topology
    "Edges to choose a model by."
    test: Topology
    "Edges to measure the chosen model on."


def edge_split(
    topology: Topology,
    *,
    train: float = 0.85,
    val: float = 0.05,
    seed: int,
    undirected: bool = True,
    ids: Tensor | None = None,
) -> EdgeSplit:
    """Draw shares of the edges at random; the rest is for testing.

    Edges with the same ends are not separated, so a cut between two parts may miss its place by the edges between two vertices.

    Split a graph before ``model.prepare(graph)``, which may add edge data: degree weights tell how many edges a vertex has
    in all parts.

    Args:
        topology: any topology; edge data are divided with the edges.
        train: share for training, in [0, 1], of the edges that are no self-loops.
        val: share for validation, in [0, 1].
        seed: seed of the draw.
        undirected: keep ``v -> u`` in the part of ``u -> v``, which would give it away. Pass False where a model is to
            tell the directions apart.
        ids: int64 [num_src], distinct, by which vertices are known to the draw: those before they were renumbered
            (``Graph.original_ids``), so that the same edges are drawn. None for their present ids.
    Raises:
        InputError: shares that are negative or exceed 1 together, or an argument of a wrong type.
        LayerError: edges were overwritten.
    References:
        Kipf and Welling, Variational Graph Auto-Encoders, NeurIPS workshop on Bayesian Deep Learning 2016, Sec. 3 (85, 5 and 10 %).
    Example:
        >>> topology = Topology.from_coo(src=torch.tensor([0, 1, 1, 2]), dst=torch.tensor([1, 0, 2, 1]), num_src=3)
        >>> split = edge_split(topology, train=0.5, val=0.5, seed=0)
        >>> split.train.num_edges, split.val.num_edges, split.test.num_edges
        (2, 2, 0)
    """
    hint = "Pass a topology: that of a graph is graph.topology."
    require_type(topology, Topology, where="edge_split, topology", hint=hint)
    topology.require_unwritten()
    require_shares(train, val, where="edge_split")
    if ids is not None:
        require_distinct(ids, where="edge_split, ids")
        if len(ids) != topology.num_src:
            hint = "Pass the id of every vertex, as graph.original_ids."
            raise wrong_form(ids, f"torch.int64 [{topology.num_src}]", where="edge_split, ids", hint=hint)
    known_as = np.arange(topology.num_src) if ids is None else ids.cpu().numpy()
    cuts = _cuts(_hashes(topology, known_as, seed, undirected), train, val)
    hashes = _hashes(topology, known_as, seed, undirected)[:-1]
    part = torch.from_numpy((hashes >= cuts[0]).view(np.uint8) + (hashes >= cuts[1])).to(topology.device)
    del hashes
    train_part, val_part, test_part = (keep_edges(topology, part == number, with_ids=True) for number in range(3))
    return EdgeSplit(train=train_part, val=val_part, test=test_part)


def _cuts(hashes: Array, train: float, val: float) -> list[int]:
    """The least hashes that are not in the training part, and neither in that for validation. Reorders ``hashes``."""
    num_loops = int(np.count_nonzero(hashes == _LOOP))
    num_drawn = len(hashes) - 1 - num_loops
    # Rounded cumulatively, so that shares which add up to 1 leave nothing over.
    ends = [num_loops + round(train * num_drawn), num_loops + round((train + val) * num_drawn)]
    hashes.partition(ends)
    return [int(cut) for cut in hashes[ends]]


def _hashes(topology: Topology, known_as: Array, seed: int, undirected: bool) -> Array:
    """A number from 0 to _END - 1 for each edge, _LOOP for self-loops, and _END behind the last edge; int64 [num_edges + 1]."""
    hashes = np.empty(topology.num_edges + 1, dtype=np.int64)
    hashes[-1] = _END
    indptr, indices = (array.cpu().contiguous().numpy() for array in (topology.indptr, topology.indices))
    with pytorch_threads():
        _fill(indptr, indices, known_as, key_of(seed, EDGE_SPLIT), undirected, hashes)
    return hashes


@compiled(parallel=True)
def _fill(indptr: Array, indices: Array, known_as: Array, key: Any, undirected: bool, hashes: Array) -> None:
    for vertex in prange(len(indptr) - 1):
        # Of one type: Numba would compare signed with unsigned integers as floats.
        dst = np.uint64(known_as[vertex])
        for edge in range(indptr[vertex], indptr[vertex + 1]):
            src = np.uint64(known_as[indices[edge]])
            if src == dst:
                hashes[edge] = _LOOP
                continue
            first, second = src, dst
            if undirected and dst < src:
                first, second = dst, src
            hashes[edge] = min(np.int64(stream_of(stream_of(key, first), second) >> np.uint64(1)), _END - 1)
