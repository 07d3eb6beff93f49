"""SciPy's sparse matrices."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from sagann.errors import InputError
from sagann.interop import from_scipy

sparse = pytest.importorskip("scipy.sparse")


@pytest.mark.parametrize("layout", ["csr", "csc", "lil"])
def test_every_layout_gives_the_same_graph(layout: str) -> None:
    matrix = sparse.csr_array(np.array([[0, 2.0, 0], [0, 0, 3.0], [0, 4.0, 0]])).asformat(layout)
    graph = from_scipy(matrix, weighted=True)
    assert graph.topology.indptr.tolist() == [0, 0, 2, 3]
    assert sorted(
        zip(graph.topology.indices.tolist(), graph.topology.edge_data["weight"].tolist(), strict=True)
    ) == [
        (0, 2.0),
        (1, 3.0),
        (2, 4.0),
    ]


def test_features_and_labels() -> None:
    adjacency = sparse.random_array((20, 20), density=0.2, rng=np.random.default_rng(0))
    features = sparse.random_array((20, 7), density=0.3, rng=np.random.default_rng(1), format="csc")
    with pytest.warns(
        UserWarning, match=r"Left out of adjacency: 'values' \(float64 \[80\]\)\. weighted=True keeps"
    ):
        graph = from_scipy(adjacency, features=features, labels=np.arange(20) % 3)
    adjacency = adjacency != 0
    assert graph.features.layout == torch.sparse_csr
    assert np.allclose(graph.features.to_dense().numpy(), features.toarray())
    assert graph.num_classes == 3
    dense = from_scipy(adjacency, features=features.toarray(), labels=np.eye(20, dtype=np.int64))
    assert dense.multi_label
    assert torch.equal(dense.topology.indices, graph.topology.indices)
    column = from_scipy(adjacency, labels=np.arange(20)[:, None] % 3)
    assert (column.multi_label, column.num_classes) == (False, 3)
    both = from_scipy(adjacency, labels=np.arange(20) % 3, targets=np.linspace(0, 1, 20))
    assert (both.num_classes, both.num_targets) == (3, 1)


SQUARE = sparse.eye_array(3)


@pytest.mark.parametrize(
    ("matrix", "options", "message"),
    [
        (sparse.coo_array((2, 3)), {}, r"adjacency matrix is not square: \[2, 3\]"),
        (SQUARE, {"features": np.zeros((2, 1))}, "number of vertices is not clear: 2 rows, but num_vertices says 3"),
        (SQUARE, {"labels": np.full(3, 0.5)}, r"label is not an integer: 0\.5 .*from_scipy, labels, row 0\)"),
        (SQUARE, {"targets": np.array([0, np.inf, 1])}, r"target is not finite: inf \(in from_scipy, targets, row 1\)"),
        (SQUARE, {"labels": np.array([0, 2**64 - 1], np.uint64)}, r"18446744073709551615 does not fit 63 bits .*row 1\)"),
        (SQUARE, {"labels": [[1], [1, 2], [0]]}, r"labels are no array: .*inhomogeneous .*Pass a NumPy array"),
        (SQUARE, {"features": sparse.coo_array(np.ones(3))}, r"expected numbers \[num_vertices, num_features\]"),
        (np.eye(3), {}, r"a ndarray, expected a sparse matrix .*Pass scipy.sparse.csr_array"),
        (SQUARE * 1j, {"weighted": True}, r"complex128 \[3\], expected numbers .*from_scipy, adjacency\)"),
    ],
)  # fmt: skip
def test_bad_matrices_are_refused(matrix: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        from_scipy(matrix, **options)
