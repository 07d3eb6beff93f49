from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from sagann.errors import LayerError
from sagann.nn import MODELS, ModelConfig, build_model
from sagann.plan.residency import BudgetError
from sagann.train import Contract, Predictor, TrainConfig, Trainer
from sagann.train.streaming import Streaming
from tests.tolerances import assert_close
from tests.train.runs import CPU, Mean, Plain, community_graph, predictor_of, seeded_model, sparse_graph


def test_an_embedding_is_the_input_of_the_last_layer():
    graph, model = community_graph(), seeded_model()
    expected = torch.relu(model.eval().norm(model.first(graph.topology, graph.features)))
    predictor = predictor_of(model, graph)
    embedding = predictor.embed(graph)
    assert torch.equal(embedding, expected)
    assert not embedding.requires_grad


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("is_sparse", [False, True])
def test_a_streamed_embedding_is_that_of_the_model_in_memory(name, is_sparse, tmp_path):
    graph = sparse_graph() if is_sparse else community_graph()
    torch.manual_seed(0)
    model = build_model(ModelConfig(model=name, hidden=8, layers=3), graph)
    in_memory = predictor_of(model, graph).embed(graph)
    predictor = Predictor(
        model, Contract.of(graph), device=CPU, streaming=Streaming(memory_bytes=60_000, spill=tmp_path)
    )
    assert_close(predictor.embed(graph), in_memory)
    assert in_memory.shape == (graph.num_vertices, 8)
    assert not list(tmp_path.iterdir())


def test_the_last_layer_is_the_last_to_run_not_to_be_registered():
    class Backwards(nn.Module):
        def __init__(self):
            super().__init__()
            self.late = Mean(5, 3)
            self.early = Mean(8, 5)

        def forward(self, hops, x):
            return self.late(hops[1], x=self.early(hops[0], x))

    graph, model = community_graph(), seeded_model(Backwards)
    assert_close(predictor_of(model).embed(graph), model.early(graph.topology, graph.features).detach())


def test_the_embedding_of_a_one_layer_model_is_a_copy_of_its_input():
    class One(Mean):
        def forward(self, hops, x):
            return super().forward(hops[0], x)

    graph = community_graph()
    embedding = predictor_of(seeded_model(One, in_dim=8, out_dim=3)).embed(graph)
    assert torch.equal(embedding, graph.features)
    embedding.zero_()
    assert graph.features.abs().sum() > 0


def test_a_model_without_saga_layers_has_no_embedding():
    with pytest.raises(LayerError, match="embed needs a SAGA layer: the model ran no SagaLayer"):
        predictor_of(seeded_model(Plain)).embed(community_graph())


@pytest.mark.parametrize("layers", [1, 2])
def test_an_embedding_of_sparse_features_is_dense(layers):
    graph = sparse_graph()
    found = []
    for features in (graph.features, graph.features.to_dense()):
        trainer = Trainer(ModelConfig(hidden=8, layers=layers), replace(graph, features=features), TrainConfig())
        found.append(trainer.embed())
    assert found[0].layout == torch.strided
    assert_close(*found)


@pytest.mark.parametrize("layers", [1, 2])
def test_a_budget_that_trains_a_model_also_gives_its_embedding(layers, tmp_path):
    graph = community_graph(30)
    model = build_model(ModelConfig(model="gcn", hidden=16, layers=layers), graph)

    def within(num_bytes):
        return Predictor(
            model, Contract.of(graph), device=CPU, streaming=Streaming(memory_bytes=num_bytes, spill=tmp_path)
        )

    with pytest.raises(BudgetError) as refused:
        within(10).try_out(within(10).prepare(graph))
    least = within(refused.value.needed_bytes)
    least.try_out(least.prepare(graph))
    least.release()
    assert_close(least.embed(graph), predictor_of(model, graph).embed(graph))
