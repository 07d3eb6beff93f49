"""Orders of vertices: METIS, by degree, by score, and random.

References:
    Karypis and Kumar, A fast and high quality multilevel scheme for partitioning irregular graphs, SIAM Journal on Scientific
    Computing 20(1), 1998. Ma et al., NeuGraph, USENIX ATC 2019, Sec. 3.2 and 4: the min-cut partition of METIS. We differ in
    that METIS's parts only give an order of vertices. They are finer than intervals, and a plan cuts the order into intervals
    of equal bytes. Graph Neural Network Training with Data Tiering, 2021, Sec. 3.2 and Algorithm 2: the order by score.
"""

from __future__ import annotations

from operator import index
from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor

from sagann.errors import MissingDependencyError, require_choice
from sagann.graph.graph import Graph
from sagann.graph.split import generator_of
from sagann.graph.topology import Topology
from sagann.graph.transform import remove_self_loops, symmetrise
from sagann.tiering import Score, hottest, score_vertices

VertexOrder = Literal["metis", "degree", "score", "random"]
"""metis: neighbours have close numbers. degree: highest in-degree first. score: vertices that sampled mini-batches read most come
first. random: as if the graph had no order."""
VERTEX_ORDERS: tuple[VertexOrder, ...] = get_args(VertexOrder)
"Names of all orders."
DEFAULT_SCORE: Score = "vip"
"The score of the order by score, by default: its hot rows take the most reads (``python -m bench.cold_bytes.scores``)."


def vertex_order(
    graph: Graph, by: str, *, num_parts: int = 128, seed: int = 0, score: str = DEFAULT_SCORE
) -> Tensor:
    """Order a graph's vertices, for :func:`sagann.graph.relabel`.

    Vertex ``order[0]`` comes first. If the graph is a batch of graphs, the vertices of each one stay together. ``num_parts`` is for METIS.

    Example:
        >>> from sagann.graph import demo_graph
        >>> graph = demo_graph()
        >>> order = vertex_order(graph, "degree")
        >>> int(graph.topology.in_degrees()[order[0]]) == int(graph.topology.in_degrees().max())
        True
    """
    require_choice(by, VERTEX_ORDERS, what="unknown order of vertices", where="vertex_order")
    topology = graph.topology
    if by == "metis":
        order = metis_order(topology, num_parts=num_parts, seed=seed)
    elif by == "degree":
        order = torch.sort(topology.in_degrees(), descending=True, stable=True).indices
    elif by == "score":
        order = hottest(score_vertices(graph, score))
    else:
        order = torch.randperm(graph.num_vertices, generator=generator_of(seed))
    if graph.graph_ptr is None:
        return order
    owner = torch.bucketize(order, graph.graph_ptr, right=True)
    return order[torch.sort(owner, stable=True).indices]


def metis_order(topology: Topology, *, num_parts: int, seed: int) -> Tensor:
    """Order vertices by METIS's parts, at least as many as a plan will have intervals; within a part they ascend.

    METIS bisects the graph recursively. So parts with close numbers form a larger part, and an interval over several parts
    is a good part too. An edge counts once, whatever its direction and multiplicity. Needs about ten times the memory of the
    edges.
    """
    try:
        import pymetis
    except ImportError as error:
        raise MissingDependencyError("pymetis", extra="metis", feature="the order 'metis'") from error
    num_parts = min(num_parts, topology.num_dst)
    if num_parts <= 1:
        return torch.arange(topology.num_dst)
    plain = Topology(indptr=topology.indptr, indices=topology.indices, num_src=topology.num_src, validate=False)
    both = symmetrise(remove_self_loops(Graph(topology=plain))).topology
    dtype = pymetis.zero_copy_dtype()
    parts = pymetis.part_graph(
        num_parts,
        pymetis.CSRAdjacency(both.indptr.numpy().astype(dtype), both.indices.numpy().astype(dtype)),
        recursive=True,
        options=pymetis.Options(seed=index(seed) % (int(np.iinfo(dtype).max) + 1)),
    )
    return torch.sort(torch.as_tensor(parts.vertex_part), stable=True).indices
