from __future__ import annotations

import json
import re
from typing import Any

import numpy as np
import pytest
from torch import nn

from sagann.errors import InputError
from sagann.train import TrainConfig
from sagann.train.policies import Policies, decay_all, decay_first_layer, decay_matrices
from tests.train.runs import TwoLayers, seeded_model, trainer_of


@pytest.mark.parametrize(
    ("mistake", "hint", "mended"),
    [
        ({"loss": "bce_with_logits"}, "'bce'", {"loss": "bce"}),
        ({"task": "node_classification"}, "'classification'", {"task": "classification"}),
        ({"scheduler": "cosine"}, "'CosineAnnealingLR'", {"scheduler": "CosineAnnealingLR"}),
        ({"monitor": "test/f1"}, "'val/micro_f1'", {"monitor": "val/micro_f1"}),
        ({"memory": 300}, "'2GiB'", {"memory": "2GiB"}),
        ({"hot": "300", "sample": (5,)}, "2GiB", {"hot": "2GiB", "sample": (5,)}),
        ({"sample": 10}, "(25, 10)", {"sample": (25, 10)}),
        ({"deterministic": "true"}, "True or False", {"deterministic": True}),
        ({"task": "classification", "batch_size": 512}, "Leave batch_size out", {"task": "classification"}),
        ({"devices": "host,accelerator"}, "or set sample", {"devices": "host,accelerator", "sample": (25, 10)}),
        ({"score": "degree", "sample": (5,)}, "or set hot", {"score": "degree", "sample": (5,), "hot": "10%"}),
        (
            {"scheduler_options": {"gamma": 1}},
            "set scheduler (--scheduler StepLR)",
            {"scheduler": "StepLR", "scheduler_options": {"gamma": 1}},
        ),
        ({"task": "regression", "negatives": 2}, "learn links", {"task": "link-prediction", "negatives": 2}),
    ],
)
def test_what_the_hint_of_a_mistake_says_is_accepted(
    mistake: dict[str, Any], hint: str, mended: dict[str, Any]
) -> None:
    with pytest.raises(InputError, match=r"\(in TrainConfig\.") as caught:
        TrainConfig(**mistake)
    assert hint in caught.value.hint
    TrainConfig(**mended)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"epochs": 0}, "epochs is 0, expected an integer from 1 to 2^63 - 1"),
        ({"lr": 0}, "lr is 0, expected a finite number above 0"),
        ({"weight_decay": -1e-3}, "weight_decay is -0.001, expected a finite number of at least 0"),
        ({"seed": 10**10_000}, "seed is a value with an integer of thousands of digits, expected"),
        ({"optimizer_options": {"eps": 10**10_000}}, "'eps' is a value with an integer of thousands of digits"),
        ({"spill": ""}, "spill is '', expected a folder"),
        (
            {"hot": "110%", "sample": (5,)},
            "part out of range: '110%', expected 0.0 to 1.0, or 0% to 100% (in Train",
        ),
        ({"sample_on": "device"}, "sample_on is 'device', expected cpu when sample is not set"),
        (
            {"sample_on": "device", "sample": (5,), "device": "cpu"},
            "sample_on is 'device', expected cpu when device is 'cpu'",
        ),
        (
            {"sample_on": "device", "sample": (5,), "devices": "host,accelerator"},
            "sample_on is 'device', expected cpu when devices is set",
        ),
        (
            {"cache": "static", "memory": "1GiB"},
            "cache is 'static', expected look-ahead when sample is not",
        ),
        (
            {"cache": ["lru"], "sample": (5,), "memory": "1GiB"},
            "cache is ['lru'], expected one of static, look-ahead",
        ),
        (
            {"class_weights": "even"},
            "class_weights is 'even', expected 'balanced', or a list of numbers, one for each class, each a finite number of at least 0",
        ),
        ({"class_weights": [1, "a"]}, "class_weights is [1, 'a']"),
        ({"memory": "much"}, "size is not understood: 'much' (in TrainConfig.memory)"),
        ({"profile": True}, "profile is True, expected False when neither memory nor devices is set"),
        ({"sample": (5,), "devices": "host"}, "no list of trainers"),
        ({"sharing": "static"}, "sharing is 'static', expected joint when devices is not set"),
        ({"mapping": "model"}, "mapping is 'model', expected cores when devices is not set"),
        ({"link_rate": 1e9}, "link_rate is 1000000000.0, expected None when devices is not set"),
        ({"sample": (5,), "devices": "host,cuda", "device": "cuda"}, "'auto' or 'cpu' when devices is set"),
        ({"sample": (5,), "devices": "cuda:1", "profile": True}, "or one of several trainers, is profiled"),
        ({"weights": "worst"}, "weights is 'worst', expected 'best' or 'last'"),
        (
            {"monitor": "test/accuracy"},
            "monitor is 'test/accuracy', expected 'train' or 'val' (never 'test')",
        ),
        ({"optimizer_options": {"beta": 1}}, "Adam has no such option: 'beta'"),
        (
            {"optimizer_options": {"lr": 1}},
            "optimizer_options sets an argument that has an option of its own: 'lr'",
        ),
        ({"optimizer_options": {"betas": {1, 2}}}, "optimizer_options cannot be saved as JSON: 'betas'"),
        (
            {"optimizer": "LBFGS", "weight_decay": 0.1},
            "weight_decay is 0.1, expected 0 for the optimizer 'LBFGS'",
        ),
    ],
)
def test_bad_options_are_refused_by_name(options, message):
    with pytest.raises(InputError, match=re.escape(message)) as caught:
        TrainConfig(**options)
    assert caught.value.hint.endswith(".") or "Known" in caught.value.hint


def test_a_loss_has_one_name():
    assert TrainConfig(loss="l1") == TrainConfig(loss="mae")
    config = TrainConfig(class_weights=[1, 2.5], task="classification")
    assert config.class_weights == (1.0, 2.5)
    assert TrainConfig(**json.loads(json.dumps(config.to_json()))) == config


def test_sizes_of_a_hot_tier_that_are_understood():
    for hot in ("10%", "2GiB", "auto", "0%"):
        config = TrainConfig(sample=(5,), hot=hot, score="degree", cache="static")
        assert config.has_tiers
        assert TrainConfig(**json.loads(json.dumps(config.to_json()))) == config
    assert not TrainConfig(sample=(5,)).has_tiers
    assert not TrainConfig(memory="1GiB").has_tiers


def test_fanouts_may_be_integers_of_numpy() -> None:
    config = TrainConfig(sample=(np.int64(5), np.int32(-1)))
    assert config.sample == (5, -1)
    assert [type(fanout) for fanout in config.sample] == [int, int]
    with pytest.raises(InputError):
        TrainConfig(sample=(np.float64(5),))


def test_a_spill_folder_is_the_same_from_anywhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert TrainConfig(spill="fast").spill == str(tmp_path / "fast")


def decayed(model, groups):
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return {names[id(p)] for group in groups if group["weight_decay"] for p in group["params"]}


def test_first_layer_is_the_first_saga_layer():
    model = TwoLayers()
    groups = decay_first_layer(model, 0.5)
    assert decayed(model, groups) == {"first.own.weight", "first.own.bias", "first.neighbours.weight"}
    assert sum(len(group["params"]) for group in groups) == len(list(model.parameters()))


def test_first_layer_of_a_plain_module_is_its_first_child_with_parameters():
    model = nn.Sequential(nn.ReLU(), nn.Linear(2, 2), nn.Linear(2, 2))
    assert decayed(model, decay_first_layer(model, 0.5)) == {"1.weight", "1.bias"}


def test_matrices_leave_biases_and_norms_alone():
    model = TwoLayers()
    assert decayed(model, decay_matrices(model, 0.5)) == {
        name for name, parameter in model.named_parameters() if parameter.ndim == 2
    }


def test_frozen_parameters_are_left_out():
    model = nn.Linear(2, 2)
    model.bias.requires_grad_(False)
    (group,) = decay_all(model, 0.1)
    assert group["params"] == [model.weight]


def test_a_model_without_parameters_is_refused():
    with pytest.raises(InputError, match="the model has nothing to train: 0 parameters"):
        Policies(TrainConfig()).optimizer_of([])


def test_weight_decay_of_zero_overrules_the_default_of_adamw():
    optimizer = Policies(TrainConfig(optimizer="AdamW")).optimizer_of(decay_all(nn.Linear(2, 2), 0.0))
    assert optimizer.param_groups[0]["weight_decay"] == 0


@pytest.mark.parametrize(
    ("scheduler", "options", "message"),
    [
        ("StepLR", {"step_size": 0}, "torch refuses the scheduler: StepLR: integer modulo by zero"),
        ("ExponentialLR", {"gamma": -1}, r"leaves the range of learning rates: -0.01, expected 0 to 3.4e\+38"),
        ("StepLR", {"step_size": 90, "gamma": -1}, "leaves the range of learning rates: -0.01"),
        ("ExponentialLR", {"gamma": 1e300}, r"learning rates: 1e\+298"),
        ("OneCycleLR", {"max_lr": 0.1, "total_steps": 1100}, "the schedule ends before training: 1100 steps, 2000"),
    ],
)
def test_a_schedule_that_no_run_can_follow_is_refused_before_training(scheduler, options, message):
    config = {"epochs": 2000, "optimizer": "SGD", "scheduler": scheduler, "scheduler_options": options}
    with pytest.raises(InputError, match=message):
        trainer_of(seeded_model(), **config)


@pytest.mark.parametrize(
    ("name", "scheduler", "options"),
    [
        ("LBFGS", "StepLR", {"step_size": 3}),
        ("SparseAdam", "StepLR", {"step_size": 3}),
        ("SGD", "OneCycleLR", {"max_lr": 0.1, "total_steps": 20, "cycle_momentum": False}),
        ("Adafactor", "ReduceLROnPlateau", {"patience": 1}),
        ("Adam", "LinearLR", {"start_factor": 1.0, "end_factor": 0.0}),
    ],
)
def test_what_torch_takes_passes_the_trial(name, scheduler, options):
    Policies(TrainConfig(epochs=20, optimizer=name, scheduler=scheduler, scheduler_options=options)).try_out()
