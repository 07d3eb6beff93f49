import warnings

import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor

from sagann.errors import InputError
from sagann.graph import Graph, Topology
from sagann.graph.normalise import normalise, normalise_features
from sagann.graph.transform import add_self_loops
from tests.graph.graphs import edges_of, graphs, make_graph

# PyG compiles parts of itself as TorchScript when it is imported, and torch warns of that.
pyg = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")


@pyg
@pytest.mark.peers
@given(graphs(typed=False))
def test_symmetric_equals_pyg_gcn_norm(graph):
    from torch_geometric.nn.conv.gcn_conv import gcn_norm

    graph = add_self_loops(graph, fill={"number": 0})
    topology = graph.topology
    edge_index = torch.stack([topology.indices.long(), topology.edge_dst().long()])
    weight = topology.edge_data.get("weight")
    expected = gcn_norm(
        edge_index,
        None if weight is None else weight.double(),
        graph.num_vertices,
        add_self_loops=False,
        dtype=torch.float64,
    )[1]
    got = normalise(graph, "symmetric", dtype=torch.float64).topology.edge_data["weight"]
    torch.testing.assert_close(got, expected, rtol=1e-13, atol=0)
    single = normalise(graph, "symmetric").topology.edge_data["weight"]
    assert single.dtype == torch.float32
    torch.testing.assert_close(single, expected.float(), rtol=1e-6, atol=0)


@given(graphs())
def test_row_weights_sum_to_one(graph):
    topology = normalise(graph, "row", dtype=torch.float64).topology
    sums = torch.zeros(graph.num_vertices, dtype=torch.float64)
    sums.index_add_(0, topology.edge_dst(), topology.edge_data["weight"])
    torch.testing.assert_close(sums, (topology.in_degrees() > 0).double())


def test_a_source_without_in_edges_gives_zero_and_no_infinity():
    graph = make_graph([(0, 1), (1, 2)], 4)
    assert edges_of(normalise(graph, "symmetric"), "weight") == [(0, 1, 0.0), (1, 2, 1.0)]
    assert edges_of(normalise(graph, "row"), "weight") == [(0, 1, 1.0), (1, 2, 1.0)]


def test_weights_that_cancel_give_zero():
    graph = make_graph([(0, 1), (1, 1)], 2, weight=torch.tensor([1.0, -1.0]))
    assert edges_of(normalise(graph, "row"), "weight") == [(0, 1, 0.0), (1, 1, 0.0)]


def test_a_negative_degree_is_refused():
    graph = make_graph([(0, 1), (1, 0)], 2, weight=torch.tensor([1.0, -2.5]))
    with pytest.raises(InputError) as error:
        normalise(graph, "symmetric")
    assert str(error.value) == (
        "symmetric normalisation of a negative degree: the weights into vertex 0 sum to -2.5, at least 0 is needed "
        "(in graph 'graph'). Use 'row', or weights that are not negative."
    )


def test_an_unknown_normalisation_is_refused():
    with pytest.raises(InputError) as error:
        normalise(make_graph([], 1), "column")
    assert str(error.value) == (
        "unknown normalisation: 'column', expected one of symmetric, row (in normalise). Choose one of these."
    )


def graph_with(features: Tensor | None, num_vertices: int | None = None) -> Graph:
    n = len(features) if features is not None else num_vertices or 1
    topology = Topology(indptr=torch.zeros(n + 1, dtype=torch.int64), indices=torch.zeros(0).int(), num_src=n)
    return Graph(topology=topology, features=features)


def sparse(features: Tensor) -> Tensor:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")
        return features.to_sparse_csr()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
@pytest.mark.parametrize("layout", [torch.strided, torch.sparse_csr])
def test_rows_sum_to_one_and_zero_rows_stay_zero(dtype: torch.dtype, layout: torch.layout) -> None:
    features = torch.tensor([[1, 0, 3], [0, 0, 0], [0.5, 0, 0], [1, 1, 2]], dtype=dtype)
    expected = torch.tensor([[0.25, 0, 0.75], [0, 0, 0], [1, 0, 0], [0.25, 0.25, 0.5]], dtype=dtype)
    found = normalise_features(graph_with(features if layout == torch.strided else sparse(features))).features
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
    assert csr is not None
    sums = dense.abs().sum(dim=1)
    wanted = (features.abs().sum(dim=1) > 0).double()
    torch.testing.assert_close(sums, wanted, rtol=1e-12, atol=0)
    torch.testing.assert_close(csr.to_dense(), dense, rtol=1e-12, atol=0)
    assert torch.equal(dense.sign(), features.sign())


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
