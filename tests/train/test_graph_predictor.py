"""GraphPredictor: rows of graphs from batches, whatever their sizes; graphs and models that do not fit are refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from sagann.errors import InputError, LayerError
from sagann.graph import Graph, for_task
from sagann.graph.rows import csr_tensor, offsets_of
from sagann.nn import ModelConfig, build_model
from sagann.storage import load_graph, save_graph
from sagann.train import Contract, Predictor, TrainConfig, Trainer, graph_predictor, load_run
from sagann.train.graph_predictor import predictor_of
from tests.runtime.loading.many_graphs import many_graphs
from tests.tolerances import assert_close
from tests.train.graphs_of import graph_model, rings_and_stars
from tests.train.runs import CPU, community_graph


def of(graph: Graph | None = None) -> Predictor:
    graph = rings_and_stars() if graph is None else graph
    return predictor_of(graph_model(), Contract.of(graph), device=CPU)


def test_rows_do_not_depend_on_the_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, predictor = rings_and_stars(), of()
    whole, rows = predictor.logits(predictor.prepare(graph)), predictor.embed(graph)
    monkeypatch.setattr(graph_predictor, "_VERTICES_AT_ONCE", 20)
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
    sparse = graph.features * (graph.features > 0)
    graph = replace(graph, features=sparse)
    config = ModelConfig(model="sage", hidden=8, dropout=0.0)
    torch.manual_seed(0)
    predictor = predictor_of(build_model(config, graph), Contract.of(graph), device=CPU)
    expected = predictor.logits(predictor.prepare(graph))
    vertices, columns = sparse.nonzero().unbind(1)
    offsets = offsets_of(torch.bincount(vertices, minlength=len(sparse)))
    as_csr = replace(graph, features=csr_tensor(offsets, columns, sparse[vertices, columns], num_columns=8))
    assert_close(predictor.logits(predictor.prepare(as_csr)), expected)
    save_graph(graph, tmp_path / "rings")
    mapped = load_graph(tmp_path / "rings")
    assert_close(predictor.logits(predictor.prepare(mapped)), expected)


def test_a_run_is_reopened(tmp_path: Path) -> None:
    for name, graph in (("classes", rings_and_stars()), ("values", rings_and_stars(regression=True))):
        trainer = Trainer(
            ModelConfig(model="gin", hidden=8), graph, TrainConfig(epochs=2, batch_size=16), run_dir=tmp_path / name
        )
        metrics = trainer.fit().metrics
        reopened = load_run(tmp_path / name)
        assert reopened.evaluate(graph) == metrics
        assert torch.equal(reopened.predict(graph), trainer.predict())
    with pytest.raises(
        InputError,
        match=r"neither streamed nor divided among workers: a memory budget .*Leave memory \(--memory\) out",
    ):
        load_run(tmp_path / "classes", memory="1GiB")


@pytest.mark.parametrize(
    ("graph", "message"),
    [
        (community_graph(), "has no graph_labels"),
        (replace(rings_and_stars(), num_graph_classes=3), "3 exclusive classes, the model predicts 2"),
        (rings_and_stars(multi_label=True), "2 multi-label classes, the model predicts 2 exclusive"),
    ],
)
def test_graphs_that_do_not_fit_are_not_evaluated(graph: Graph, message: str) -> None:
    with pytest.raises(InputError, match=message):
        of().evaluate(graph)


def test_a_single_graph_is_not_predicted() -> None:
    with pytest.raises(InputError, match="there are no graphs to make batches of"):
        of().predict(community_graph())


def test_targets_of_another_number_are_refused() -> None:
    graph = for_task(many_graphs(), "graph-regression")
    torch.manual_seed(0)
    predictor = predictor_of(build_model(ModelConfig(model="gin"), graph), Contract.of(graph), device=CPU)
    with pytest.raises(InputError, match="1 target per graph, the model predicts 2 per graph"):
        predictor.evaluate(replace(graph, graph_targets=torch.zeros(graph.num_graphs)))


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


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ("hops, x, *, graph_ptr", "too many positional arguments"),
        ("hops, x, graph_ptr, extra", "missing a required argument: 'extra'"),
        ("hops, graph_ptr", "too many positional arguments"),
    ],
)
def test_a_forward_that_takes_other_arguments_is_refused(parameters: str, message: str) -> None:
    scope: dict[str, Any] = {"Module": torch.nn.Module}
    exec(f"class Mine(Module):\n    def forward(self, {parameters}):\n        return x", scope)
    contract = Contract.of(rings_and_stars())
    with pytest.raises(
        InputError,
        match=rf"cannot be called as model\(hops, x, graph_ptr\): forward\(.*{message}.*hops, x, graph_ptr",
    ):
        predictor_of(scope["Mine"](), contract, device=CPU)
