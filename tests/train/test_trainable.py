"""What cannot be trained is refused before anything is prepared."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from sagann.errors import InputError
from sagann.nn import ModelConfig
from sagann.train.trainable import check_sampled, check_trainable
from tests.train.graphs_of import rings_and_stars
from tests.train.runs import community_graph, trainer_of


def test_fanouts_must_be_those_of_the_models_hops() -> None:
    with pytest.raises(InputError) as caught:
        trainer_of(ModelConfig(layers=3), sample=(25, 10))
    assert str(caught.value) == (
        "fanouts and hops of the model differ in number: 2 fanouts, the model walks 3 hops (in TrainConfig.sample). "
        "Name 3 fanouts, as --sample 10,10,10."
    )


def test_a_graph_without_features_is_refused() -> None:
    with pytest.raises(InputError, match="mini-batches need features: vertices have none"):
        trainer_of(ModelConfig(), replace(community_graph(), features=None), sample=(25, 10))


def test_a_model_without_hops_has_no_fanouts() -> None:
    with pytest.raises(InputError, match="Train it on the whole graph; it reads no edge"):
        check_sampled(torch.nn.Linear(8, 3), community_graph(), (3,))


def test_labels_and_vertices_to_train_on_are_needed() -> None:
    check_trainable(community_graph())
    with pytest.raises(InputError, match="the graph has nothing to learn: neither labels nor targets"):
        check_trainable(replace(community_graph(), labels=None, num_classes=0))
    with pytest.raises(
        InputError,
        match=r"no vertex to train on: the split 'train' of vertices is missing .*sagann\.graph\.random_split",
    ):
        check_trainable(replace(community_graph(), splits={}))


def test_graphs_to_train_on_and_features_of_their_vertices_are_needed() -> None:
    check_trainable(rings_and_stars())
    with pytest.raises(InputError, match="no graph to train on: the split 'train' of graphs is missing"):
        check_trainable(replace(rings_and_stars(), graph_splits={}))
    with pytest.raises(InputError, match="batches of graphs need features"):
        check_trainable(replace(rings_and_stars(), features=None))
