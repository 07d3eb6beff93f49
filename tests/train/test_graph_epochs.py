"""Epochs of batches of graphs: the same Trainer, metrics and checkpoints; equal to a plain loop, and resumed bitwise."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sagann.errors import CheckpointError, InputError, LayerError
from sagann.graph import Graph, random_graph_split
from sagann.nn import ModelConfig, build_model
from sagann.runtime.in_memory.engine import CompiledEngine
from sagann.runtime.loading import GraphBatches
from sagann.saga.engine import using_engine
from sagann.storage import load_graph, save_graph
from sagann.train import Predictor, TrainConfig, Trainer, load_run, runner
from sagann.train.batch_epochs import GraphEpochs
from tests.graph.graphs import sparse
from tests.runtime.loading.many_graphs import many_graphs
from tests.threads import left_threads
from tests.tolerances import assert_close
from tests.train.graphs_of import OwnReadout, graph_model, on_answers_of_vertices, rings_and_stars
from tests.train.runs import (
    Heard,
    assert_same_bits,
    community_graph,
    dense_means,
    numbers_of,
    predictor_of,
    seeded_model,
    trainer_of,
    weights_of,
)

pytestmark = pytest.mark.usefixtures("naive")

BATCHES: dict[str, Any] = {"batch_size": 8, "epochs": 4}


class PlainTwin(nn.Module):
    """GraphModel(TwoLayers) without sagann: a dense adjacency, and a mean and maximum over each graph's rows."""

    def __init__(self) -> None:
        super().__init__()
        self.model = graph_model(dropout=0.0).double()

    def forward(self, graph: Graph, graphs: Tensor) -> Tensor:
        gnn = self.model.gnn
        parts = [torch.arange(*graph.graph_ptr[g : g + 2].tolist()) for g in graphs.tolist()]
        rows = torch.cat(parts)
        x, mean = graph.features[rows].double(), dense_means(graph)[rows][:, rows]
        hidden = gnn.norm(gnn.first.own(x) + gnn.first.neighbours(mean @ x)).relu()
        found = gnn.second.own(hidden) + gnn.second.neighbours(mean @ hidden)
        pooled = [torch.cat([part.mean(0), part.amax(0)]) for part in found.split([len(part) for part in parts])]
        return self.model.head(torch.stack(pooled))


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("regression", [False, True])
def test_a_run_is_that_of_a_plain_loop(regression: bool) -> None:
    graph, torch_loss = rings_and_stars(regression=regression), F.mse_loss if regression else F.cross_entropy
    answers = graph.graph_targets.double() if regression else graph.graph_labels
    trainer = Trainer(graph_model(dropout=0.0).double(), graph, TrainConfig(**BATCHES, optimizer="SGD", lr=0.1))
    found = trainer.fit()
    twin = PlainTwin()
    optimizer = torch.optim.SGD(twin.parameters(), lr=0.1, weight_decay=5e-4)
    batches = GraphBatches(graph, batch_size=8, seed=0)
    for record in found.history:
        sums = 0.0
        for graphs in batches.items_of(record.epoch):
            loss = torch_loss(twin(graph, graphs), answers[graphs])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            sums += float(loss.detach()) * len(graphs)
        assert record.loss == pytest.approx(sums / len(batches.graphs), rel=1e-9)
    twin.eval()
    known = graph.graphs.known(graph.graph_splits["test"])
    with torch.no_grad():
        loss = float(torch_loss(twin(graph, known), answers[known]))
    trainer = Trainer(twin.model, graph, TrainConfig(**BATCHES))
    assert trainer.evaluate()["test"]["loss"] == pytest.approx(loss, rel=1e-9)


def test_a_batch_norm_gets_no_batch_of_one_graph() -> None:
    graph = rings_and_stars()
    known = graph.graphs.known(graph.graph_splits["train"])[:9]
    graph = replace(graph, graph_splits={"train": torch.zeros(60, dtype=torch.bool).index_fill(0, known, True)})
    predictor = of(graph)
    source = GraphEpochs(predictor, predictor.prepare(graph), TrainConfig(batch_size=4))
    assert [step.num_labelled for step in source.steps(1)] == [5, 4]


def test_a_run_learns_and_says_what_it_trains() -> None:
    trainer = trainer_of(
        ModelConfig(model="gin", hidden=16, layers=3), rings_and_stars(200), epochs=60, batch_size=16
    )
    assert "trains='batches of 16 graphs'" in repr(trainer)
    assert trainer.monitor == "val/accuracy"
    assert trainer.fit().metrics["test"]["accuracy"] > 0.9
    assert trainer.predict().shape == (200,)
    probabilities = trainer.predict(probabilities=True)
    assert torch.equal(probabilities.argmax(1), trainer.predict())
    assert_close(probabilities.sum(1), torch.ones(200))


def test_batches_ahead_change_no_bit_and_leave_no_thread() -> None:
    here, made_ahead = (trainer_of(graph_model(), rings_and_stars(), **BATCHES, batches_ahead=n) for n in (0, 5))
    assert numbers_of(here.fit()) == numbers_of(made_ahead.fit())
    assert_same_bits(weights_of(here.model), weights_of(made_ahead.model))
    assert not left_threads()


def test_other_answers_or_batches_are_another_run(tmp_path: Path) -> None:
    trainer_of(graph_model(), rings_and_stars(), run_dir=tmp_path, **BATCHES).fit()
    with pytest.raises(CheckpointError, match=r"train\.batch_size was 8, is 64"):
        trainer_of(graph_model(), rings_and_stars(), run_dir=tmp_path, epochs=4).resume()
    other = random_graph_split(rings_and_stars(), train=0.6, val=0.2, seed=1)
    with pytest.raises(CheckpointError, match=r"graph\.graph_split_test was"):
        trainer_of(graph_model(), other, run_dir=tmp_path, **BATCHES).resume()


def test_multi_label_graphs_and_their_metrics() -> None:
    options = {"epochs": 30, "batch_size": 16, "monitor": "val/micro_f1"}
    found = trainer_of(graph_model(), rings_and_stars(multi_label=True), **options).fit()
    assert found.metrics["train"]["micro_f1"] > 0.8
    assert set(found.metrics["test"]) >= {"loss", "micro_f1", "roc_auc"}


@pytest.mark.parametrize("name", ["gat", "rgcn"])
def test_models_of_the_zoo_train_on_graphs(name: str) -> None:
    config = ModelConfig(model=name, hidden=8, heads=2, pool="mean,max")
    options: dict[str, Any] = {"task": "graph-classification", "epochs": 2, "batch_size": 3}
    twin = trainer_of(config, many_graphs(), **options).fit()
    with using_engine(CompiledEngine()):
        losses = [record.loss for record in trainer_of(config, many_graphs(), **options).fit().history]
    assert losses == pytest.approx([record.loss for record in twin.history], rel=1e-4)


def test_own_losses_own_metrics_and_class_weights_are_of_graphs() -> None:
    graph, rows = rings_and_stars(), []

    def noted(outputs: Tensor, answers: Tensor) -> Tensor:
        rows.append(len(outputs))
        return F.cross_entropy(outputs, answers, reduction="none")

    def right(outputs: Tensor, answers: Tensor) -> float:
        return float((outputs.argmax(1) == answers).float().mean())

    found = trainer_of(graph_model(), graph, epochs=1, loss=noted, metrics={"right": right}).fit()
    assert found.metrics["test"]["right"] == pytest.approx(found.metrics["test"]["accuracy"])
    assert max(rows) == len(graph.graphs.known(graph.graph_splits["train"]))
    trainer_of(graph_model(), graph, epochs=1, class_weights="balanced").fit()


def test_a_graph_without_vertices_is_learned() -> None:
    graph = many_graphs()
    found = trainer_of(ModelConfig(model="gin", hidden=8), graph, task="graph-regression", epochs=2, batch_size=4)
    assert torch.isfinite(found.fit().history[-1].loss * torch.ones(1)).all()
    assert found.predict().shape == (graph.num_graphs, 2)
    assert found.embed().shape == (graph.num_vertices, 8)


def test_a_model_of_ones_own_pools_by_itself() -> None:
    trainer = trainer_of(seeded_model(OwnReadout), rings_and_stars(), epochs=40, batch_size=16)
    assert trainer.fit().metrics["train"]["accuracy"] > 0.8


def test_the_task_chooses_between_answers_of_vertices_and_of_graphs() -> None:
    graph, heard = on_answers_of_vertices(rings_and_stars()), Heard()
    with pytest.raises(InputError, match="Choose classification or graph-classification"):
        trainer_of(graph_model(), graph)
    trainer = trainer_of(graph_model(), graph, task="graph-classification", epochs=1, reporter=heard)
    assert trainer.fit().epochs == 1
    assert heard.messages == [
        "Graph 'rings' also has labels of 3 classes; the task 'graph-classification' does not use them."
    ]


def test_graphs_of_unknown_label_are_not_trained() -> None:
    graph = rings_and_stars()
    train = graph.graph_splits["train"] | (graph.graph_labels < 0)
    splits = {"train": train, "test": ~train}
    with pytest.raises(InputError, match="unknown label"):
        trainer_of(graph_model(), replace(graph, graph_splits=splits))
    predictor = of(graph)
    source = GraphEpochs(predictor, predictor.prepare(graph), TrainConfig(batch_size=7))
    assert sum(step.num_labelled for step in source.steps(1)) == int(graph.graph_splits["train"].sum())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"task": "regression"}, "task 'regression', graph 'rings' has labels of 2 classes of graphs .*Choose graph-classification"),
        ({"loss": "mse"}, "'mse' is for regression, the task is classification"),
        ({"monitor": "val/mae"}, "the task graph-classification has loss, accuracy"),
    ],
)  # fmt: skip
def test_options_without_a_meaning_for_graphs_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        trainer_of(graph_model(), rings_and_stars(), **options)


def test_models_and_graphs_that_cannot_be_learned_are_refused() -> None:
    graph = rings_and_stars()
    with pytest.raises(
        InputError,
        match=r"gives vertices rows, and graphs none: its forward does not take graph_ptr .*GraphModel\(model, width, 2\)",
    ):
        trainer_of(seeded_model(), graph)
    with pytest.raises(
        InputError, match=r"no graph to train on: the split 'train' of graphs is missing.*random_graph_split"
    ):
        trainer_of(graph_model(), replace(graph, graph_splits={}))
    with pytest.raises(InputError, match="batches of graphs need features"):
        trainer_of(graph_model(), replace(graph, features=None))


def of(graph: Graph | None = None) -> Predictor:
    return predictor_of(graph_model(), rings_and_stars() if graph is None else graph)


def test_rows_do_not_depend_on_the_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, predictor = rings_and_stars(), of()
    whole, rows = predictor.logits(predictor.prepare(graph)), predictor.embed(graph)
    monkeypatch.setattr(runner, "_VERTICES_AT_ONCE", 20)
    assert_close(predictor.logits(predictor.prepare(graph)), whole)
    assert_close(predictor.embed(graph), rows)
    model = predictor.model.eval()
    with torch.no_grad():
        assert_close(model(graph.hops(2), graph.features, graph.graph_ptr), whole)
        assert_close(model.gnn(graph.hops(2), graph.features), rows)


def test_new_graphs_are_predicted_without_answers() -> None:
    predictor, other = of(), rings_and_stars(20)
    bare = replace(other, graph_labels=None, num_graph_classes=0, graph_splits={})
    assert torch.equal(predictor.predict(bare), predictor.predict(other))
    with pytest.raises(InputError, match="the graph has no graph_labels: graph_labels are None"):
        predictor.evaluate(bare)
    assert list(predictor.evaluate(replace(other, graph_splits={}))) == ["all"]


def test_sparse_features_and_files_give_the_same(tmp_path: Path) -> None:
    graph = rings_and_stars()
    graph = replace(graph, features=graph.features * (graph.features > 0))
    config = ModelConfig(model="sage", hidden=8, dropout=0.0)
    torch.manual_seed(0)
    predictor = predictor_of(build_model(config, graph), graph)
    expected = predictor.logits(predictor.prepare(graph))
    as_csr = replace(graph, features=sparse(graph.features))
    assert_close(predictor.logits(predictor.prepare(as_csr)), expected)
    save_graph(graph, tmp_path / "rings")
    mapped = load_graph(tmp_path / "rings")
    assert_close(predictor.logits(predictor.prepare(mapped)), expected)


def test_a_run_is_reopened(tmp_path: Path) -> None:
    for name, graph in (("classes", rings_and_stars()), ("values", rings_and_stars(regression=True))):
        options = {"epochs": 2, "batch_size": 16, "run_dir": tmp_path / name}
        trainer = trainer_of(ModelConfig(model="gin", hidden=8), graph, **options)
        metrics = trainer.fit().metrics
        reopened = load_run(tmp_path / name)
        assert reopened.evaluate(graph) == metrics
        assert torch.equal(reopened.predict(graph), trainer.predict())
    with pytest.raises(
        InputError,
        match=r"a model of whole graphs is not streamed: a memory budget .*Leave memory \(--memory\) out",
    ):
        load_run(tmp_path / "classes", memory="1GiB")


def test_a_single_graph_is_not_predicted() -> None:
    with pytest.raises(InputError, match="there are no graphs to make batches of"):
        of().predict(community_graph())


def test_outputs_that_are_not_finite_name_the_graph() -> None:
    graph = rings_and_stars()
    predictor = of(graph)
    with torch.no_grad():
        predictor.model.head[3].bias.fill_(float("nan"))
    with pytest.raises(InputError, match="not finite: graph 0 and 59 more"):
        predictor.predict(graph)


def test_a_preparation_that_loses_graphs_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, predictor = rings_and_stars(), of()
    monkeypatch.setattr(type(predictor.model), "prepare", lambda model, given: rings_and_stars(20))
    with pytest.raises(LayerError, match="prepare must keep the graphs: 20 graphs, 60 were passed"):
        predictor.predict(graph)


def test_a_forward_that_takes_other_arguments_is_refused() -> None:
    class Mine(torch.nn.Module):
        def forward(self, hops: Any, x: Any, *, graph_ptr: Any) -> Any:
            return x

    with pytest.raises(InputError, match=r"cannot be called as model\(hops, x, graph_ptr\): .*too many positional"):
        predictor_of(Mine(), rings_and_stars())
