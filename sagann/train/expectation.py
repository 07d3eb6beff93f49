"""Expectation: what a run expects of a checkpoint, taken from the run itself, before anything of the checkpoint is applied.

A right checksum says that a file is as it was written, not that its content belongs to the run. PyTorch casts tensors of
other types without a word and keeps the state of parameters that do not exist. So names, types, shapes and ranges are
compared with those of the model, the optimizer, the scheduler, the generators and the history. The first entry that does
not fit is a ValueError that names it.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler

from sagann.ranges import Range
from sagann.storage.json_fields import is_finite
from sagann.train.policies import REFUSALS


def require_keys(found: Any, expected: Mapping[Any, Any], name: str) -> None:
    """Require a mapping with the same keys."""
    _require_mapping(found, name)
    for key in [*expected, *found]:
        if (key in found) != (key in expected):
            raise ValueError(f"{name}.{key} is {'missing' if key in expected else 'unknown to the run'}")


def require_weights(found: Any, expected: Mapping[str, Any], name: str) -> None:
    """Require the state_dict of a module: the same names, and tensors of the same types and shapes.

    A module's extra state may be anything.
    """
    require_keys(found, expected, name)
    for key, value in expected.items():
        if isinstance(value, Tensor) or isinstance(found[key], Tensor):
            _require_form(found[key], value, f"{name}.{key}", may_vary=True)


def require_optimizer(found: Any, optimizer: torch.optim.Optimizer, *, is_scheduled: bool, name: str) -> None:
    """Require the state of an optimizer: its groups, and for each parameter the state that a step makes.

    Numbers of a group may differ where there is a scheduler. Of an optimizer of the user's own, whose steps may do anything,
    only the parameters are compared.
    """
    expected = optimizer.state_dict()
    is_own = getattr(torch.optim, type(optimizer).__name__, None) is not type(optimizer)
    require_keys(found, expected, name)
    _require_list(found["param_groups"], expected["param_groups"], f"{name}.param_groups")
    for at, group in enumerate(expected["param_groups"]):
        of_group, of_run = f"{name}.param_groups.{at}", found["param_groups"][at]
        if is_own:
            _require_mapping(of_run, of_group)
            _require_form(of_run.get("params"), group["params"], f"{of_group}.params", may_vary=False)
        else:
            require_keys(of_run, group, of_group)
            for key, value in group.items():
                may_vary = is_scheduled and key != "params"
                _require_form(of_run[key], value, f"{of_group}.{key}", may_vary=may_vary)
    _require_mapping(found["state"], f"{name}.state")
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    stepped = None if is_own else _state_after_a_step(optimizer)
    for index, state in found["state"].items():
        of_state = f"{name}.state.{index}"
        if index not in Range(0, len(parameters) - 1):
            raise ValueError(f"{of_state} belongs to no parameter, there are {len(parameters)}")
        _require_mapping(state, of_state)
        if stepped is None:
            _require_types(state, parameters[index].dtype, of_state, is_own=is_own)
        else:
            _require_form(state, stepped.get(index, {}), of_state, may_vary=True)
            _require_step(state, of_state)


def require_scheduler(found: Any, scheduler: LRScheduler | None, *, is_own: bool, epoch: int, name: str) -> None:
    """Require the state of a scheduler after ``epoch``; of a scheduler of the user's own, a mapping."""
    if scheduler is None:
        if found is not None:
            raise ValueError(f"{name} is a {type(found).__name__}, but the run has no scheduler")
        return
    _require_mapping(found, name)
    if not is_own:
        _require_form(found, scheduler.state_dict(), name, may_vary=True)
        if found["last_epoch"] not in Range(0, epoch):
            raise ValueError(f"{name}.last_epoch is {found['last_epoch']!r:.80}, expected {Range(0, epoch)}")
        # Loading a state computes some of its numbers anew.
        twin = copy.copy(scheduler)
        twin.load_state_dict(copy.deepcopy(found))
        _require_form(found, twin.state_dict(), name, may_vary=False)


def _state_after_a_step(optimizer: torch.optim.Optimizer) -> Mapping[int, Any] | None:
    """The state of each parameter after a step of a copy of the optimizer; None where no copy takes a step.

    The first copy has parameters without memory. Some optimizers read numbers from the parameters: then the copy has zeros.
    """
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    held = [value for state in optimizer.state.values() for value in state.values() if isinstance(value, Tensor)]
    for device in ("meta", "cpu"):
        # The copy takes these in place of the tensors with the ids.
        places: dict[int, Any] = {id(value): torch.zeros_like(value, device=device) for value in held}
        for parameter in parameters:
            places[id(parameter)] = nn.Parameter(torch.zeros_like(parameter, device=device))
            places[id(parameter)].grad = torch.zeros_like(parameter, device=device)
        try:
            twin = copy.deepcopy(optimizer, places)
            twin.step(lambda: 0.0)
        except (*REFUSALS, NotImplementedError):
            continue
        state: Mapping[int, Any] = twin.state_dict()["state"]
        return state
    return None


def _require_form(found: Any, expected: Any, name: str, *, may_vary: bool) -> None:
    """Require a value of the same form: keys, lengths, types and shapes; where it may not vary, also the same numbers."""
    if isinstance(expected, Tensor) or isinstance(found, Tensor):
        if _form_of(found) != _form_of(expected):
            raise ValueError(f"{name} is {_form_of(found)}, expected {_form_of(expected)}")
    elif isinstance(expected, Mapping):
        require_keys(found, expected, name)
        for key, value in expected.items():
            _require_form(found[key], value, f"{name}.{key}", may_vary=may_vary)
    elif isinstance(expected, list | tuple):
        _require_list(found, expected, name)
        for at, value in enumerate(expected):
            _require_form(found[at], value, f"{name}.{at}", may_vary=may_vary)
    elif may_vary and _is_number(expected) and (is_finite(found) or _is_same(found, expected)):
        return
    elif not _is_same(found, expected):
        kind = "a finite number" if may_vary and _is_number(expected) else f"{expected!r:.80}"
        raise ValueError(f"{name} is {found!r:.80}, expected {kind}")


def _require_types(state: Mapping[str, Any], dtype: torch.dtype, name: str, *, is_own: bool) -> None:
    """Require tensors of the type to which PyTorch would cast them: that of their parameter, apart from the number of steps."""
    for key, value in state.items():
        for item in value if isinstance(value, list | tuple) else [value]:
            if isinstance(item, Tensor) and item.dtype != dtype and dtype.is_floating_point and key != "step":
                raise ValueError(f"{name}.{key} is {_form_of(item)}, its parameter is {dtype}")
            if not (is_own or item is None or isinstance(item, Tensor) or is_finite(item)):
                raise ValueError(f"{name}.{key} is {item!r:.80}, expected a finite number or a tensor")


def _require_step(state: Mapping[str, Any], name: str) -> None:
    steps = state.get("step", 0)
    if not is_finite(float(steps)) or steps < 0:
        raise ValueError(f"{name}.step is {float(steps):g}, expected a finite number of at least 0")


def _require_mapping(found: Any, name: str) -> None:
    if not isinstance(found, Mapping):
        raise ValueError(f"{name} is {_form_of(found)}, expected a mapping")


def _require_list(found: Any, expected: Sequence[Any], name: str) -> None:
    if not isinstance(found, list | tuple) or len(found) != len(expected):
        raise ValueError(f"{name} is {_form_of(found)}, expected a list of {len(expected)}")


def _form_of(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"{value.dtype} {list(value.shape)}"
    return f"a list of {len(value)}" if isinstance(value, list | tuple) else f"a {type(value).__name__}"


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_same(found: Any, expected: Any) -> bool:
    """Whether values are equal. A number may be written in another type, a flag is no number, and NaN is NaN."""
    is_alike = type(found) is type(expected) or (_is_number(found) and _is_number(expected))
    return is_alike and (bool(found == expected) or (found != found and expected != expected))
