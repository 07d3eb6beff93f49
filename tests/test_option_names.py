"""Options of other names are refused with the nearest name."""

from __future__ import annotations

import copy
import inspect
import pickle
from dataclasses import replace
from typing import Any

import pytest

from sagann.errors import InputError
from sagann.nn import ModelConfig
from sagann.storage import ImportOptions
from sagann.train import TrainConfig


@pytest.mark.parametrize(
    ("kind", "given", "said"),
    [
        (TrainConfig, {"learning_rat": 0.1, "epochs": 3}, "TrainConfig has no such option: 'learning_rat'"),
        (
            ModelConfig,
            {"hiden": 3},
            "ModelConfig has no such option: 'hiden' (in ModelConfig). Did you mean 'hidden'?",
        ),
        (ImportOptions, {"symmetrize": True}, "Did you mean 'symmetrise'?"),
        (TrainConfig, {"learning_rate": 0.1}, "Did you mean 'lr'?"),
        (TrainConfig, {"momentum": 0.9}, "Did you mean 'optimizer_options'?"),
        (TrainConfig, {"hidden": 64}, "ModelConfig has it."),
        (ModelConfig, {"lr": 0.1}, "TrainConfig has it."),
        (ModelConfig, {"hidden_channels": 64}, "Did you mean 'hidden'?"),
    ],
)
def test_unknown_options_are_refused_with_the_nearest_one(kind: Any, given: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError) as caught:
        kind(**given)
    assert said in str(caught.value)


def test_options_without_a_name_are_refused() -> None:
    with pytest.raises(InputError, match=r"TrainConfig takes options by name alone: 100 without .*epochs=100"):
        TrainConfig(100)  # type: ignore[misc]


def test_options_are_copied_changed_and_shown_as_others() -> None:
    config = TrainConfig(epochs=3)
    assert replace(config, lr=0.1).lr == 0.1
    assert pickle.loads(pickle.dumps(config)) == copy.copy(config) == config
    assert "epochs" in inspect.signature(TrainConfig).parameters
    with pytest.raises(InputError, match="Did you mean 'epochs'"):
        replace(config, epoch=3)  # type: ignore[call-arg]
