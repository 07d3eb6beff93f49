from __future__ import annotations

import pytest
from torch import nn

from sagann.errors import InputError
from sagann.train import TrainConfig
from sagann.train.policies import (
    build_optimizer,
    build_scheduler,
    decay_all,
    decay_first_layer,
    decay_matrices,
    try_policies,
)
from tests.train.runs import TwoLayers


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
        build_optimizer(TrainConfig(), [])


def test_weight_decay_of_zero_overrules_the_default_of_adamw():
    optimizer = build_optimizer(TrainConfig(optimizer="AdamW"), decay_all(nn.Linear(2, 2), 0.0))
    assert optimizer.param_groups[0]["weight_decay"] == 0


def scheduler_of(config, *, maximise=True):
    optimizer = build_optimizer(config, decay_all(nn.Linear(2, 2), 0.0))
    return build_scheduler(config, optimizer, maximise=maximise)


def test_a_schedule_shorter_than_training_is_refused_before_it_starts():
    options = {"max_lr": 0.1, "total_steps": 9}
    with pytest.raises(InputError, match="the schedule ends before training: 9 steps, 10 epochs"):
        scheduler_of(TrainConfig(epochs=10, scheduler="OneCycleLR", scheduler_options=options))


@pytest.mark.parametrize(
    ("name", "scheduler", "options"),
    [
        ("LBFGS", None, {}),
        ("SparseAdam", "StepLR", {"step_size": 3}),
        ("Rprop", "CosineAnnealingLR", {"T_max": 5}),
        ("SGD", "OneCycleLR", {"max_lr": 0.1, "total_steps": 20, "cycle_momentum": False}),
        ("Adafactor", "ReduceLROnPlateau", {"patience": 1}),
        ("Adam", "LinearLR", {"start_factor": 1.0, "end_factor": 0.0}),
    ],
)
def test_what_torch_takes_passes_the_trial(name, scheduler, options):
    try_policies(TrainConfig(epochs=20, optimizer=name, scheduler=scheduler, scheduler_options=options))


@pytest.mark.parametrize(
    ("scheduler", "options", "message"),
    [
        ("StepLR", {"step_size": 0}, "torch refuses the scheduler: StepLR: integer modulo by zero"),
        ("ExponentialLR", {"gamma": -1}, r"-0.01 after 1 steps, expected 0 to 3.4e\+38"),
        ("StepLR", {"step_size": 90, "gamma": -1}, "-0.01 after 90 steps"),
        ("ExponentialLR", {"gamma": 1e300}, r"1e\+298 after 1 steps"),
    ],
)
def test_a_schedule_that_would_fail_later_fails_at_once(scheduler, options, message):
    config = TrainConfig(epochs=100, optimizer="SGD", scheduler=scheduler, scheduler_options=options)
    with pytest.raises(InputError, match=message):
        try_policies(config)
