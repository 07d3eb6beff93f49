"""Degree normalisation: edge weights that scale a sum over in-edges.

Weights are computed slab by slab, to where :mod:`sagann.graph.large_arrays` has them made. Degrees are in-degrees, weighted where the graph has weights, computed in float64. A vertex without in-edges
has the factor 0, so no weight is ever infinite.
"""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor

from sagann.errors import InputError
from sagann.graph.graph import Graph
from sagann.graph.large_arrays import empty_array, slabs
from sagann.graph.topology import Topology

Normalisation = Literal["symmetric", "row"]


def normalise(
    graph: Graph, how: Normalisation, *, name: str = "weight", dtype: torch.dtype = torch.float32
) -> Graph:
    """Store normalised edge weights as ``topology.edge_data[name]``.

    With ``w`` the weight of an edge (1 without weights) and ``d`` the weighted in-degree:

    - symmetric: ``w / sqrt(d[dst] * d[src])``, the GCN weights for a graph that has its self-loops;
    - row: ``w / d[dst]``, so that a weighted sum over in-edges is a mean.

    Args:
        graph: any graph; add self-loops first where the model wants them.
        how: "symmetric" or "row".
        name: of the edge data to store; the weights that are normalised are always 'weight'.
        dtype: of the stored weights.
    Raises:
        InputError: ``how`` is unknown, or a weighted in-degree is negative ("symmetric").
    References:
        Kipf and Welling, Semi-Supervised Classification with Graph Convolutional Networks, ICLR 2017, Sec. 2.
    Example:
        >>> topology = Topology.from_coo(src=torch.tensor([0, 1, 1]), dst=torch.tensor([0, 0, 1]), num_src=2)
        >>> normalise(Graph(topology=topology), "row").topology.edge_data["weight"]
        tensor([0.5000, 0.5000, 1.0000])
    """
    if how not in get_args(Normalisation):
        raise InputError(
            "unknown normalisation",
            value=f"'{how}', expected one of {', '.join(get_args(Normalisation))}",
            where="normalise",
            fix="Pass 'symmetric' or 'row'.",
        )
    topology = graph.topology
    degrees = weighted_in_degrees(topology)
    if how == "symmetric":
        _check_degrees(degrees, graph)
    factor = degrees.rsqrt() if how == "symmetric" else degrees.reciprocal()
    factor[degrees == 0] = 0.0
    given = topology.edge_data.get("weight")
    stored = empty_array((topology.num_edges,), dtype, topology.device)
    for rows, edges in slabs(topology.indptr):
        degrees_in = topology.indptr[rows.start : rows.stop + 1].diff()
        weight = torch.repeat_interleave(factor[rows], degrees_in)
        if how == "symmetric":
            weight *= factor[topology.indices[edges]]
        if given is not None:
            weight *= given[edges]
        stored[edges] = weight
    return graph.with_topology(topology.with_edge_data(**{name: stored}))


def weighted_in_degrees(topology: Topology) -> Tensor:
    """Sum the weights of every destination's in-edges (their number, without weights): float64 [num_dst]."""
    weight = topology.edge_data.get("weight")
    if weight is None:
        return topology.in_degrees().double()
    degrees = torch.zeros(topology.num_dst, dtype=torch.float64, device=topology.device)
    for rows, edges in slabs(topology.indptr):
        degrees_in = topology.indptr[rows.start : rows.stop + 1].diff()
        dst = torch.repeat_interleave(torch.arange(len(degrees_in), device=topology.device), degrees_in)
        degrees[rows].index_add_(0, dst, weight[edges].double())
    return degrees


def _check_degrees(degrees: Tensor, graph: Graph) -> None:
    negative = degrees < 0
    if negative.any():
        vertex = int(negative.nonzero()[0])
        raise InputError(
            "symmetric normalisation of a negative degree",
            value=f"the weights into vertex {vertex} sum to {float(degrees[vertex]):g}, at least 0 is needed",
            where=f"graph '{graph.name}'",
            fix="Use 'row', or weights that are not negative.",
        )
