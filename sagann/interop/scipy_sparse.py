"""SciPy: make a Graph of a sparse adjacency matrix, with sparse or dense features."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import numpy as np

from sagann.errors import InputError, first_line
from sagann.graph import Graph
from sagann.interop.pyg import left_out_of
from sagann.storage.import_source import EdgeChunk, ImportSource, with_data
from sagann.storage.importer import graph_of
from sagann.storage.rows import Array, Rows, array_rows, sparse_arrays

if TYPE_CHECKING:
    from scipy.sparse import sparray, spmatrix


def from_scipy(
    adjacency: sparray | spmatrix,
    *,
    features: sparray | spmatrix | Array | None = None,
    labels: Array | None = None,
    targets: Array | None = None,
    weighted: bool | None = None,
    name: str = "scipy",
) -> Graph:
    """Make a Graph of a sparse adjacency matrix.

    Args:
        adjacency: [N, N] in any sparse format; an entry in row u and column v is the edge u -> v. An entry that is
            stored twice is two edges; an explicit zero is an edge too.
        features: [N, F], sparse or dense.
        labels: integers [N] or [N, 1], -1 for unknown, or 0/1 [N, C].
        targets: values to predict in a regression, numbers [N] or [N, T].
        weighted: keep the matrix's values as edge data 'weight'. By default they are left out, with a warning if one is not 1.
        name: name of the graph.
    Raises:
        InputError: the matrix is not sparse or not square, or a value is not valid in a graph.
    Example:
        >>> import scipy.sparse
        >>> from_scipy(scipy.sparse.csr_array([[0, 2.0], [0, 0]]), weighted=True).topology.edge_data["weight"]
        tensor([2.])
    """
    if not hasattr(adjacency, "tocoo"):
        raise InputError(
            f"argument has the wrong type: a {type(adjacency).__name__}, expected a sparse matrix of SciPy (in from_scipy, adjacency)",
            hint="Pass scipy.sparse.csr_array(adjacency).",
        )
    if adjacency.ndim != 2 or adjacency.shape[0] != adjacency.shape[1]:
        raise InputError(
            f"adjacency matrix is not square: {list(adjacency.shape)} (in from_scipy)",
            hint="Give one row and one column per vertex.",
        )
    coo, num_vertices = adjacency.tocoo(), adjacency.shape[0]
    src, dst = (np.ascontiguousarray(ids, dtype=np.int64) for ids in (coo.row, coo.col))
    if weighted is None and (coo.data != 1).any():
        said = left_out_of("adjacency", {"values": f"{coo.data.dtype} {list(coo.data.shape)}"})
        warnings.warn(f"{said} weighted=True keeps them as weights.", stacklevel=2)
    data = {"weight": array_rows(coo.data, "from_scipy, adjacency", "float32")} if weighted else {}
    ends = iter([EdgeChunk(src=src, dst=dst, file="adjacency")])
    dense: dict[str, Any] = {"features": features, "labels": labels, "targets": targets}
    arrays, num_features = dict[str, Rows](), 0
    if hasattr(dense["features"], "tocsr") and dense["features"].ndim == 2:
        csr = dense.pop("features").tocsr()
        num_features = csr.shape[1]
        parts = (array_rows(part, "from_scipy, features") for part in (csr.indptr, csr.indices, csr.data))
        arrays = sparse_arrays(*parts, num_columns=num_features)
    for array, values in dense.items():
        if values is not None:
            try:
                rows = np.asarray(values)
            except (RuntimeError, TypeError, ValueError) as error:
                raise InputError(
                    f"{array} are no array: {first_line(error)} (in from_scipy, {array})",
                    hint="Pass a NumPy array, or a list of rows of the same length.",
                ) from error
            arrays[array] = array_rows(rows, f"from_scipy, {array}", "float32")
    return graph_of(
        ImportSource(
            name=name,
            description="from_scipy",
            edges=with_data(ends, len(src), data),
            arrays=arrays,
            stated={"num_features": num_features},
            num_vertices=num_vertices,
        )
    )
