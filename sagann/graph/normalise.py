"""Normalisation: edge weights by degree, and features by the norm of each row.

Dense features and weights are computed slab by slab, into arrays that :mod:`sagann.graph.large_arrays` makes, with sums
in float64. Degrees are in-degrees, weighted if the graph has weights. A vertex of degree 0 has the factor 0, so no
weight is ever infinite.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal, get_args

import torch
from torch import Tensor

from sagann.errors import InputError, require_choice
from sagann.graph.checks import slices, wrong_form
from sagann.graph.feature_store import FeatureStore, feature_store, read_slice
from sagann.graph.graph import Graph
from sagann.graph.large_arrays import empty_array, slabs
from sagann.graph.rows import csr_tensor, is_sparse
from sagann.graph.topology import Topology, destinations
from sagann.graph.validate import FEATURE_DTYPES

Normalisation = Literal["symmetric", "row"]


def normalise(
    graph: Graph, how: Normalisation, *, name: str = "weight", dtype: torch.dtype = torch.float32
) -> Graph:
    """Store normalised edge weights as ``topology.edge_data[name]``.

    With ``w`` the weight of an edge (1 without weights) and ``d`` the weighted in-degree:

    - symmetric: ``w / sqrt(d[dst] * d[src])``, the GCN weights for a graph that has its self-loops;
    - row: ``w / d[dst]``, so that a weighted sum over in-edges is a mean.

    Args:
        graph: any graph; add self-loops first if the model needs them.
        how: "symmetric" or "row".
        name: name of the edge data to store. The weights to normalise are always the edge data 'weight'.
        dtype: dtype of the stored weights.
    Raises:
        InputError: ``how`` is unknown, or a weighted in-degree is negative ("symmetric").
    References:
        Kipf and Welling, Semi-Supervised Classification with Graph Convolutional Networks, ICLR 2017, Sec. 2.
    Example:
        >>> topology = Topology.from_coo(src=torch.tensor([0, 1, 1]), dst=torch.tensor([0, 0, 1]), num_src=2)
        >>> normalise(Graph(topology=topology), "row").topology.edge_data["weight"]
        tensor([0.5000, 0.5000, 1.0000])
    """
    require_choice(how, get_args(Normalisation), what="unknown normalisation", where="normalise")
    require_choice(dtype, FEATURE_DTYPES, what="weights cannot be of this type", where="normalise, dtype")
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
    if weight.ndim != 1:
        hint = "Take the only column, weight.squeeze(1)."
        raise wrong_form(weight, "a number per edge, [num_edges]", where="edge data 'weight'", hint=hint)
    degrees = torch.zeros(topology.num_dst, dtype=torch.float64, device=topology.device)
    for rows, edges in slabs(topology.indptr):
        degrees.index_add_(0, destinations(topology, rows, edges), weight[edges].double())
    return degrees


def _check_degrees(degrees: Tensor, graph: Graph) -> None:
    negative = degrees < 0
    if negative.any():
        vertex = int(negative.nonzero()[0])
        raise InputError(
            f"symmetric normalisation of a negative degree: the weights into vertex {vertex} sum to "
            f"{float(degrees[vertex]):g}, at least 0 is needed (in graph '{graph.name}')",
            hint="Use 'row', or weights that are not negative.",
        )


def normalise_features(graph: Graph) -> Graph:
    r"""Divide each vertex's features by the sum of their magnitudes: :math:`x_v / \sum_f |x_{vf}|`.

    A row of non-negative features then sums to 1; a row of zeros stays zero. Sums are taken in float64.

    Args:
        graph: features dense [num_vertices, F] or ``torch.sparse_csr``, of any floating-point dtype.
    Returns:
        the graph with new features, of the same layout and dtype; a feature store becomes a tensor.
    Raises:
        InputError: the graph has no features, or no floating-point ones.
    References:
        Kipf and Welling, ICLR 2017, Sec. 5.2: "row-normalize input feature vectors", as their code does it.
        PyTorch Geometric's ``NormalizeFeatures`` is equal where all features are non-negative, the smallest is
        0, and every row sums to at least 1; it shifts features by their minimum and leaves smaller rows unscaled.
    Example:
        >>> from sagann.graph import Topology
        >>> topology = Topology.from_coo(src=torch.tensor([0]), dst=torch.tensor([1]), num_src=2)
        >>> graph = Graph(topology=topology, features=torch.tensor([[1.0, 3.0], [0.0, 0.0]]))
        >>> normalise_features(graph).features.tolist()
        [[0.25, 0.75], [0.0, 0.0]]
    """
    features = graph.features
    if features is None:
        raise InputError(
            f"there are no features to normalise: features are None (in graph '{graph.name}')",
            hint="Leave normalise_features (--normalise-features) out.",
        )
    require_choice(features.dtype, FEATURE_DTYPES, what="features of another type", where=f"graph '{graph.name}'")
    normalised = (
        _normalised_sparse(features)
        if is_sparse(features)
        else _normalised_dense(feature_store(features), graph.topology.device)
    )
    return replace(graph, features=normalised)


def _normalised_dense(features: FeatureStore, device: torch.device) -> Tensor:
    num_rows, row_shape = features.num_rows, features.row_shape
    result = empty_array((num_rows, *row_shape), features.dtype, device)
    # In slices, because the features may be in a file, and their float64 copy must not be in memory as a whole.
    for part in slices(num_rows, row_shape[0]):
        rows = read_slice(features, part.start, part.stop).double()
        result[part] = rows / _divisors(rows.abs().sum(dim=1, keepdim=True))
    return result


def _normalised_sparse(features: Tensor) -> Tensor:
    offsets, columns, values = features.crow_indices(), features.col_indices(), features.values()
    if len(values) == 0:
        return features
    wide = values.double()
    sums = torch.segment_reduce(wide.abs(), "sum", offsets=offsets.long())
    divisors = torch.repeat_interleave(_divisors(sums), offsets.diff().long(), output_size=len(values))
    return csr_tensor(offsets, columns, (wide / divisors).to(values.dtype), num_columns=features.shape[1])


def _divisors(sums: Tensor) -> Tensor:
    """The sums, and 1 where one is 0."""
    return torch.where(sums > 0, sums, 1.0)
