"""Normalised features: every vertex's row divided by its L1 norm, dense or sparse."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from sagann.errors import InputError
from sagann.graph.feature_store import FeatureStore, feature_store, read_slice
from sagann.graph.graph import Graph
from sagann.graph.large_arrays import empty_array
from sagann.graph.rows import csr_tensor, is_sparse
from sagann.graph.topology import CHECKED_AT_ONCE


def normalise_features(graph: Graph) -> Graph:
    r"""Divide each vertex's features by the sum of their magnitudes: :math:`x_v / \sum_f |x_{vf}|`.

    A row of non-negative features then sums to 1; a row of zeros stays zero. Sums are taken in float64.

    Args:
        graph: features dense [num_vertices, F] or ``torch.sparse_csr``, of any floating-point dtype.
    Returns:
        the graph with new features, of the same layout and dtype.
    Raises:
        InputError: the graph has no features.
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
            "there are no features to normalise",
            value="features are None",
            where=f"graph '{graph.name}'",
            fix="Leave normalise_features (--normalise-features) out.",
        )
    normalised = (
        _sparse(features) if is_sparse(features) else _dense(feature_store(features), graph.topology.device)
    )
    return replace(graph, features=normalised)


def _dense(features: FeatureStore, device: torch.device) -> Tensor:
    num_rows, row_shape = features.num_rows, features.row_shape
    result = empty_array((num_rows, *row_shape), features.dtype, device)
    # In slices: the features may lie in a file, and the float64 copy is never whole.
    step = max(1, CHECKED_AT_ONCE // max(1, row_shape[0]))
    for first in range(0, num_rows, step):
        last = min(first + step, num_rows)
        rows = read_slice(features, first, last).to(device, torch.float64)
        result[first:last] = rows / _divisors(rows.abs().sum(dim=1, keepdim=True))
    return result


def _sparse(features: Tensor) -> Tensor:
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
