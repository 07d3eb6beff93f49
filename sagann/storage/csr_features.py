"""Sparse vertex features: three arrays made into one checked ``torch.sparse_csr`` matrix.

Torch does not look at the arrays it is given, and an index out of range is a crash or a wrong answer far away;
so they are checked here, at the boundary. Indices are int32 where they fit: half the memory of int64.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sagann.errors import DatasetError
from sagann.graph import id_dtype
from sagann.graph.rows import csr_tensor


def csr_features(indptr: Tensor, indices: Tensor, values: Tensor, *, num_features: int, where: str) -> Tensor:
    """Check three CSR arrays and make a matrix of them.

    Args:
        indptr: integer [N + 1]; indices: integer [nnz]; values: [nnz].
        num_features: number of columns.
        where: what to call the matrix in an error.
    Returns:
        ``torch.sparse_csr`` [N, num_features], with the offsets and columns in one integer dtype.
    Raises:
        DatasetError: offsets do not start at 0, decrease, or do not end at nnz; a column is out of range.
    """
    check_csr(indptr, indices, values, num_features=num_features, where=where)
    index_dtype = id_dtype(max(num_features, len(indices)))
    return csr_tensor(indptr.to(index_dtype), indices.to(index_dtype), values, num_columns=num_features)


def check_csr(indptr: Tensor, indices: Tensor, values: Tensor, *, num_features: int, where: str) -> None:
    """Check the invariants of CSR arrays in O(rows + nnz); arguments and errors as :func:`csr_features`."""
    problem = ""
    if indptr.ndim != 1 or indices.ndim != 1 or values.shape != indices.shape or len(indptr) == 0:
        problem = f"shapes {list(indptr.shape)}, {list(indices.shape)}, {list(values.shape)}"
    elif indptr.dtype not in (torch.int32, torch.int64) or indices.dtype not in (torch.int32, torch.int64):
        problem = f"offsets are {indptr.dtype} and columns {indices.dtype}, expected int32 or int64"
    elif int(indptr[0]) != 0 or int(indptr[-1]) != len(indices):
        problem = f"offsets go from {int(indptr[0])} to {int(indptr[-1])}, expected 0 to {len(indices)}"
    elif (falling := indptr.diff() < 0).any():
        row = int(falling.nonzero()[0])
        problem = f"offsets decrease at row {row}"
    elif len(indices) and not _in_range(indices, num_features):
        at = int(((indices < 0) | (indices >= num_features)).nonzero()[0])
        problem = f"column {int(indices[at])} at entry {at}, but columns go from 0 to {num_features - 1}"
    if problem:
        raise DatasetError(
            "sparse features are not a CSR matrix",
            value=problem,
            where=where,
            fix="Fetch or import the dataset again; CSR is offsets, columns and values as in scipy.sparse.",
        )


def _in_range(indices: Tensor, num_features: int) -> bool:
    low, high = (int(bound) for bound in indices.aminmax())
    return low >= 0 and high < num_features
