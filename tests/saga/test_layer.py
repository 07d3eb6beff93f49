from typing import Any

import pytest
import torch
from torch import Tensor, nn

import sagann
from sagann.errors import InputError, LayerError
from sagann.graph import Graph, Topology
from sagann.nn import SAGE
from sagann.saga import Edge, SagaLayer
from sagann.saga.layer import count_hops
from tests.graphs import edge_index, odd_topologies, skewed

EDGE = Topology.from_coo(src=torch.tensor([0]), dst=torch.tensor([1]), num_src=2)


def test_concat_layer_sees_neighbours_side_by_side() -> None:
    class Concat(SagaLayer):
        accumulator = "concat"
        max_degree = 36

    topology = odd_topologies()["one hub"]
    x = torch.randn(topology.num_src, 2)
    out = Concat()(topology, x)
    assert torch.equal(out[0], x[topology.indices.long()].flatten())
    assert out.shape == (37, 72)


@pytest.mark.parametrize(
    "x",
    [torch.zeros(52, 2), torch.zeros(53), torch.zeros(53, 2).to_sparse(), None],
    ids=["rows", "flat", "sparse", "none"],
)
def test_features_that_do_not_fit_are_refused(x: Tensor | None) -> None:
    said = r"vertex features do not fit the topology: .*expected a tensor \[53, F\], dense or torch.sparse_csr"
    with pytest.raises(InputError, match=said):
        SagaLayer()(skewed(), x)


def test_a_layer_without_a_topology_is_told_what_to_pass() -> None:
    said = r"a Tensor, expected Topology \(in layer SagaLayer\). Call layer\(topology, x\)"
    with pytest.raises(InputError, match=said):
        SagaLayer()(edge_index(skewed()), torch.randn(53, 4))


@pytest.mark.parametrize(("theirs", "ours"), [("message", "apply_edge"), ("update", "apply_vertex")])
def test_a_function_under_pygs_name_is_refused_for_nothing_would_run_it(theirs: str, ours: str) -> None:
    layer = type("Ported", (SagaLayer,), {theirs: lambda self, x_j: x_j})
    with pytest.raises(LayerError, match=f"which nothing runs: '{theirs}', and no '{ours}' .in layer Ported"):
        layer()
    own = type("Ported", (SagaLayer,), {theirs: lambda self, x_j: x_j, ours: lambda self, *rows: rows[-1]})
    own()
    type("Named", (SagaLayer,), {theirs: "a word"})()
    forward = {"forward": lambda self, topology, x: getattr(self, theirs)(x)}
    type("Runs", (SagaLayer,), {theirs: lambda self, x: x, **forward})()


class Weighted(SagaLayer):
    edge_data = "price"

    def apply_edge(self, edge: Edge) -> Tensor:
        return edge.src * edge.data[:, None]


def test_edge_data_reaches_apply_edge() -> None:
    topology = odd_topologies()["multi-edges"].with_edge_data(price=torch.tensor([1.0, 2.0, 3.0, 4.0]))
    assert Weighted()(topology, torch.tensor([[10.0], [1.0]])).tolist() == [[1.0], [90.0]]


LAYERS: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"accumulator": torch.median}, LayerError, r"unknown accumulator: a builtin.*, expected one of sum, mean.*not accepted, because"),
    ({"accumulator": "concat"}, LayerError, "concat accumulator needs a stated width: max_degree = None"),
    ({"edge_data": "price"}, InputError, r"'price' is missing; present: weight \(in layer Wrong\)"),
    ({"edge_data": "edge_weight"}, InputError, r"'edge_weight' is missing; .* Leave out the prefix: edge_data = 'weight'\."),
    ({"edge_data": ["weight", "type"]}, InputError, r"a list, expected str \(in layer Wrong, edge_data\). Name one"),
    ({"apply_edge": lambda self, edge: edge.src * edge.data}, LayerError, r"edge\.data was read, but the layer names no edge data"),
    ({"apply_edge": lambda self, edge: (edge.src, edge.src)}, LayerError, "must return one row per edge: a tuple"),
    ({"apply_edge": lambda self, edge: edge.src, "accumulator": "softmax"}, LayerError, r"must return \(score, value\) .*: a tensor \[360, 2\]"),
    ({"apply_edge": lambda self, edge: (edge.src, edge.src), "accumulator": "softmax"}, LayerError, r"\(a tensor \[360, 2\], a tensor \[360, 2\]\), expected score"),
    ({"apply_edge": lambda self, edge: (edge.src, edge.src, edge.src), "accumulator": "softmax"}, LayerError, r"must return \(score, value\)"),
    ({"apply_edge": lambda self, edge: (edge.src[:, :1], edge.src.view(-1, 2, 1)), "accumulator": "softmax"}, LayerError, r"must return \(score, value\)"),
    ({"apply_edge": lambda self, edge: (edge.src.view(-1, 2, 1), edge.src), "accumulator": "softmax"}, LayerError, r"must return \(score, value\)"),
    ({"apply_vertex": lambda self, vertex, accum: torch.zeros(3)}, LayerError, r"apply_vertex must return one row per vertex: a tensor \[3\]"),
]  # fmt: skip
"What a class of layers defines, and why it is refused."


@pytest.mark.parametrize(("members", "kind", "message"), LAYERS)
def test_a_layer_that_is_written_wrong_is_refused(
    members: dict[str, Any], kind: type[Exception], message: str
) -> None:
    layer = type("Wrong", (SagaLayer,), members)()
    with pytest.raises(kind, match=message):
        layer(skewed(), torch.zeros(53, 2))


def test_a_model_walks_a_topology_for_each_layer_unless_it_says_otherwise() -> None:
    model = nn.Sequential(SAGE(4, 4), nn.Linear(4, 4), SAGE(4, 2))
    assert count_hops(model) == 2
    model.num_hops = 0
    assert count_hops(model) == 0


@pytest.mark.parametrize("num_hops", [-1, True])
def test_a_number_of_hops_that_is_no_count_is_refused(num_hops: object) -> None:
    model = nn.Linear(4, 4)
    model.num_hops = num_hops
    with pytest.raises(InputError, match=r"num_hops is no count: .* \(in Linear.num_hops\)"):
        count_hops(model)


class PygEdge(SagaLayer):
    def apply_edge(self, x_i: Tensor, x_j: Tensor) -> Tensor:
        return x_j


class NoSelf(SagaLayer):
    def apply_edge(edge) -> Tensor:  # noqa: N805 - the mistake that is tested
        return edge.src


class KeywordOnly(SagaLayer):
    def apply_edge(self, edge: Edge, *, scale: float) -> Tensor:
        return edge.src * scale


class PygVertex(SagaLayer):
    def apply_vertex(self, accum: Tensor) -> Tensor:
        return accum


class BoundPrepare(SagaLayer):
    def prepare(self, graph: Graph) -> Graph:
        return graph


WRONG: dict[type[SagaLayer], str] = {
    PygEdge: r"apply_edge takes other .*: apply_edge\(x_i.*x_j.*\).*, expected def apply_edge\(self, edge\): "
    r"missing a required argument: 'x_j' \(in layer PygEdge\)\. Write it as def apply_edge\(self, edge\): edge\.src .*x_j",
    NoSelf: r"apply_edge\(\).*, expected def apply_edge\(self, edge\): too many",
    KeywordOnly: r"expected def apply_edge\(self, edge\): missing a required .*argument: 'scale'",
    PygVertex: r"expected def apply_vertex\(self, vertex, accum\): too many .*\(in layer PygVertex\).* accum what was gathered",
    BoundPrepare: r"expected @staticmethod def prepare\(graph\): missing a required argument: 'graph'",
}


@pytest.mark.parametrize("layer", WRONG, ids=lambda layer: layer.__name__)
def test_a_wrong_signature_is_refused_with_the_right_one(layer: type[SagaLayer]) -> None:
    with pytest.raises(LayerError, match=WRONG[layer]) as refused:
        layer()
    assert refused.value.__cause__ is None
    assert refused.value.__suppress_context__


def test_signatures_that_can_be_called_pass() -> None:
    class Default(SagaLayer):
        def apply_edge(self, edge: Edge, scale: float = 2.0) -> Tensor:
            return edge.src * scale

        @staticmethod
        def apply_vertex(*rows: Any) -> Tensor:
            return rows[1]

    assert torch.equal(Default()(EDGE, torch.ones(2, 1)), torch.tensor([[0.0], [2.0]]))


def test_a_function_that_is_set_later_is_refused_when_the_layer_runs() -> None:
    layer = SagaLayer()
    layer.apply_edge = lambda x_i, x_j: x_j
    with pytest.raises(LayerError, match=r"expected def apply_edge\(self, edge\)"):
        layer(EDGE, torch.ones(2, 1))


def test_a_layer_with_its_own_forward_has_its_own_functions() -> None:
    class Own(SagaLayer):
        def apply_edge(self, x_i: Tensor, x_j: Tensor) -> Tensor:
            return x_i + x_j

        def forward(self, topology: Topology, x: Any) -> Tensor:
            return self.apply_edge(x, x)

    assert torch.equal(Own()(EDGE, torch.ones(2, 1)), torch.full((2, 1), 2.0))


TOPOLOGY = Topology.from_coo(src=torch.tensor([0, 1]), dst=torch.tensor([2, 2]), num_src=3)


class Narrow(SagaLayer):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(64, 8)

    def apply_edge(self, edge: Edge) -> Tensor:
        return self.linear(edge.src)


def test_a_misfit_names_widths_and_line() -> None:
    expected = r"Narrow\.apply_edge failed .*\(7x32 and 64x8\) \(in test_layer\.py:.*self\.linear.*edge\.src torch\.float32 \[rows, 32\]"
    with pytest.raises(LayerError, match=expected) as refused:
        Narrow()(TOPOLOGY, torch.ones(3, 32))
    assert isinstance(refused.value.__cause__, RuntimeError)


def test_a_misfit_in_a_whole_model_names_widths() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder = nn.Linear(64, 8)
            self.layer = SagaLayer()

        def forward(self, hops: Any, x: Tensor) -> Tensor:
            return self.layer(hops[0], self.encoder(x))

    said = r"cannot be captured: .*64 features got 32 \(in Model\.forward, test_layer\.py:\d+: return .*self\.encoder\(x\)"
    with pytest.raises(LayerError, match=said):
        sagann.stream(Model(), Graph(topology=TOPOLOGY, features=torch.ones(3, 32)), budget_bytes=1 << 20)
