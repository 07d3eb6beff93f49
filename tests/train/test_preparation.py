from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from sagann.errors import LayerError
from sagann.graph import add_self_loops
from sagann.nn import SAGE, ModelConfig
from sagann.train import TrainConfig, Trainer
from sagann.train.preparation import features_as
from tests.train.runs import Mean, TwoLayers, community_graph, predictor_of, seeded_model, sparse_graph


def test_types_that_a_model_adds_are_numbered_as_in_training():
    class Looped(Mean):
        prepare = staticmethod(add_self_loops)

    graph = community_graph()
    types = torch.arange(graph.num_edges) % 3
    trained = replace(graph, topology=graph.topology.with_edge_data(type=types), num_edge_types=3)
    # Of a graph that has no edge of the last type, it may not be known that there is one.
    other = replace(graph, topology=graph.topology.with_edge_data(type=types % 2), num_edge_types=2)
    predictor = predictor_of(Looped(8, 3), trained)
    for given in (trained, other):
        prepared = predictor.prepare(given).graph
        loops = prepared.topology.indices == prepared.topology.edge_dst()
        added = prepared.topology.edge_data["type"][loops]
        assert prepared.num_edge_types == 4
        assert (added == 3).any()
        assert prepared.num_edges > given.num_edges


def test_prepare_is_called_once_per_graph():
    class Counts(TwoLayers):
        def __init__(self):
            super().__init__()
            self.prepared = []

        def prepare(self, graph):
            self.prepared.append(graph.name)
            return replace(graph, features=graph.features + 1)

    model = seeded_model(Counts)
    trainer = Trainer(model, community_graph(), TrainConfig(epochs=3, device="cpu"))
    trainer.fit()
    trainer.predict()
    trainer.evaluate()
    assert model.prepared == ["communities"]
    trainer.predict(replace(community_graph(), name="new"))
    assert model.prepared == ["communities", "new"]


def test_prepare_must_return_a_graph():
    class Forgets(TwoLayers):
        def prepare(self, graph):
            graph.hops(2)

    with pytest.raises(LayerError, match="prepare must return a graph: a NoneType"):
        predictor_of(seeded_model(Forgets)).predict(community_graph())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
def test_features_of_every_dtype_are_trained_in_that_of_the_model(dtype, sparse):
    graph = community_graph()
    features = graph.features.to(dtype)
    graph = replace(graph, features=features.to_sparse_csr() if sparse else features)
    config = TrainConfig(epochs=2, device="cpu", deterministic=False)
    result = Trainer(ModelConfig(hidden=8), graph, config).fit()
    expected = Trainer(ModelConfig(hidden=8), features_as(graph, torch.float32), config).fit()
    assert [record.loss for record in result.history] == [record.loss for record in expected.history]


@pytest.mark.parametrize("takes_sparse", [False, True])
def test_a_model_of_ones_own_gets_dense_rows_unless_it_takes_sparse_ones(takes_sparse):
    seen = []

    class Own(nn.Module):
        takes_sparse_features = takes_sparse

        def __init__(self):
            super().__init__()
            self.layer = SAGE(8, 3)

        def forward(self, hops, x):
            seen.append(x.layout)
            return self.layer(hops[0], x)

    Trainer(Own(), sparse_graph(), TrainConfig(epochs=1, device="cpu")).fit()
    assert set(seen) == {torch.sparse_csr if takes_sparse else torch.strided}
