"""Losses: their values and gradients are those of a plain PyTorch twin, however an epoch is computed."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sagann.errors import InputError
from sagann.graph import LINK_TASK, Graph, Topology
from sagann.runtime.workers import Workers
from sagann.train import Contract, Predictor, TrainConfig
from sagann.train.batch_epochs import SampledEpochs
from sagann.train.epoch_source import WholeGraph
from sagann.train.losses import LOSSES, Loss, build_loss, default_loss
from sagann.train.streamed import Streaming
from tests.runtime.workers.threads import in_threads
from tests.tolerances import assert_close
from tests.train.runs import CPU, Mean, community_graph, dense_means, seeded_model, values_graph

pytestmark = pytest.mark.usefixtures("naive")

Twin = Callable[[Tensor, Tensor], Tensor]
Numbers = dict[str, Tensor]


class Two(nn.Module):
    """Two layers without random numbers."""

    def __init__(self, out_dim: int) -> None:
        super().__init__()
        self.first, self.second = Mean(8, 6), Mean(6, out_dim)

    def forward(self, hops: Sequence[Topology], x: Tensor) -> Tensor:
        return self.second(hops[1], torch.relu(self.first(hops[0], x)))


def twin_outputs(model: Two, graph: Graph) -> Tensor:
    """The same model with a dense matrix in place of edges."""
    x, means = graph.features.double(), dense_means(graph)  # type: ignore[union-attr]
    hidden = torch.relu(model.first.own(x) + model.first.neighbours(means @ x))
    return model.second.own(hidden) + model.second.neighbours(means @ hidden)


def quantile(outputs: Tensor, targets: Tensor) -> Tensor:
    """A loss of one's own: the loss of each vertex and target."""
    errors = targets.to(outputs.dtype) - outputs
    return torch.maximum(0.9 * errors, -0.1 * errors)


def margin(outputs: Tensor, labels: Tensor) -> Tensor:
    """A loss of one's own: a number for each vertex."""
    return F.multi_margin_loss(outputs, labels, reduction="none")


SKEWED = replace(community_graph(), labels=(torch.arange(90) % 3) * (torch.arange(90) % 2))
MULTI, ONE, THREE = community_graph(multi_label=True), values_graph(), values_graph(num_targets=3)
WEIGHTS = (0.5, 2.0, 7.0)
COUNTS = torch.bincount(SKEWED.labels[SKEWED.splits["train"]], minlength=3).double()
CASES: dict[str, tuple[Graph, dict[str, Any], Twin]] = {
    "cross_entropy": (SKEWED, {}, F.cross_entropy),
    "weights": (
        SKEWED,
        {"class_weights": WEIGHTS},
        lambda z, y: F.cross_entropy(z, y, weight=torch.tensor(WEIGHTS).double()),
    ),
    "balanced": (
        SKEWED,
        {"class_weights": "balanced"},
        lambda z, y: F.cross_entropy(z, y, weight=COUNTS.sum() / (3 * COUNTS)),
    ),
    "bce": (MULTI, {}, lambda z, y: F.binary_cross_entropy_with_logits(z, y.double())),
    "mse": (ONE, {}, lambda z, y: F.mse_loss(z[:, 0], y[:, 0].double())),
    "mae": (THREE, {"name": "mae"}, lambda z, y: (z - y.double()).abs().mean()),
    "huber": (THREE, {"name": "huber"}, lambda z, y: F.huber_loss(z, y.double())),
    "smooth_l1": (ONE, {"name": "smooth_l1"}, lambda z, y: F.smooth_l1_loss(z, y.double())),
    "own loss of targets": (THREE, {"function": quantile}, lambda z, y: quantile(z, y).mean()),
    "own loss of classes": (SKEWED, {"function": margin}, lambda z, y: F.multi_margin_loss(z, y)),
}


def test_every_named_loss_is_a_case() -> None:
    of_vertices = {name for name, task in LOSSES.items() if task != LINK_TASK}
    assert of_vertices <= set(CASES)
    # tests/train/test_links.py
    assert set(LOSSES) - of_vertices == {"link_bce", "link_softmax"}


def doubled(graph: Graph) -> Graph:
    return replace(graph, features=graph.features.double())


def numbers_of(
    model: nn.Module,
    graph: Graph,
    loss: Loss,
    *,
    streaming: Streaming | None = None,
    workers: Workers | None = None,
    batch_size: int | None = None,
) -> Numbers:
    """The loss of an epoch and its gradients, after one forward and backward pass of all of it; and the measured loss of val."""
    model = copy.deepcopy(model)
    predictor = Predictor(model, Contract.of(graph), device=CPU, loss=loss, streaming=streaming, workers=workers)
    prepared = predictor.prepare(graph)
    if batch_size is None:
        source: Any = WholeGraph(predictor, prepared)
    else:
        source = SampledEpochs(predictor, prepared, TrainConfig(sample=(-1, -1), batch_size=batch_size))
    if streaming is not None:
        assert len(predictor.runner(prepared).streamed().bounds) > 2
    model.train()
    total, num_labelled, num_steps = torch.zeros((), dtype=torch.float64), 0, 0
    for step in source.steps(1):
        value = step.loss()
        (value * step.num_labelled).backward()
        value, _ = step.complete(value.detach(), step.num_edges)
        total = total + value * step.num_labelled
        num_labelled, num_steps = num_labelled + step.num_labelled, num_steps + 1
    assert num_labelled == int(graph.splits["train"].sum())
    assert num_steps == source.num_batches
    found = {"loss": total / num_labelled}
    found |= {
        name: parameter.grad / num_labelled
        for name, parameter in model.named_parameters()
        if parameter.grad is not None
    }
    found["val"] = torch.tensor(predictor.evaluate(prepared)["val"]["loss"], dtype=torch.float64)
    predictor.release()
    return found


IN_EVERY_WAY = ("weights", "mse", "own loss of classes")
"Cases that are streamed and divided as well: a loss sees ranges of rows there, as in batches."


@pytest.mark.parametrize("name", CASES)
def test_numbers_are_those_of_the_twin_in_every_way_of_computing(name: str, tmp_path: Path) -> None:
    given, options, twin = CASES[name]
    graph = doubled(given)
    model = seeded_model(Two, out_dim=graph.num_outputs).double()
    loss = build_loss(Contract.of(graph).task, graph.vertices, **options)
    outputs = twin_outputs(model, graph)  # type: ignore[arg-type]
    rows, answers = graph.vertices.rows(graph.splits["train"])
    expected_loss = twin(outputs[rows], answers)
    expected_loss.backward()
    expected = {
        "loss": expected_loss.detach(),
        **{name: each.grad.clone() for name, each in model.named_parameters()},
    }
    model.zero_grad()
    ways = {"in memory": numbers_of(model, graph, loss), "batches": numbers_of(model, graph, loss, batch_size=7)}
    if name in IN_EVERY_WAY:
        streaming = Streaming(memory_bytes=14_000, spill=tmp_path)
        ways["streamed"] = numbers_of(model, graph, loss, streaming=streaming)
        of_workers = in_threads(lambda workers: numbers_of(model, graph, loss, workers=workers), 2)
        ways |= {f"worker {rank}": found for rank, found in enumerate(of_workers)}
    for way, found in ways.items():
        assert set(found) == {*expected, "val"}, way
        for key, value in expected.items():
            assert_close(found[key], value)
        # The loss of a split has the weights of the training vertices.
        assert_close(found["val"], ways["in memory"]["val"])


def test_targets_of_one_column_do_not_broadcast() -> None:
    outputs, targets = torch.arange(4.0)[:, None], torch.zeros(4, 1)
    assert float(default_loss("regression")(outputs, targets)) == pytest.approx(3.5)


def test_class_weights_have_a_mean_of_one_over_the_training_vertices() -> None:
    loss = build_loss("classification", SKEWED.vertices, class_weights=WEIGHTS)
    assert float((COUNTS * torch.tensor(loss.class_weights)).sum()) == pytest.approx(float(COUNTS.sum()))
    # A class without training vertices weighs as the most frequent one.
    absent = replace(SKEWED, num_classes=4)
    found = build_loss("classification", absent.vertices, class_weights="balanced").class_weights
    assert found[3] == min(found[:3])


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ((1.0, 2.0), r"class weights and classes differ in number: 2 weights, 3 classes \(in TrainConfig.class_weights\)"),
        ((0.0, 0.0, 0.0), r"cannot be scaled to a mean of 1: their sum over the training vertices is 0, the largest weight 0"),
        ((1e308, 1e308, 1e308), r"their sum over the training vertices is inf"),
        ((5e-324, 0.0, 1e300), r"cannot be scaled|their sum"),
    ],
)  # fmt: skip
def test_class_weights_that_do_not_fit_are_refused(weights: tuple[float, ...], message: str) -> None:
    graph = SKEWED
    if weights[0] == 5e-324:
        # The heavy class has no training vertex.
        graph = replace(graph, labels=torch.zeros(90, dtype=torch.int64))
    with pytest.raises(InputError, match=message):
        build_loss("classification", graph.vertices, class_weights=weights)


@pytest.mark.parametrize(
    ("graph", "options", "message"),
    [
        (ONE, {"name": "cross_entropy"}, r"'cross_entropy' is for classification, the task is regression .*Choose mse, mae, huber, smooth_l1, or pass"),
        (SKEWED, {"name": "mse"}, r"'mse' is for regression, the task is classification .*Choose cross_entropy"),
        (MULTI, {"class_weights": WEIGHTS}, r"only the loss cross_entropy has class weights: class_weights, with the loss bce"),
        (ONE, {"class_weights": "balanced"}, r"class_weights, with the loss mse"),
        (SKEWED, {"function": margin, "class_weights": WEIGHTS}, r"class_weights, with the loss \(margin\)"),
        (ONE, {"function": "mae"}, r"a loss cannot be called: 'mae' \(in Trainer.loss\). Name a loss as TrainConfig\(loss='mae'\)"),
        (SKEWED, {"function": margin, "name": "cross_entropy"}, r"two losses: TrainConfig.loss is 'cross_entropy', and a function is passed"),
    ],
)  # fmt: skip
def test_a_loss_that_does_not_fit_is_refused(graph: Graph, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        build_loss(Contract.of(graph).task, graph.vertices, **options)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (F.mse_loss, r"must give the loss of each vertex: torch.float32 \[\] for 3 vertices, expected floats \[3\], .*reduction='none'"),
        (lambda z, y: (z - y).T, r"torch.float32 \[2, 3\] for 3 vertices"),
        (lambda z, y: 0.5, "a float for 3 vertices"),
        (lambda z, y: z.argmax(1), r"torch.int64 \[3\] for 3 vertices"),
        (lambda z, y: (z.detach() - y).square(), "no gradient leads from the losses to the outputs"),
        (lambda z, y: (z - z.mean(0)).square(), "a loss function mixes vertices: the loss of a vertex is"),
        (lambda z, y: (z - y).square() * torch.rand_like(z), "a loss function mixes vertices"),
    ],
)  # fmt: skip
def test_a_function_that_gives_no_loss_for_each_vertex_is_refused_before_training(
    function: Callable[[Tensor, Tensor], Any], message: str
) -> None:
    graph = values_graph(num_targets=2)
    torch.manual_seed(0)
    with pytest.raises(InputError, match=message):
        build_loss("regression", graph.vertices, function=function).try_out(graph.vertices, 2, CPU)
