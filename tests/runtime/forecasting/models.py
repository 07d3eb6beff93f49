"""Models and graphs whose epochs are foretold."""

from __future__ import annotations

import torch

from sagann.graph import Graph
from sagann.nn import ModelConfig, build_model
from tests.graphs import labelled_graph


def model_and_graph(
    name: str = "gcn", *, num_vertices: int = 2000, hidden: int = 32
) -> tuple[torch.nn.Module, Graph]:
    graph = labelled_graph(num_vertices, 12 * num_vertices)
    model = build_model(ModelConfig(model=name, hidden=hidden, heads=2), graph)
    return model, model.prepare(graph)
