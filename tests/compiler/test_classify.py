from __future__ import annotations

import torch
import torch.nn.functional as F

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
