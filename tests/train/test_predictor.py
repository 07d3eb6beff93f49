from __future__ import annotations

import copy
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch
from torch import nn

from sagann.errors import InputError, LayerError
from sagann.graph import add_self_loops
from sagann.nn import SAGE, ModelConfig, build_model
from sagann.plan.residency import BudgetError
from sagann.train import TrainConfig, Trainer
from sagann.train.runner import features_as
from sagann.train.streamed import Streaming
from tests.runtime.workers.threads import in_threads
from tests.tolerances import assert_close
from tests.train.runs import (
    Mean,
    Mixing,
    Plain,
    TwoLayers,
    community_graph,
    predictor_of,
    seeded_model,
    sparse_graph,
)

pytestmark = pytest.mark.usefixtures("naive")


def test_predictions_are_those_of_the_model_without_dropout():
    graph, model = community_graph(), seeded_model()
    logits = model.eval()(graph.hops(2), graph.features)
    model.train()
    predictor = predictor_of(model, graph)
    assert torch.equal(predictor.predict(graph), logits.argmax(1))
    assert torch.equal(predictor.predict(graph, probabilities=True), logits.softmax(1))
    assert model.training


def test_multi_label_predictions():
    graph, model = community_graph(multi_label=True), seeded_model()
    logits = model.eval()(graph.hops(2), graph.features)
    predictor = predictor_of(model, graph)
    assert torch.equal(predictor.predict(graph), (logits > 0).to(torch.uint8))
    assert torch.equal(predictor.predict(graph, probabilities=True), logits.sigmoid())


def test_an_evaluation_puts_every_module_back_into_its_mode():
    graph, model = community_graph(), seeded_model()
    model.norm.eval()
    predictor_of(model, graph).predict(graph)
    assert model.training
    assert not model.norm.training


def test_embeddings_and_predictions_may_be_asked_for_at_once(tmp_path):
    graph, both = community_graph(), threading.Barrier(2)
    model = build_model(ModelConfig(hidden=8), graph)
    predictor = predictor_of(model, graph, streaming=Streaming(memory_bytes=60_000, spill=tmp_path))
    expected = [predictor.embed(graph), predictor.predict(graph, probabilities=True)]

    def embed():
        both.wait(60)
        return predictor.embed(graph)

    def predict():
        both.wait(60)
        return predictor.predict(graph, probabilities=True)

    with ThreadPoolExecutor(2) as threads:
        for _ in range(10):
            found = [each.result() for each in [threads.submit(embed), threads.submit(predict)]]
            assert all(torch.equal(*pair) for pair in zip(found, expected, strict=True))
    predictor.release()


def test_a_graph_without_labels_is_predicted_but_not_evaluated():
    graph = replace(community_graph(), labels=None, num_classes=0, splits={})
    assert predictor_of().predict(graph).shape == (90,)
    with pytest.raises(InputError, match="the graph has no labels"):
        predictor_of().evaluate(graph)


def test_bad_values_in_a_new_graph_are_refused():
    graph = community_graph()
    graph.features[3, 1] = torch.inf
    with pytest.raises(InputError, match="vertex 3"):
        predictor_of().predict(graph)


@pytest.mark.usefixtures("compiled")
def test_hooks_of_layers_are_given_tensors():
    graph, seen = sparse_graph(), []
    trainer = Trainer(ModelConfig(hidden=8), graph, TrainConfig(epochs=1, device="cpu"))
    trainer.model.layers[0].register_forward_pre_hook(lambda layer, args: seen.append(args[1]))
    trainer.fit()
    assert seen
    assert all(isinstance(x, torch.Tensor) and x.layout == torch.strided for x in seen)


@pytest.mark.usefixtures("compiled")
def test_an_embedding_is_the_input_of_the_last_layer():
    graph, model = community_graph(), seeded_model()
    expected = torch.relu(model.eval().norm(model.first(graph.topology, graph.features)))
    predictor = predictor_of(model, graph)
    embedding = predictor.embed(graph)
    assert torch.equal(embedding, expected)
    assert not embedding.requires_grad


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


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("layers", [1, 2])
def test_an_embedding_of_sparse_features_is_dense(layers):
    graph = sparse_graph()
    found = []
    for features in (graph.features, graph.features.to_dense()):
        trainer = Trainer(ModelConfig(hidden=8, layers=layers), replace(graph, features=features), TrainConfig())
        found.append(trainer.embed())
    assert found[0].layout == torch.strided
    assert_close(*found)


def test_a_budget_that_trains_a_model_also_gives_its_embedding(tmp_path):
    graph = community_graph(30)
    model = build_model(ModelConfig(model="gcn", hidden=16), graph)

    def within(num_bytes):
        return predictor_of(model, graph, streaming=Streaming(memory_bytes=num_bytes, spill=tmp_path))

    with pytest.raises(BudgetError) as refused:
        within(10).try_out(within(10).prepare(graph))
    least = within(refused.value.needed_bytes)
    least.try_out(least.prepare(graph))
    least.release()
    assert_close(least.embed(graph), predictor_of(model, graph).embed(graph))


def test_the_first_worker_alone_may_get_the_results():
    graph = community_graph()
    alone = predictor_of(seeded_model(), graph)

    def work(workers):
        predictor = predictor_of(copy.deepcopy(alone.model), graph, workers=workers, for_first=True)
        return predictor.predict(graph), predictor.embed(graph), predictor.evaluate(graph)

    (classes, embeddings, metrics), *others = in_threads(work, 3)
    assert torch.equal(classes, alone.predict(graph))
    assert_close(embeddings, alone.embed(graph))
    assert metrics["test"]["accuracy"] == alone.evaluate(graph)["test"]["accuracy"]
    for none, rows, nothing in others:
        assert (none.shape, rows.shape, nothing) == ((0,), (0, embeddings.shape[1]), {})


def test_workers_refuse_a_model_that_mixes_vertices_between_its_layers():
    graph = community_graph()

    def work(workers):
        predictor = predictor_of(seeded_model(Mixing), graph, workers=workers)
        with pytest.raises(LayerError, match="must treat vertices independently between its layers: operator mean"):
            predictor.try_out(predictor.prepare(graph))
        # A model that is opened, and not trained, is not tried out.
        for given in (graph, predictor.prepare(graph)):
            with pytest.raises(LayerError, match="must treat vertices independently between its layers"):
                predictor.predict(given)

    in_threads(work, 2)


def test_workers_need_features():
    graph = replace(community_graph(), features=None)

    def work(workers):
        predictor = predictor_of(build_model(ModelConfig(hidden=8), graph), graph, workers=workers)
        with pytest.raises(InputError, match="workers need features, but the vertices have none"):
            predictor.prepare(graph)

    in_threads(work, 2)


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


@pytest.mark.usefixtures("compiled")
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


@pytest.mark.usefixtures("compiled")
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
