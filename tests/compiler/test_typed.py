"""Maps picked by edge type leave the edges, once per pair of source and type."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sagann.errors import InputError
from sagann.kernels.typed_linear import typed_linear
from sagann.nn import GGNN
from sagann.runtime.engine import CompiledEngine
from sagann.saga import Edge, SagaLayer, using_engine
from tests.compiler.layers import assert_compiles_right
from tests.graphs import odd_topologies


class Typed(SagaLayer):
    edge_data = "type"

    def __init__(self, num_types: int, accumulator: str) -> None:
        super().__init__()
        self.accumulator = accumulator
        self.maps = nn.Parameter(torch.randn(num_types, 4, 3))
        self.gate = nn.Linear(4, 3)

    def apply_edge(self, edge: Edge) -> Tensor:
        mapped = typed_linear(torch.tanh(edge.src), edge.data, 2 * self.maps)
        return torch.sigmoid(self.gate(edge.dst)) * mapped + edge.src[:, :3]


def program(layer: SagaLayer, engine: CompiledEngine) -> Any:
    found = engine.program(layer, torch.zeros(3, 4).double().requires_grad_(), torch.zeros(3, dtype=torch.int64))
    assert found is not None
    return found


@pytest.mark.parametrize("graph", odd_topologies())
@pytest.mark.parametrize("num_types", [1, 2, 3])
@pytest.mark.parametrize("accumulator", ["sum", "mean", "max"])
def test_a_typed_layer_equals_the_naive_one(accumulator: str, num_types: int, graph: str) -> None:
    topology = odd_topologies(types=num_types)[graph]
    layer = Typed(num_types, accumulator).double()
    x = torch.randn(topology.num_src, 4, dtype=torch.float64)
    engine = assert_compiles_right(layer, topology, x)
    made = program(layer, engine)
    assert made.edges.function is not None, made.notes


@pytest.mark.parametrize("num_types", [1, 3])
def test_a_map_of_what_typed_maps_gave(num_types: int) -> None:
    class Narrowed(GGNN):
        def apply_vertex(self, vertex: Tensor, accum: Tensor) -> Tensor:
            return accum @ self.gru.weight_ih.T[:, :2]

    topology = odd_topologies(types=num_types)["skewed"]
    x = torch.randn(topology.num_src, 4, dtype=torch.float64)
    assert_compiles_right(Narrowed(4, num_types).double(), topology, x)


@pytest.mark.parametrize("num_types", [1, 3])
def test_ggnn_is_fused(num_types: int) -> None:
    topology = odd_topologies(types=num_types)["skewed"]
    layer = GGNN(4, num_types).double()
    x = torch.randn(topology.num_src, 4, dtype=torch.float64)
    engine = assert_compiles_right(layer, topology, x)
    assert program(layer, engine).edges.function is not None


@pytest.mark.parametrize("num_types", [1, 2])
def test_a_type_out_of_range_is_refused(num_types: int) -> None:
    topology = odd_topologies(types=3)["one hub"]
    with using_engine(CompiledEngine()), pytest.raises(InputError, match="edge type out of range"):
        GGNN(4, num_types)(topology, torch.zeros(topology.num_src, 4))
