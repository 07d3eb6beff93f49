"""Functions of a layer that take other arguments, or rows of other widths: the error shows what is right."""

import traceback
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import sagann
from sagann.errors import LayerError, WidthError
from sagann.graph import Graph, Topology
from sagann.saga import Edge, SagaLayer


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
    PygEdge: r"apply_edge takes other .*: def apply_edge\(self, x_i.*x_j.*\).*, expected def apply_edge\(self, edge\): "
    r"missing a required argument: 'x_j' \(in layer PygEdge\)\. Write it as def apply_edge\(self, edge\): edge\.src .*x_j",
    NoSelf: r"def apply_edge\(edge\).*, expected def apply_edge\(self, edge\): too many",
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

    topology = Topology.from_coo(src=torch.tensor([0]), dst=torch.tensor([1]), num_src=2)
    assert torch.equal(Default()(topology, torch.ones(2, 1)), torch.tensor([[0.0], [2.0]]))


def test_a_function_that_is_set_later_is_refused_when_the_layer_runs() -> None:
    layer = SagaLayer()
    layer.apply_edge = lambda x_i, x_j: x_j
    topology = Topology.from_coo(src=torch.tensor([0]), dst=torch.tensor([1]), num_src=2)
    with pytest.raises(LayerError, match=r"expected def apply_edge\(self, edge\)"):
        layer(topology, torch.ones(2, 1))


def test_a_layer_with_its_own_forward_has_its_own_functions() -> None:
    class Own(SagaLayer):
        def apply_edge(self, x_i: Tensor, x_j: Tensor) -> Tensor:
            return x_i + x_j

        def forward(self, topology: Topology, x: Any) -> Tensor:
            return self.apply_edge(x, x)

    topology = Topology.from_coo(src=torch.tensor([0]), dst=torch.tensor([1]), num_src=2)
    assert torch.equal(Own()(topology, torch.ones(2, 1)), torch.full((2, 1), 2.0))


WIDTH = 32
TOPOLOGY = Topology.from_coo(src=torch.tensor([0, 1]), dst=torch.tensor([2, 2]), num_src=3)
X = torch.ones(3, WIDTH)


class Layer(SagaLayer):
    def __init__(self, function: Callable[["Layer", Tensor, Tensor], Any], *, at_vertex: bool = False) -> None:
        super().__init__()
        self.function, self.at_vertex = function, at_vertex
        self.lin = nn.Linear(64, 8)
        self.w = nn.Parameter(torch.ones(64, 8))
        self.tall = nn.Parameter(torch.ones(WIDTH, 8))
        self.flat = nn.Parameter(torch.ones(8, WIDTH))
        self.gru = nn.GRUCell(64, WIDTH)
        self.lstm = nn.LSTMCell(64, WIDTH)
        self.register_buffer("scale", torch.ones(64))

    def apply_edge(self, edge: Edge) -> Any:
        return edge.src if self.at_vertex else self.function(self, edge.src, edge.dst)

    def apply_vertex(self, vertex: Tensor, accum: Tensor) -> Tensor:
        return self.function(self, vertex, accum) if self.at_vertex else accum


MISFITS: dict[str, tuple[Callable[[Layer, Tensor, Tensor], Any], str]] = {
    "nn.Linear": (
        lambda layer, x, y: layer.lin(x),
        r"F\.linear\(x, w\) of \[N, 32\], 'lin\.weight' \[8, 64\] .*w as \[out, in\]",
    ),
    "x @ w": (lambda layer, x, y: x @ layer.w, r"x @ w of \[N, 32\], 'w' \[64, 8\] .*then w as \[in, out\]"),
    "x @ w, transposed": (lambda layer, x, y: torch.matmul(x, layer.flat), r"x @ w of \[N, 32\], 'flat' \[8, 32\]"),
    "x @ no parameter": (lambda layer, x, y: torch.mm(x, torch.ones(9, 3)), r"x @ w of \[N, 32\], \[9, 3\] "),
    "w @ x": (lambda layer, x, y: layer.w @ x, r"x @ w of 'w' \[64, 8\], \[N, 32\] .*rows x \[N, in\] first"),
    "rows @ rows": (lambda layer, x, y: x @ y, r"x @ w of \[N, 32\], \[N, 32\] .*\(a \* b\)\.sum\(-1\)"),
    "sum": (lambda layer, x, y: x + layer.scale, r"operator add of \[N, 32\], 'scale' \[64\] .*same width"),
    "in place": (lambda layer, x, y: x.clone().mul_(layer.scale), r"operator mul of "),
    "input of a cell": (
        lambda layer, x, y: layer.gru(x, y),
        r"nn\.GRUCell of \[N, 32\], \[N, 32\], 'gru\.weight_ih' \[96, 64\]",
    ),
    "state of a cell": (
        lambda layer, x, y: layer.lstm(x.repeat(1, 2), (x[:, 1:], x)),
        r"nn\.LSTMCell of .*\[N, 31\]",
    ),
}


@pytest.mark.parametrize(("name", "at_vertex"), [*((name, False) for name in MISFITS), ("nn.Linear", True)])
def test_a_misfit_names_operation_widths_and_remedy(name: str, at_vertex: bool) -> None:
    function, expected = MISFITS[name]
    with pytest.raises(WidthError, match=expected) as refused:
        Layer(function, at_vertex=at_vertex)(TOPOLOGY, X)
    where = f"Layer.apply_{'vertex' if at_vertex else 'edge'}, test_signatures.py:"
    assert f"(in {where}" in refused.value.message


def test_the_error_is_one_and_short() -> None:
    with pytest.raises(WidthError) as refused:
        Layer(MISFITS["nn.Linear"][0])(TOPOLOGY, X)
    assert isinstance(refused.value, ValueError)
    written = traceback.format_exception(refused.value)
    assert "mat1" not in "".join(written)
    assert sum("Error" in line.split(":")[0] for line in written) == 1
    assert len("".join(written).splitlines()) < 20


def test_what_fits_runs_as_it_did() -> None:
    def every(layer: Layer, x: Tensor, y: Tensor) -> Tensor:
        return F.linear(x, layer.flat) + x @ layer.tall + layer.scale[:8] * (x * y).sum(-1, keepdim=True)

    out = Layer(every)(TOPOLOGY, X)
    assert torch.equal(out[2], torch.full((8,), 2 * (32.0 + 32.0 + 32.0)))


def test_another_failure_keeps_its_cause() -> None:
    with pytest.raises(LayerError, match="RuntimeError: shape") as refused:
        Layer(lambda layer, x, y: x.view(-1, 5))(TOPOLOGY, X)
    assert not isinstance(refused.value, WidthError)
    assert isinstance(refused.value.__cause__, RuntimeError)


def test_a_whole_model_that_is_captured_says_the_same() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder = nn.Linear(64, 8)
            self.layer = SagaLayer()

        def forward(self, hops: Any, x: Tensor) -> Tensor:
            return self.layer(hops[0], self.encoder(x))

    graph = Graph(topology=TOPOLOGY, features=X)
    with pytest.raises(
        WidthError,
        match=r"F\.linear\(x, w\) of \[N, 32\], 'encoder\.weight' \[8, 64\] \(in Model\.forward, test_signatures",
    ):
        sagann.stream(Model(), graph, budget_bytes=1 << 20)
