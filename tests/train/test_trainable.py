"""What cannot be trained is refused before anything is prepared."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from sagann.errors import InputError
from sagann.nn import ModelConfig
from sagann.train.trainable import check_sampled
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
