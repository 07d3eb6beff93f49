"""The trace-time check: what it lets pass, what it refuses, and that it names operator and line."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sagann import typed_linear
from sagann.errors import LayerError
from sagann.saga import Edge, NaiveEngine, SagaLayer, using_engine
from sagann.saga.side_effects import taken_back
from tests.compiler.layers import Layer as OfFunctions
from tests.graphs import skewed

F_DIM = 8
SEEN: list[Tensor] = []


class Layer(OfFunctions):
    """A layer with a bit of everything; the functions come from the test."""

    edge_data = None

    def __init__(self, edge: Callable[..., Any] | None = None, vertex: Callable[..., Any] | None = None) -> None:
        super().__init__(edge, vertex)
        self.linear = nn.Linear(F_DIM, F_DIM)
        self.norm = nn.BatchNorm1d(F_DIM)
        self.gru = nn.GRUCell(F_DIM, F_DIM)
        self.register_buffer("counter", torch.zeros(1))


def run(layer: SagaLayer) -> Tensor:
    topology = skewed(types=3)
    return layer(topology, torch.randn(topology.num_src, F_DIM))


ROW_WISE: dict[str, Callable[[Layer, Edge], Tensor]] = {
    "linear": lambda layer, edge: layer.linear(edge.src) + edge.dst,
    "dropout": lambda layer, edge: F.dropout(edge.src, 0.5, layer.training),
    "noise": lambda layer, edge: edge.src + torch.randn_like(edge.src),
    "heads": lambda layer, edge: edge.src.view(-1, 2, 4).sum(-1),
    "batch norm": lambda layer, edge: layer.norm(edge.src),
    "transposed": lambda layer, edge: (layer.linear.weight @ edge.src.t()).t(),
    "rows second": lambda layer, edge: edge.src.t().reshape(-1).view(F_DIM, -1).t(),
    "batched product": lambda layer, edge: (edge.src.view(-1, 2, 4) @ edge.dst.view(-1, 4, 2)).flatten(1),
    "pick by arange": lambda layer, edge: edge.src[torch.arange(len(edge.src)), 0][:, None],
    "in place on a copy": lambda layer, edge: edge.src.clone().mul_(2),
    "infinite": lambda layer, edge: edge.src / 0,
    "attention within": lambda layer, edge: F.scaled_dot_product_attention(*[edge.src.view(-1, 1, 2, 4)] * 3).flatten(1),
    "made empty": lambda layer, edge: edge.src.new_empty(len(edge.src), F_DIM).copy_(edge.src),
    "a parameter's value": lambda layer, edge: edge.src * layer.counter.item(),
}  # fmt: skip

MIXING: dict[str, tuple[Callable[[Layer, Edge], Tensor], str]] = {
    "mean": (lambda layer, edge: edge.src - edge.src.mean(0), "mean"),
    "softmax over rows": (lambda layer, edge: torch.softmax(edge.src, 0), "_softmax"),
    "roll": (lambda layer, edge: edge.src.roll(1, 0), "roll"),
    "batch norm of a function": (lambda layer, edge: F.batch_norm(edge.src, None, None, training=True), "native_batch_norm"),
    "first row": (lambda layer, edge: edge.src - edge.src[0], "select"),
    "number of rows": (lambda layer, edge: edge.src * len(edge.src), "mul"),
    "position": (lambda layer, edge: edge.src + torch.arange(len(edge.src))[:, None], "add"),
    "filter": (lambda layer, edge: edge.src[edge.src[:, 0] > 0], "index"),
    "softmax of logarithms": (lambda layer, edge: torch.softmax(torch.log(edge.src), 0), "_softmax"),
    "attention to edges": (lambda layer, edge: F.scaled_dot_product_attention(*[edge.src[None, None]] * 3)[0, 0], "_scaled_dot_product_flash_attention_for_cpu"),
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "training"), [*((name, True) for name in ROW_WISE), ("dropout", False), ("batch norm", False)]
)
def test_row_wise_functions_pass(name: str, training: bool) -> None:
    run(Layer(edge=ROW_WISE[name]).train(training))


@pytest.mark.parametrize("name", MIXING)
def test_a_function_that_mixes_edges_is_refused_by_operator_and_line(name: str) -> None:
    function, operator = MIXING[name]
    with pytest.raises(LayerError) as refused:
        run(Layer(edge=function))
    assert str(refused.value).startswith(f"Layer.apply_edge must treat rows independently: operator {operator} ")
    assert f"(in test_independence.py:{function.__code__.co_firstlineno}: " in refused.value.message


def test_a_function_that_mixes_vertices_is_refused() -> None:
    with pytest.raises(LayerError, match=r"Layer.apply_vertex must treat rows independently: operator mean"):
        run(Layer(vertex=lambda layer, vertex, accum: accum - accum.mean(0, keepdim=True)))


def test_a_branch_on_the_values_of_the_rows_is_refused() -> None:
    with pytest.raises(LayerError, match=r"must treat rows independently: operator all mixes them"):
        run(Layer(edge=lambda layer, edge: edge.src if edge.src.gt(0).all() else -edge.src))


def test_a_branch_on_the_number_of_rows_is_refused() -> None:
    with pytest.raises(LayerError, match=r"Layer.apply_edge branches on its rows: operator (mul|add)"):
        run(Layer(edge=lambda layer, edge: edge.src * 2 if len(edge.src) > 4 else edge.src + edge.src))


def test_side_effects_are_refused() -> None:
    def overwrite(layer: Layer, edge: Edge) -> Tensor:
        return edge.src.mul_(2)

    def count(layer: Layer, edge: Edge) -> Tensor:
        layer.counter.add_(1)
        return edge.src

    with pytest.raises(LayerError, match="has a side effect: operator mul_ changes its input in place"):
        run(Layer(edge=overwrite))
    layer = Layer(edge=count)
    with pytest.raises(LayerError, match="operator add_ changes buffer 'counter' in place"):
        run(layer)
    assert layer.counter == 0


def test_an_error_inside_the_function_names_its_line_and_the_shapes() -> None:
    said = (
        r"Layer.apply_edge failed on made-up rows.*: RuntimeError: shape '\[-1, 5\]'.*src torch.float32 \[rows, 8\]"
    )
    with pytest.raises(LayerError, match=said) as refused:
        run(Layer(edge=lambda layer, edge: edge.src.view(-1, 5)))
    assert "(in test_independence.py:" in refused.value.message


def test_a_wrong_name_is_said_with_what_there_is() -> None:
    with pytest.raises(LayerError, match=r"no attribute 'weight' .*; what it is given is edge.src and edge.dst\."):
        run(Layer(edge=lambda layer, edge: edge.weight))


def test_the_check_leaves_no_trace() -> None:
    layer = Layer(edge=ROW_WISE["dropout"])
    topology = skewed()
    x = torch.ones(topology.num_src, F_DIM)
    run(layer)  # Checked now.
    torch.manual_seed(3)
    expected = layer(topology, x)
    torch.manual_seed(3)
    fresh = Layer(edge=ROW_WISE["dropout"])
    torch.manual_seed(3)
    assert torch.equal(fresh(topology, x), expected)


def test_the_check_takes_back_what_functions_set_and_append_to() -> None:
    def remember(layer: Layer, edge: Edge) -> Tensor:
        layer.last = edge.src
        layer.counter = layer.counter + 1
        layer.log.append(edge.src)
        closure["rows"].append(edge.src)
        SEEN.append(edge.src)
        return edge.src

    closure: dict[str, list[Tensor]] = {"rows": []}
    layer = Layer(edge=remember)
    layer.log, layer.last = [], None
    with using_engine(NaiveEngine()):
        run(layer)
        run(layer)
    assert [len(each) for each in (layer.log, closure["rows"], SEEN)] == [2, 2, 2]
    assert layer.counter == 2
    assert layer.last is layer.log[-1]


def test_a_set_whose_copy_is_in_another_order_is_unchanged() -> None:
    layer = Layer()
    layer.allowed = set(range(1000))
    layer.allowed -= set(range(1000)) - {1, 8}
    assert list(layer.allowed) != list(set(layer.allowed))
    with taken_back(layer) as changed:
        pass
    assert changed == []


def test_a_layer_without_its_parameters_is_refused() -> None:
    layer = Layer(edge=lambda layer, edge: layer.lazy(edge.src))
    layer.lazy = nn.LazyLinear(F_DIM)
    with pytest.raises(LayerError, match=r"'lazy.weight' gets its shape when the layer first runs \(in Layer\)"):
        run(layer)


@pytest.mark.parametrize("dtype", [torch.int32, torch.bool], ids=str)
def test_a_message_that_is_not_floating_is_refused(dtype: torch.dtype) -> None:
    expected = rf"apply_edge must return floating numbers: {dtype}, of which .* \(in Layer.apply_edge\). Convert"
    with pytest.raises(LayerError, match=expected):
        run(Layer(edge=lambda layer, edge: (edge.src > 0).to(dtype)))


def test_ids_among_made_up_rows_are_told_from_wrong_ones() -> None:
    def by_degree(layer: Layer, vertex: Tensor, accum: Tensor) -> Tensor:
        return typed_linear(accum, accum[:, 0].long(), torch.zeros(100, F_DIM, 3))

    with pytest.raises(LayerError, match=r"apply_vertex failed on made-up rows.*out of range.*accum .*Clamp"):
        run(Layer(vertex=by_degree))
    clamped = Layer(vertex=lambda layer, vertex, accum: by_degree(layer, vertex, accum.clamp(0, 99)))
    assert run(clamped).shape[1] == 3
