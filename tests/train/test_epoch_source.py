"""A session trains whatever steps its epoch source gives, and several workers go by the numbers of the first one."""

from __future__ import annotations

from dataclasses import replace

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
from tests.train.runs import community_graph

pytestmark = pytest.mark.usefixtures("naive")


class Halves:
    """An epoch source of two steps: mini-batches of rows without a graph."""

    def __init__(self, model, graph):
        self.model, self.graph, self.num_batches = model, graph, 2
        labelled = graph.splits["train"].nonzero().squeeze(1)
        self.batches = [labelled[:3], labelled[3:]]

    def steps(self, epoch, *, first=0):
        for rows in (self.batches if epoch % 2 else self.batches[::-1])[first:]:
            yield TrainStep(loss=lambda rows=rows: self._loss(rows), num_labelled=len(rows), num_edges=7)

    def _loss(self, rows):
        return F.cross_entropy(self.model(self.graph.features[rows]), self.graph.labels[rows])

    def end_epoch(self, epochs_left):
        return {}

    def logits(self):
        with torch.no_grad():
            return self.model(self.graph.features)

    def measure(self, names):
        return evaluate_splits(self.logits(), self.graph.vertices, task="classification", names={"loss", *names})


def session_of(model, graph):
    config = TrainConfig(epochs=4, device="cpu")
    return TrainSession(
        model=model,
        source=Halves(model, graph),
        device=torch.device("cpu"),
        config=config,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        scheduler=None,
        tracker=BestTracker(
            resolve_monitor(config, Contract.of(graph), graph.splits), keep_weights=False, patience=None
        ),
    )


def session_at(workers: Workers, *, clip_norm: float | None = None) -> TrainSession:
    """A session whose outputs and losses are 1.5 times as large at the second worker: a difference larger than any of rounding."""
    graph = community_graph()
    torch.random.default_generator.manual_seed(0)
    model = nn.Linear(graph.num_features, graph.num_classes)
    with torch.no_grad():
        model.weight.fill_(0.1).mul_(torch.arange(graph.num_classes).unsqueeze(1))
        model.bias.zero_()
    session = session_of(model, graph)
    session.team, session.config = workers, replace(session.config, clip_norm=clip_norm)
    own_logits, own_steps = session.source.logits, session.source._loss
    factor = 1.5 if workers.rank else 1.0
    session.source.logits = lambda: factor * own_logits()
    session.source._loss = lambda rows: factor * own_steps(rows)
    return session


def test_metrics_are_those_of_the_first_worker() -> None:
    first, second = in_threads(lambda workers: session_at(workers).evaluate(1), 2)
    assert first == second
    assert first["val"]["loss"] > 0


def test_gradients_are_clipped_by_the_norm_of_the_first_worker() -> None:
    def moved(workers: Workers) -> torch.Tensor:
        session = session_at(workers, clip_norm=0.1)
        before = session.model.weight.detach().double().clone()
        (step, *_) = session.source.steps(1)
        session._step(step, 1)
        return before - session.model.weight.detach().double()

    first, second = in_threads(moved, 2)
    assert first.abs().max() > 0
    torch.testing.assert_close(second, 1.5 * first, rtol=1e-2, atol=0.0)


def test_weights_are_those_of_the_first_worker_where_an_optimizer_adds_numbers_up() -> None:
    def stepped(workers: Workers, optimizer: type[torch.optim.Optimizer]) -> torch.Tensor:
        session = session_at(workers)
        session.optimizer = optimizer(session.model.parameters(), lr=0.1)
        (step, *_) = session.source.steps(1)
        session._step(step, 1)
        return session.model.weight.detach()

    first, second = in_threads(lambda workers: stepped(workers, torch.optim.LBFGS), 2)
    assert torch.equal(first, second)
    # Steps of each number by itself are left alone.
    first, second = in_threads(lambda workers: stepped(workers, torch.optim.SGD), 2)
    assert not torch.equal(first, second)
