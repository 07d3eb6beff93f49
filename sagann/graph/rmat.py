"""R-MAT: random power-law graphs of any size, drawn edge by edge.

To draw an edge, choose one quadrant of the adjacency matrix, then one quadrant of this quadrant, and so on down to a
single entry. The quadrants have the probabilities a (low source, low destination), b (low, high), c (high, low) and d
(high, high).

Edge i depends only on i, the seed and the parameters, not on other edges. So any range of edges can be drawn alone and
in parallel, and be written to disk without the other edges. The graph may have multi-edges and self-loops.

References:
    Chakrabarti, Zhan and Faloutsos, R-MAT: A Recursive Model for Graph Mining, SDM 2004.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numba import prange
from torch import Tensor

from sagann.errors import InputError
from sagann.graph.graph import Graph
from sagann.graph.random_numbers import GOLDEN, key_of, mix, normals, stream_of, uniforms
from sagann.graph.rows import id_dtype
from sagann.graph.split import random_split
from sagann.graph.topology import Topology
from sagann.jit import compiled, pytorch_threads
from sagann.ranges import require_integer

EDGES, SCRAMBLE, FEATURES, LABELS = range(4)
# Each level compares 16 random bits with the probabilities, so one draw of 64 bits serves four levels.
PROBABILITY_BITS = 16


@dataclass(frozen=True, kw_only=True, slots=True)
class Quadrants:
    """Probabilities of the four quadrants of R-MAT; the defaults are those of Graph500."""

    a: float = 0.57
    "Of low source and low destination ids."
    b: float = 0.19
    "Of low source and high destination ids."
    c: float = 0.19
    "Of high source and low destination ids."
    d: float = 0.05
    "Of high source and high destination ids."

    def __post_init__(self) -> None:
        shares = (self.a, self.b, self.c, self.d)
        # Written so that NaN fails too.
        if not (min(shares) >= 0 and abs(sum(shares) - 1) <= 1e-6):
            found = f"{', '.join(f'{share:g}' for share in shares)}, expected each at least 0, and a sum of 1"
            raise InputError(
                f"quadrant probabilities do not add up: {found} (in Quadrants)",
                hint="Scale them so that they add up to 1.",
            )


def rmat_edges(
    num_vertices: int,
    num_edges: int,
    *,
    seed: int,
    first: int = 0,
    count: int | None = None,
    quadrants: Quadrants | None = None,
    scramble: bool = True,
) -> tuple[Tensor, Tensor]:
    """Draw edges ``first`` to ``first + count - 1`` of an R-MAT graph.

    Args:
        num_vertices: number of vertices, not only powers of 2; at least 1 if there are edges.
        num_edges: number of edges in the whole graph.
        seed: seed of the whole graph.
        first: number of the first edge to draw.
        count: number of edges to draw; default all from ``first`` on.
        quadrants: probabilities of the quadrants; default those of Graph500.
        scramble: permute the vertex ids, so that the degree of a vertex does not depend on its id.
    Returns:
        source and destination ids [count], int32 (int64 from 2^31 vertices on).
    Raises:
        InputError: there are edges but no vertices, or the range of edges exceeds ``num_edges``.
    """
    for name, number in (("num_vertices", num_vertices), ("num_edges", num_edges)):
        require_integer(number, name, where="rmat_edges")
    quadrants = quadrants or Quadrants()
    count = num_edges - first if count is None else count
    if num_vertices < 1 and num_edges > 0:
        raise InputError(
            f"edges need vertices: {num_vertices} vertices, {num_edges} edges (in rmat_edges)",
            hint="Ask for at least one vertex.",
        )
    if first < 0 or count < 0 or first + count > num_edges:
        raise InputError(
            f"edge range outside the graph: {count} edges from {first}, but there are {num_edges} (in rmat_edges)",
            hint="Ask for a range within 0 to num_edges.",
        )
    dtype = id_dtype(num_vertices)
    src, dst = torch.empty(count, dtype=dtype), torch.empty(count, dtype=dtype)
    limits = np.cumsum([quadrants.a, quadrants.b, quadrants.c]) * 2**PROBABILITY_BITS
    with pytorch_threads():
        _fill_edges(
            key_of(seed, EDGES),
            first,
            num_vertices,
            max(num_vertices - 1, 0).bit_length(),
            np.round(limits).astype(np.uint64),
            key_of(seed, SCRAMBLE),
            scramble,
            src.numpy(),
            dst.numpy(),
        )
    return src, dst


def rmat_chunks(
    num_vertices: int, num_edges: int, *, seed: int, chunk_edges: int = 1 << 24, quadrants: Quadrants | None = None
) -> Iterator[tuple[Tensor, Tensor]]:
    """Draw an R-MAT graph chunk by chunk; the edges do not depend on the size of the chunks.

    Args:
        chunk_edges: number of edges in a chunk.
        num_vertices, num_edges, seed, quadrants: as for :func:`rmat_edges`.
    """
    for first in range(0, num_edges, chunk_edges):
        yield rmat_edges(
            num_vertices,
            num_edges,
            seed=seed,
            first=first,
            count=min(chunk_edges, num_edges - first),
            quadrants=quadrants,
        )


def rmat_graph(
    num_vertices: int,
    num_edges: int,
    *,
    num_features: int = 0,
    num_classes: int = 0,
    seed: int,
    quadrants: Quadrants | None = None,
) -> Graph:
    """Make an R-MAT graph in memory, with random features and labels, for measurements of speed.

    Args:
        num_features: number of features per vertex, float32, standard normal; 0 for none.
        num_classes: number of classes; labels are uniformly random, with a 60/20/20 split; 0 for no labels.
        num_vertices, num_edges, seed, quadrants: as for :func:`rmat_edges`.
    Raises:
        InputError: there are edges but no vertices.
    """
    for name, number in (("num_features", num_features), ("num_classes", num_classes)):
        require_integer(number, name, where="rmat_graph")
    src, dst = rmat_edges(num_vertices, num_edges, seed=seed, quadrants=quadrants)
    graph = Graph(
        topology=Topology.from_coo(src=src, dst=dst, num_src=num_vertices),
        features=normals(num_vertices, num_features, seed=seed, purpose=FEATURES) if num_features else None,
        labels=(uniforms(num_vertices, seed=seed, purpose=LABELS) * num_classes).long() if num_classes else None,
        num_classes=num_classes,
        name=f"rmat-{num_vertices}-{num_edges}",
    )
    return random_split(graph, seed=seed) if num_classes else graph


@compiled(parallel=True)
def _fill_edges(
    key: Any,
    first: int,
    num_vertices: int,
    levels: int,
    limits: Any,
    scramble_key: Any,
    scramble: bool,
    src: Any,
    dst: Any,
) -> None:
    one = np.uint64(1)
    low_bits = np.uint64(2**PROBABILITY_BITS - 1)
    end = np.uint64(num_vertices)
    for i in prange(len(src)):
        state = stream_of(key, first + i)
        s, d = end, end
        # The grid of 2^levels ids may be larger than the graph: an edge outside the graph is drawn again.
        while s >= end or d >= end:
            s, d = np.uint64(0), np.uint64(0)
            bits = np.uint64(0)
            for level in range(levels):
                if level % 4 == 0:
                    state += GOLDEN
                    bits = mix(state)
                r = bits & low_bits
                bits >>= np.uint64(PROBABILITY_BITS)
                past_a, past_b, past_c = r >= limits[0], r >= limits[1], r >= limits[2]
                s = (s << one) | np.uint64(past_b)
                d = (d << one) | np.uint64(past_a ^ past_b ^ past_c)
        if scramble:
            s = permute(s, scramble_key, levels, end)
            d = permute(d, scramble_key, levels, end)
        src[i] = s
        dst[i] = d


@compiled()
def permute(vertex: Any, key: Any, levels: int, end: Any) -> Any:
    """The new id of a vertex under a pseudorandom permutation of the ids below ``end``, which is at most 2^levels."""
    one = np.uint64(1)
    mask = (one << np.uint64(levels)) - one
    half = np.uint64((levels + 1) // 2)
    while True:
        # Each of these operations is a bijection on the grid of 2^levels ids: adding, multiplying by an odd number, and
        # xor with the high half. Repeated until the id is below `end`, they are a bijection on the ids below `end`.
        for turn in range(3):
            vertex = (vertex + (key >> np.uint64(13 * turn))) & mask
            vertex = (vertex * np.uint64(0xD1342543DE82EF95)) & mask
            vertex ^= vertex >> half
        if vertex < end:
            return vertex
