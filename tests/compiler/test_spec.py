from __future__ import annotations

import pytest

from sagann.compiler.operators import GATHER
from sagann.compiler.rewrite import gather_of
from sagann.compiler.spec import verify
from tests.compiler.graphs import traced
from tests.compiler.layers import Layer


def test_a_wrong_place_is_named() -> None:
    module = traced(Layer(lambda m, e: e.src.tanh() * e.dst))
    node = next(node for node in module.graph.nodes if "tanh" in node.name)
    node.meta["place"] = "dst"
    with pytest.raises(ValueError, match="'tanh' is placed at 'dst', but it belongs to 'src'"):
        verify(module)


@pytest.mark.parametrize("key", ["place", "phase", "line", "parameter"])
def test_missing_meta_is_named(key: str) -> None:
    module = traced(Layer())
    del gather_of(module).meta[key]
    with pytest.raises(ValueError, match=f"'gather' has no {key}"):
        verify(module)


def test_a_foreign_input_is_named() -> None:
    module = traced(Layer())
    with module.graph.inserting_before(next(iter(module.graph.nodes))):
        node = module.graph.placeholder("other")
    node.meta = dict(next(node for node in module.graph.nodes if node.target == "src").meta)
    del node.meta["input"]
    with pytest.raises(ValueError, match="placeholder 'other' is neither a parameter nor an input of the layer"):
        verify(module)


def test_a_node_without_a_value_is_named() -> None:
    module = traced(Layer())
    del gather_of(module).meta["val"]
    with pytest.raises(ValueError, match="node 'gather' has no value"):
        verify(module)


def test_an_unknown_place_is_named() -> None:
    module = traced(Layer())
    gather_of(module).meta["place"] = "nowhere"
    with pytest.raises(ValueError, match="node 'gather' has the unknown place 'nowhere'"):
        verify(module)


def test_an_edge_that_reads_what_was_gathered_is_named() -> None:
    module = traced(Layer(vertex=lambda m, v, a: a * v))
    product = next(node for node in module.graph.nodes if node.name == "mul")
    product.meta["phase"] = "edge"
    with pytest.raises(ValueError, match="node 'mul' of the edges reads what was gathered"):
        verify(module)


def test_a_graph_that_reads_ahead_is_refused() -> None:
    module = traced(Layer(lambda m, e: e.src.tanh() * e.dst))
    first = next(node for node in module.graph.nodes if "tanh" in node.name)
    gather_of(module).append(first)
    with pytest.raises(RuntimeError, match="tanh"):
        verify(module)


def test_two_gathers_are_refused() -> None:
    module = traced(Layer())
    node = gather_of(module)
    with module.graph.inserting_after(node):
        module.graph.node_copy(node)
    with pytest.raises(ValueError, match="2 gather nodes, expected 1"):
        verify(module)
    node.replace_all_uses_with(node.args[0][0])
    for gather in [each for each in module.graph.nodes if each.target is GATHER]:
        module.graph.erase_node(gather)
    with pytest.raises(ValueError, match="0 gather nodes, expected 1"):
        verify(module)
