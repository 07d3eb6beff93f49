"""Defaults that lower packages take from higher ones, which they may not import.

A default is a name, "module:attribute". The lower package imports the object when it first needs it.
"""

from __future__ import annotations

import importlib
from typing import Any

DEFAULTS: dict[str, str] = {}
"""Names by purpose. ``"engine"``: the class of the engine that runs layers unless another engine is set. ``"progress"``: a function
without arguments that gives the reporter of a Trainer's progress, or None where nobody watches.
``"model names"`` and ``"training names"``: functions that check the names in a ModelConfig and a TrainConfig that only registries know."""


def default(purpose: str) -> Any:
    """Import the default object for a purpose."""
    module, name = DEFAULTS[purpose].split(":")
    return getattr(importlib.import_module(module), name)
