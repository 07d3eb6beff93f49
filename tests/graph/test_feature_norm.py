from __future__ import annotations

import warnings

import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor

from sagann.errors import InputError
from sagann.graph import Graph, Topology
from sagann.graph.feature_norm import normalise_features


def graph_with(features: Tensor | None, num_vertices: int | None = None) -> Graph:
    n = len(features) if features is not None else num_vertices or 1
    topology = Topology(indptr=torch.zeros(n + 1, dtype=torch.int64), indices=torch.zeros(0).int(), num_src=n)
    return Graph(topology=topology, features=features)


def sparse(features: Tensor) -> Tensor:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")
        return features.to_sparse_csr()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("layout", [torch.strided, torch.sparse_csr])
def test_rows_sum_to_one_and_zero_rows_stay_zero(dtype: torch.dtype, layout: torch.layout) -> None:
    features = torch.tensor([[1, 0, 3], [0, 0, 0], [0.5, 0, 0], [1, 1, 2]], dtype=dtype)
    expected = torch.tensor([[0.25, 0, 0.75], [0, 0, 0], [1, 0, 0], [0.25, 0.25, 0.5]], dtype=dtype)
    found = normalise_features(graph_with(features if layout == torch.strided else sparse(features))).features
    assert found is not None
    assert found.dtype == dtype
    assert found.layout == layout
    assert torch.equal(found.to_dense(), expected)


@given(
    st.lists(
        st.lists(st.floats(-1e6, 1e6, width=32), min_size=3, max_size=3),
        min_size=1,
        max_size=6,
    )
)
def test_magnitudes_sum_to_one_whatever_the_signs(rows: list[list[float]]) -> None:
    features = torch.tensor(rows, dtype=torch.float64)
    dense = normalise_features(graph_with(features)).features
    csr = normalise_features(graph_with(sparse(features))).features
    assert dense is not None
    assert csr is not None
    sums = dense.abs().sum(dim=1)
    wanted = (features.abs().sum(dim=1) > 0).double()
    torch.testing.assert_close(sums, wanted, rtol=1e-12, atol=0)
    torch.testing.assert_close(csr.to_dense(), dense, rtol=1e-12, atol=0)
    assert torch.equal(dense.sign(), features.sign())


@pytest.mark.peers
def test_equals_pyg_on_counts() -> None:
    import torch_geometric.transforms as T
    from torch_geometric.data import Data

    features = torch.randint(0, 4, (40, 9), generator=torch.Generator().manual_seed(0)).float()
    features[7] = 0
    theirs = T.NormalizeFeatures()(Data(x=features.clone())).x
    ours = normalise_features(graph_with(features)).features
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=0)


def test_input_is_not_changed() -> None:
    features = torch.tensor([[2.0, 2.0]])
    normalise_features(graph_with(features))
    assert features.tolist() == [[2.0, 2.0]]


def test_no_vertices_and_no_nonzeros() -> None:
    for features in (torch.zeros(0, 3), torch.zeros(2, 0), torch.zeros(2, 3)):
        found = normalise_features(graph_with(features)).features
        assert found is not None
        assert found.shape == features.shape
        assert not found.any()
    csr = normalise_features(graph_with(sparse(torch.zeros(2, 3)))).features
    assert csr is not None
    assert csr.to_dense().tolist() == [[0, 0, 0], [0, 0, 0]]


def test_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    features = torch.rand(17, 5, generator=torch.Generator().manual_seed(1))
    whole = normalise_features(graph_with(features)).features
    monkeypatch.setattr("sagann.graph.checks.CHECKED_AT_ONCE", 12)
    sliced = normalise_features(graph_with(features)).features
    assert whole is not None
    assert sliced is not None
    assert torch.equal(whole, sliced)


def test_without_features_is_refused() -> None:
    with pytest.raises(InputError, match=r"no features to normalise: features are None \(in graph 'graph'\)"):
        normalise_features(graph_with(None, 3))
