"""A model is traced anew when it, or the form of its hops, has changed."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor, nn

from sagann.errors import LayerError
from sagann.graph import Topology
from sagann.nn import ModelConfig, build_model
from sagann.runtime.streaming.capturing import captured
from sagann.runtime.streaming.streamed import StreamedModel
from sagann.saga import Edge, SagaLayer
from tests.graphs import labelled_graph, random_topology
from tests.tolerances import assert_close


def with_data(topology: Topology, dtype: torch.dtype, *shape: int) -> Topology:
    return topology.with_edge_data(own=torch.ones(topology.num_edges, *shape, dtype=dtype))


def test_hops_of_another_form_have_another_program() -> None:
    topology = random_topology(30, 90)
    model = build_model(ModelConfig(model="sage", hidden=8), labelled_graph(30, 90))
    x = torch.randn(30, 8)
    more = with_data(topology, torch.float32)
    forms = [
        [topology, topology],
        # The edges of the second hop are other ones.
        [topology, random_topology(30, 90)],
        [more, more],
        [topology, more],
        [with_data(topology, torch.float64)] * 2,
        [with_data(topology, torch.float32, 2)] * 2,
    ]
    programs = {id(captured(model, hops, x, x_is_constant=True)) for hops in forms for _ in range(2)}
    assert len(programs) == len(forms)
    walked = [[gather.hop for gather in captured(model, hops, x, x_is_constant=True).gathers] for hops in forms[:2]]
    assert walked == [[0, 0], [0, 1]]


class Scaled(nn.Module):
    """A model that reads attributes of its own, and calls a layer that does."""

    num_hops = 1

    def __init__(self) -> None:
        super().__init__()
        self.first, self.layer, self.drop = nn.Linear(8, 4), Weighted(), nn.Dropout(0.5)
        self.factors = [2.0]
        self.shifts = False

    def forward(self, hops: Sequence[Topology], x: Tensor) -> Tensor:
        rows = self.layer(hops[0], self.first(x) * self.factors[0])
        return self.drop(rows + 1 if self.shifts else rows)


class Weighted(SagaLayer):
    """Messages by the weights of the edges."""

    edge_data = "weight"

    def apply_edge(self, edge: Edge) -> Tensor:
        return edge.src * edge.data.unsqueeze(1)


CHANGES: dict[str, Callable[[Scaled], object]] = {
    "a list in place": lambda model: model.factors.__setitem__(0, 5.0),
    "an attribute": lambda model: setattr(model, "shifts", True),
    "a module": lambda model: setattr(model, "first", nn.Linear(8, 6, bias=False)),
    "a parameter of another shape": lambda model: setattr(model.first, "bias", nn.Parameter(torch.ones(1))),
    "values of a parameter": lambda model: model.first.bias.data.fill_(3.0),
    "a frozen parameter": lambda model: model.first.requires_grad_(False),
    "an accumulator": lambda model: setattr(model.layer, "accumulator", "max"),
    "a function": lambda model: setattr(model.layer, "apply_vertex", lambda vertex, accum: accum * 3),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_model_that_changes_between_calls_gives_what_it_gives_in_memory(change: str) -> None:
    torch.manual_seed(0)
    model, other = Scaled().eval(), random_topology(40, 90, seed=1)
    x = torch.randn(40, 8)
    # The second graph has the program of the first one, as long as the model stays the same.
    for topology in (random_topology(40, 300), other):
        hops = [topology.with_edge_data(weight=torch.rand(topology.num_edges))]
        streamed = StreamedModel(model, hops, (0, 10, 40))
        assert_close(streamed(x), model(hops, x))
    CHANGES[change](model)
    assert_close(streamed(x), model(hops, x))


def test_a_mode_that_is_switched_between_calls_counts() -> None:
    model, x = Scaled().eval(), torch.randn(40, 8)
    topology = random_topology(40, 300)
    hops = [topology.with_edge_data(weight=torch.rand(topology.num_edges))]
    streamed = StreamedModel(model, hops, (0, 10, 40))
    expected = streamed(x)
    model.drop.train()
    assert int((streamed(x) == 0).sum()) > int((expected == 0).sum())
    model.drop.eval()
    assert torch.equal(streamed(x), expected)
    model.first.register_forward_hook(lambda _module, _inputs, out: out * 2)
    with pytest.raises(LayerError, match="cannot have hooks"):
        streamed(x)


def test_programs_do_not_keep_the_model_alive() -> None:
    graph = labelled_graph(30, 90)
    model = build_model(ModelConfig(model="sage", hidden=8), graph)
    program = captured(model, graph.hops(2), graph.features, x_is_constant=True)
    alive = weakref.ref(model)
    del model
    gc.collect()
    assert alive() is None
    del program
