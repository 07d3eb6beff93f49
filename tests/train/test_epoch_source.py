"""A session trains whatever steps its epoch source gives."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sagann.train import Contract, TrainConfig
from sagann.train.best import BestTracker, resolve_monitor
from sagann.train.epoch_source import TrainStep
from sagann.train.losses import default_loss
from sagann.train.session import TrainSession
from tests.train.runs import community_graph


class Halves:
    """An epoch source of two steps: mini-batches of rows without a graph."""

    def __init__(self, model, graph):
        self.model, self.graph, self.num_batches = model, graph, 2
        self.timeline = self.traffic = self.work = None
        labelled = graph.splits["train"].nonzero().squeeze(1)
        self.batches = [labelled[:3], labelled[3:]]

    def steps(self, epoch, *, first=0):
        for rows in (self.batches if epoch % 2 else self.batches[::-1])[first:]:
            yield TrainStep(loss=lambda rows=rows: self._loss(rows), num_labelled=len(rows), num_edges=7)

    def _loss(self, rows):
        return F.cross_entropy(self.model(self.graph.features[rows]), self.graph.labels[rows])

    def logits(self):
        with torch.no_grad():
            return self.model(self.graph.features)


def session_of(model, graph):
    config = TrainConfig(epochs=4, device="cpu")
    return TrainSession(
        model=model,
        source=Halves(model, graph),
        answers=graph.vertices,
        task="classification",
        loss=default_loss("classification"),
        device=torch.device("cpu"),
        config=config,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        scheduler=None,
        tracker=BestTracker(
            resolve_monitor(config, Contract.of(graph), graph.splits), keep_weights=False, patience=None
        ),
    )


def test_every_step_is_one_of_the_optimizers_and_the_loss_is_of_all_labelled_vertices():
    graph = community_graph()
    torch.manual_seed(0)
    model = nn.Linear(graph.num_features, graph.num_classes)
    twin = nn.Linear(graph.num_features, graph.num_classes)
    twin.load_state_dict(model.state_dict())
    session, optimizer = session_of(model, graph), torch.optim.SGD(twin.parameters(), lr=0.1)
    reference = Halves(twin, graph)
    for epoch in range(1, 5):
        record = session.run_epoch()
        total, count = 0.0, 0
        for step in reference.steps(epoch):
            optimizer.zero_grad()
            loss = step.loss()
            loss.backward()
            optimizer.step()
            total, count = total + loss.item() * step.num_labelled, count + step.num_labelled
        assert record.loss == pytest.approx(total / count, rel=1e-12)
        assert torch.equal(model.weight, twin.weight)
    assert session.finished
