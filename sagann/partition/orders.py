"""Orders of vertices by name."""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor

from sagann.errors import InputError
from sagann.graph.graph import Graph
from sagann.partition.metis import DEFAULT_PARTS, metis_order

VertexOrder = Literal["metis", "degree", "random"]
"metis: neighbours close together. degree: by in-degree, the highest first. random: as if the graph had no order."
VERTEX_ORDERS: tuple[VertexOrder, ...] = get_args(VertexOrder)
"All of them."


def vertex_order(graph: Graph, by: str, *, num_parts: int = DEFAULT_PARTS, seed: int = 0) -> Tensor:
    """An order of a graph's vertices, for :func:`sagann.graph.relabel`.

    The vertices of each of several graphs stay together.

    Args:
        graph: any graph.
        by: name of the order.
        num_parts: of METIS.
        seed: of METIS, and of what is drawn.
    Returns:
        int64 [num_vertices], a permutation: first comes vertex ``order[0]``.
    Raises:
        InputError: there is no order of that name.
        MissingDependencyError: METIS is not installed.
    Example:
        >>> from sagann.graph import demo_graph
        >>> graph = demo_graph()
        >>> order = vertex_order(graph, "degree")
        >>> int(graph.topology.in_degrees()[order[0]]) == int(graph.topology.in_degrees().max())
        True
    """
    if by not in VERTEX_ORDERS:
        raise InputError(
            "unknown order of vertices",
            value=f"{by!r}, expected one of {', '.join(VERTEX_ORDERS)}",
            where="vertex_order",
            fix="Choose one of these.",
        )
    topology = graph.topology
    if by == "metis":
        order = metis_order(topology, num_parts=num_parts, seed=seed)
    elif by == "degree":
        order = torch.sort(topology.in_degrees(), descending=True, stable=True).indices
    else:
        order = torch.randperm(graph.num_vertices, generator=torch.Generator().manual_seed(seed))
    if graph.graph_ptr is None:
        return order
    owner = torch.bucketize(order, graph.graph_ptr, right=True)
    return order[torch.sort(owner, stable=True).indices]
