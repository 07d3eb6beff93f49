"""Hooks of modules, which a compiled or captured layer would not call."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def has_hooks(modules: Iterable[nn.Module]) -> bool:
    """Whether one of the modules has hooks, or hooks were registered for all modules."""
    of_all = any(getattr(torch.nn.modules.module, f"_global{hooks}") for hooks in _HOOKS)
    return of_all or any(getattr(module, hooks) for module in modules for hooks in _HOOKS)
