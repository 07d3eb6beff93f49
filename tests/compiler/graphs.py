"""Traced and classified graphs for the tests of single passes."""

from __future__ import annotations

import torch
from torch import fx

from sagann.compiler.classify import classify
from sagann.compiler.trace import trace_layer
from sagann.saga import SagaLayer


def traced(layer: SagaLayer, dim: int = 4) -> fx.GraphModule:
    """The layer's graph for float32 rows of ``dim`` features and numbers as edge data."""
    data = torch.rand(5) if layer.edge_data else None
    module = trace_layer(layer, torch.randn(9, dim), data)
    classify(module)
    return module


def targets(module: fx.GraphModule, place: str) -> list[str]:
    """Names of the operators in a place, in order."""
    nodes = [node for node in module.graph.nodes if node.op == "call_function" and node.meta["place"] == place]
    return [node.target._schema.name.partition("::")[2] for node in nodes]
