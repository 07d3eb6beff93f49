"""Bridges write datasets; the tests do not wait for the disk."""

from __future__ import annotations

import os

import pytest


@pytest.fixture(autouse=True)
def without_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests do not cut the power, and syncing is most of their time."""
    monkeypatch.setattr(os, "fsync", lambda handle: None)
