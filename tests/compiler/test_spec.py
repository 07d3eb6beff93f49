from __future__ import annotations

import pytest

from sagann.compiler.operators import GATHER
from sagann.compiler.spec import verify
from tests.compiler.graphs import traced
from tests.compiler.layers import Layer


def test_a_wrong_place_is_named() -> None:
    module = traced(Layer(lambda m, e: e.src.tanh() * e.dst))
    node = next(node for node in module.graph.nodes if "tanh" in node.name)
    node.meta["place"] = "dst"
    with pytest.raises(ValueError, match="'tanh' is placed at 'dst', but it belongs to 'src'"):
        verify(module)


def test_missing_meta_is_named() -> None:
    module = traced(Layer())
    node = next(node for node in module.graph.nodes if node.target is GATHER)
    del node.meta["line"]
    with pytest.raises(ValueError, match="'gather' has no line"):
        verify(module)


def test_two_gathers_are_refused() -> None:
    module = traced(Layer())
    node = next(node for node in module.graph.nodes if node.target is GATHER)
    with module.graph.inserting_after(node):
        module.graph.node_copy(node)
    with pytest.raises(ValueError, match="2 gather nodes, expected 1"):
        verify(module)
