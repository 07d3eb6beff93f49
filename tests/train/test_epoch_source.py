"""Several workers go by the numbers of the first one, whatever the steps of their epoch source."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sagann.runtime.workers import Workers
from sagann.train import Contract, TrainConfig
from sagann.train.epoch_source import TrainStep
from sagann.train.metrics import evaluate_splits
from sagann.train.session import BestTracker, TrainSession, resolve_monitor
from tests.runtime.workers.threads import in_threads
from tests.train.runs import CPU, community_graph

pytestmark = pytest.mark.usefixtures("naive")
GRAPH = community_graph()


class Scaled:
    """An epoch source of a step on rows without a graph, whose outputs and losses are ``factor`` times as large."""

    num_batches = 1

    def __init__(self, model: nn.Module, factor: float) -> None:
        self.model, self.factor, self.rows = model, factor, GRAPH.splits["train"].nonzero().squeeze(1)[:3]

    def step(self) -> TrainStep:
        return TrainStep(loss=self._loss, num_labelled=len(self.rows), num_edges=7)

    def _loss(self) -> torch.Tensor:
        return self.factor * F.cross_entropy(self.model(GRAPH.features[self.rows]), GRAPH.labels[self.rows])

    def measure(self, names: Any) -> Any:
        with torch.no_grad():
            logits = self.factor * self.model(GRAPH.features)
        return evaluate_splits(logits, GRAPH.vertices, task="classification", names={"loss", *names})


def session_at(
    workers: Workers, *, optimizer: Any = torch.optim.SGD, clip_norm: float | None = None
) -> TrainSession:
    """A session whose numbers differ by more than rounding at the second worker."""
    model = nn.Linear(GRAPH.num_features, GRAPH.num_classes)
    with torch.no_grad():
        model.weight.fill_(0.1).mul_(torch.arange(GRAPH.num_classes).unsqueeze(1))
        model.bias.zero_()
    config = TrainConfig(epochs=4, device="cpu", clip_norm=clip_norm)
    monitor = resolve_monitor(config, Contract.of(GRAPH), GRAPH.splits)
    session = TrainSession(
        model=model,
        source=Scaled(model, 1.5 if workers.rank else 1.0),  # type: ignore[arg-type]
        device=CPU,
        config=config,
        optimizer=optimizer(model.parameters(), lr=0.1),
        scheduler=None,
        tracker=BestTracker(monitor, keep_weights=False, patience=None),
    )
    session.team = workers
    return session


def stepped(workers: Workers, **options: Any) -> torch.Tensor:
    """What a step adds to the weights."""
    session = session_at(workers, **options)
    before = session.model.weight.detach().double().clone()
    session._step(session.source.step(), 1)  # type: ignore[attr-defined]
    return session.model.weight.detach().double() - before


def test_metrics_are_those_of_the_first_worker() -> None:
    first, second = in_threads(lambda workers: session_at(workers).evaluate(1), 2)
    assert first == second
    assert first["val"]["loss"] > 0


def test_gradients_are_clipped_by_the_norm_of_the_first_worker() -> None:
    first, second = in_threads(lambda workers: stepped(workers, clip_norm=0.1), 2)
    assert first.abs().max() > 0
    torch.testing.assert_close(second, 1.5 * first, rtol=1e-2, atol=0.0)


def test_weights_are_those_of_the_first_worker_where_an_optimizer_adds_numbers_up() -> None:
    first, second = in_threads(lambda workers: stepped(workers, optimizer=torch.optim.LBFGS), 2)
    assert torch.equal(first, second)
    # Steps of each number by itself are left alone.
    first, second = in_threads(stepped, 2)
    assert not torch.equal(first, second)
