from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import fx

from sagann.compiler.classify import row_bytes, verify
from sagann.compiler.rewrite import gather_of
from tests.compiler.graphs import traced
from tests.compiler.layers import Layer


def test_places() -> None:
    def edge(m: Layer, e: object) -> torch.Tensor:
        ones = torch.ones(len(e.src), 4)
        both = torch.sin(e.src) + torch.cos(e.dst)
        return both * torch.exp(m.v) * torch.neg(ones) * F.dropout(m.w)[0] * torch.erf(e.data)[:, None]

    module = traced(Layer(edge, lambda m, v, a: torch.tanh(a) + torch.floor(v)))
    places = {node.name: node.meta["place"] for node in module.graph.nodes}
    expected = {"sin": "src", "cos": "dst", "add": "edge", "exp": "param", "neg": "constant", "dropout": "param"}
    expected |= {"erf": "edge", "gather": "vertex", "tanh": "vertex", "floor": "dst", "add_1": "vertex"}
    assert {name: places[name] for name in expected} == expected


def test_bytes_of_a_row_do_not_depend_on_how_rows_are_seen() -> None:
    module = traced(Layer(lambda m, e: (e.src.view(-1, 2).tanh().view(-1, 4)) * e.dst))
    assert {row_bytes(node) for node in module.graph.nodes if node.name in ("view", "tanh", "src")} == {16}


def damage(module: fx.GraphModule, rule: str) -> None:
    gather = gather_of(module)
    product = next(node for node in module.graph.nodes if node.target is torch.ops.aten.mul.Tensor)
    if rule == "place":
        product.meta["place"] = "dst"
    elif rule == "meta":
        del gather.meta["line"]
    elif rule == "value":
        del gather.meta["val"]
    elif rule == "input":
        del next(node for node in module.graph.nodes if node.target == "src").meta["input"]
    elif rule == "order":
        next(iter(product.users)).append(product)
    elif rule == "phase":
        after = next(node for node in module.graph.nodes if node.target is torch.ops.aten.sub.Tensor)
        after.meta["phase"] = "edge"
    else:
        with module.graph.inserting_after(gather):
            module.graph.node_copy(gather)


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ("place", "'mul' is placed at 'dst', but belongs to 'edge'"),
        ("meta", "'gather' lacks what passes read"),
        ("value", "'gather' has no value"),
        ("input", "'src' is neither a parameter nor an input"),
        ("order", "mul"),
        ("phase", "'sub' of the edges reads what was gathered"),
        ("gathers", "there is not one gather"),
    ],
)
def test_a_broken_graph_is_named(rule: str, message: str) -> None:
    module = traced(Layer(lambda m, e: e.src * e.dst, vertex=lambda m, v, a: v - a))
    verify(module)
    damage(module, rule)
    with pytest.raises((AssertionError, RuntimeError), match=message):
        verify(module)
