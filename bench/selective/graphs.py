"""The graphs of the benchmark: a sparse one with communities, dense and real ones."""

from __future__ import annotations

from dataclasses import replace

import torch

from bench.epochs.graphs import SEED, SHAPES, graph_of, stored_graph
from sagann.graph import Graph, relabel, sbm_graph
from sagann.partition import vertex_order

AMAZON = "amazon"
"""Of the shape that NeuGraph and ROC report (9.4 million vertices, 231 million edges, 300 features, 24 classes), scaled down:
communities of about a thousand vertices, which nine edges in ten do not leave; these stand for what products are bought
with. The papers' graph is not at hand."""
DATASETS = (AMAZON, *SHAPES, "amazon_computers", "coauthor_cs", "facebook10", "pubmed")
_VERTICES, _EDGES, _FEATURES, _CLASSES = 9_400_000, 231_000_000, 300, 24
_COMMUNITY, _INSIDE = 1_000, 0.9


def graph_named(name: str, scale: int) -> Graph:
    """A graph by name, its vertices as they come.

    Args:
        name: one of :data:`DATASETS`.
        scale: divides the vertices and edges of "amazon".
    """
    return _amazon(scale) if name == AMAZON else graph_of(stored_graph(name))


def ordered(graph: Graph, by: str) -> Graph:
    """The graph with its vertices in an order of :mod:`sagann.partition`."""
    return relabel(graph, vertex_order(graph, by, seed=SEED))


def _amazon(scale: int) -> Graph:
    graph = sbm_graph(
        _VERTICES // scale,
        num_classes=max(1, _VERTICES // scale // _COMMUNITY),
        average_degree=_EDGES / _VERTICES,
        homophily=_INSIDE,
        num_features=_FEATURES,
        feature_noise=1.0,
        seed=SEED,
    )
    assert graph.labels is not None
    train = torch.rand(graph.num_vertices, generator=torch.Generator().manual_seed(SEED)) < 0.6
    return replace(graph, labels=graph.labels % _CLASSES, num_classes=_CLASSES, splits={"train": train})
