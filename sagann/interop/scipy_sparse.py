"""SciPy: a sparse adjacency matrix, and sparse or dense features, made into a Graph."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from sagann.errors import InputError
from sagann.graph import Graph, Topology, validate_graph
from sagann.storage.csr_features import csr_features
from sagann.storage.npz_graph import count_classes

if TYPE_CHECKING:
    from scipy.sparse import sparray, spmatrix

Array = np.ndarray[Any, Any]


def from_scipy(
    adjacency: sparray | spmatrix,
    *,
    features: sparray | spmatrix | Array | None = None,
    labels: Array | None = None,
    weighted: bool = False,
    name: str = "scipy",
) -> Graph:
    """Make a Graph of a sparse adjacency matrix.

    Args:
        adjacency: [N, N] in any sparse format; an entry in row u and column v is the edge u -> v. Entries that
            are stored twice are two edges, explicit zeros are edges too.
        features: [N, F], sparse or dense.
        labels: integers [N] or [N, 1], -1 for unknown, or 0/1 [N, C].
        weighted: keep the matrix's values as edge data 'weight'.
        name: what to call the graph.
    Raises:
        InputError: the matrix is not sparse or not square, or values do not make a graph to train on.
    Example:
        >>> import scipy.sparse
        >>> from_scipy(scipy.sparse.csr_array([[0, 2.0], [0, 0]]), weighted=True).topology.edge_data["weight"]
        tensor([2.])
    """
    if not hasattr(adjacency, "tocoo"):
        raise InputError(
            "argument has the wrong type",
            value=f"a {type(adjacency).__name__}, expected a sparse matrix of SciPy",
            where="from_scipy, adjacency",
            fix="Pass scipy.sparse.csr_array(adjacency).",
        )
    if adjacency.ndim != 2 or adjacency.shape[0] != adjacency.shape[1]:
        raise InputError(
            "adjacency matrix is not square",
            value=f"{list(adjacency.shape)}",
            where="from_scipy",
            fix="Give one row and one column per vertex.",
        )
    coo = adjacency.tocoo()
    src, dst = (torch.from_numpy(np.ascontiguousarray(ids, dtype=np.int64)) for ids in (coo.row, coo.col))
    edge_data = {}
    if weighted:
        edge_data["weight"] = _floats(coo.data, "adjacency")
    label_tensor = None if labels is None else _labels(labels)
    graph = Graph(
        topology=Topology.from_coo(src=src, dst=dst, num_src=adjacency.shape[0], edge_data=edge_data),
        features=None if features is None else _features(features),
        labels=label_tensor,
        num_classes=count_classes(label_tensor),
        name=name,
    )
    validate_graph(graph)
    return graph


def _features(features: Any) -> Tensor:
    if hasattr(features, "tocsr"):
        csr = features.tocsr()
        return csr_features(
            torch.from_numpy(csr.indptr.astype(np.int64)),
            torch.from_numpy(csr.indices.astype(np.int64)),
            _floats(csr.data, "features"),
            num_features=csr.shape[1],
            where="features",
        )
    return _floats(np.asarray(features), "features")


def _floats(values: Array, what: str) -> Tensor:
    if values.dtype.kind not in "fiub":
        raise InputError(
            "values are not real numbers",
            value=f"{values.dtype} {list(values.shape)}",
            where=f"from_scipy, {what}",
            fix="Convert them; of complex numbers pass the real or the imaginary part, or the modulus.",
        )
    return torch.from_numpy(np.ascontiguousarray(values, dtype=np.float32))


def _labels(labels: Array) -> Tensor:
    array = np.asarray(labels)
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim == 1 and array.dtype.kind in "iu" and not (array >= 2**63).any():
        return torch.from_numpy(array.astype(np.int64))
    if array.ndim == 2 and array.dtype.kind in "iub" and array.size and array.min() >= 0 and array.max() <= 1:
        return torch.from_numpy(array.astype(np.uint8))
    raise InputError(
        "labels have the wrong form",
        value=f"{array.dtype} {list(array.shape)}, expected integers [N] of 63 bits, or 0 and 1 [N, C]",
        where="from_scipy, labels",
        fix="Number the classes from 0, -1 for unknown.",
    )
