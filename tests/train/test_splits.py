from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from sagann.errors import InputError
from sagann.train import TrainConfig, Trainer
from tests.train.runs import community_graph, predictor_of, seeded_model


def test_a_graph_without_splits_is_one_split():
    graph = replace(community_graph(), splits={})
    assert set(predictor_of().evaluate(graph)) == {"all"}


def test_vertices_of_unknown_label_are_not_measured():
    graph = replace(community_graph(), splits={})
    wrong = predictor_of().predict(graph) != graph.labels
    known = replace(graph, labels=graph.labels.masked_fill(wrong, -1))
    assert predictor_of().evaluate(known)["all"]["accuracy"] == 1.0


def test_a_split_without_a_vertex_is_absent():
    graph = community_graph()
    nothing = torch.zeros(90, dtype=torch.bool)
    graph = replace(graph, splits={**graph.splits, "val": nothing})
    trainer = Trainer(seeded_model(), graph, TrainConfig(epochs=2, device="cpu"))
    assert (trainer.monitor, trainer.weights) == ("train/loss", "last")
    assert set(trainer.fit().metrics) == {"train", "test"}
    with pytest.raises(InputError, match="'val/loss', the graph has the splits train, test"):
        Trainer(seeded_model(), graph, TrainConfig(monitor="val/loss"))
