import pytest
import torch
from hypothesis import given

from sagann.errors import InputError
from sagann.graph.normalise import normalise
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
        "unknown normalisation: 'column', expected one of symmetric, row (in normalise). Pass 'symmetric' or 'row'."
    )
