"""Functions of a layer that take other arguments than they are given: the error shows the right definition."""

from typing import Any

import pytest
import torch
from torch import Tensor

from sagann.errors import LayerError
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
