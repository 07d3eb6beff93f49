"""Features are constant where their owner says so, and nowhere else."""

from __future__ import annotations

from dataclasses import replace

import torch

from sagann.graph import Graph, Topology
from sagann.graph.constant import declare_constant, is_constant
from tests.graph.graphs import sparse


def graph_of(features: torch.Tensor) -> Graph:
    topology = Topology.from_coo(src=torch.tensor([0, 1]), dst=torch.tensor([1, 2]), num_src=3)
    return Graph(topology=topology, features=features)


def test_a_graph_declares_its_features() -> None:
    features = torch.ones(3, 2)
    assert not is_constant(features)
    graph = graph_of(features)
    assert is_constant(features)
    other = sparse(torch.ones(3, 2))
    replace(graph, features=other)
    assert is_constant(other)


def test_what_is_computed_of_them_is_not_constant() -> None:
    features = graph_of(torch.ones(3, 2)).features
    assert not is_constant(torch.dropout(features, 0.5, True))
    assert not is_constant(features[:2])


def test_features_that_learn_are_not_constant() -> None:
    features = torch.ones(3, 2, requires_grad=True)
    graph_of(features)
    assert not is_constant(features)
    assert not is_constant(declare_constant(torch.ones(2)).requires_grad_())
