"""Defaults that lower packages take from higher ones, which they may not import.

A default is a name, "module:attribute". The lower package imports the object when it first needs it.
"""

from __future__ import annotations

DEFAULTS: dict[str, str] = {}
"""Names by purpose. ``"engine"``: the class of the engine that runs layers unless another engine is set."""
