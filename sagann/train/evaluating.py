"""Evaluation mode of a model, for several threads at once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from weakref import WeakKeyDictionary

import torch
from torch import nn

from sagann.saga.shared_lock import MODELS

_EVALUATIONS: WeakKeyDictionary[nn.Module, list[dict[nn.Module, bool]]] = WeakKeyDictionary()
"For each model, one entry per running evaluation: the modes of the model's modules before the first evaluation."


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Inside the ``with`` block, the model is in evaluation mode and no gradient is recorded.

    Where several threads evaluate the model, the last one to end restores the modes.
    """
    # Not while another thread traces the model.
    with MODELS.changing():
        running = _EVALUATIONS.setdefault(model, [])
        running.append(running[0] if running else {module: module.training for module in model.modules()})
        model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        with MODELS.changing():
            modes = running.pop()
            if not running:
                for module, mode in modes.items():
                    module.training = mode
