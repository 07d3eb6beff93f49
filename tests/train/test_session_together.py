"""Sessions of several workers go by the numbers of the first one, where machines round differently; workers are threads."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import nn

from sagann.runtime.workers import Workers
from sagann.train.session import TrainSession
from tests.runtime.workers.threads import in_threads
from tests.train.runs import community_graph
from tests.train.test_epoch_source import session_of


def session_at(workers: Workers, *, clip_norm: float | None = None) -> TrainSession:
    """A session whose outputs and losses are 1.5 times as large at the second worker: a difference larger than any of rounding."""
    graph = community_graph()
    torch.random.default_generator.manual_seed(0)
    model = nn.Linear(graph.num_features, graph.num_classes)
    with torch.no_grad():
        model.weight.fill_(0.1).mul_(torch.arange(graph.num_classes).unsqueeze(1))
        model.bias.zero_()
    session = session_of(model, graph)
    session.workers, session.config = workers, replace(session.config, clip_norm=clip_norm)
    own_logits, own_steps = session.source.logits, session.source._loss
    factor = 1.5 if workers.rank else 1.0
    session.source.logits = lambda: factor * own_logits()
    session.source._loss = lambda rows: factor * own_steps(rows)
    return session


def test_metrics_are_those_of_the_first_worker() -> None:
    first, second = in_threads(lambda workers: session_at(workers)._evaluate(1), 2)
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
