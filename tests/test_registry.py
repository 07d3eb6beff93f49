"""Defaults that lower packages take from higher ones."""

from __future__ import annotations

import sagann
from sagann.registry import DEFAULTS, default


def test_every_default_can_be_imported() -> None:
    assert sagann.__version__
    assert set(DEFAULTS) == {"engine", "progress", "model names", "training names"}
    assert all(callable(default(purpose)) for purpose in DEFAULTS)
