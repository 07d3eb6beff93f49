"""Fixtures that the tests of training share."""

from __future__ import annotations

import pytest

from sagann.train import saver


@pytest.fixture
def every_batch_saved(monkeypatch: pytest.MonkeyPatch) -> None:
    """Checkpoints are written as if batches took long."""
    monkeypatch.setattr(saver, "_MOST_UNSAVED_S", 0.0)
    monkeypatch.setattr(saver, "_LEAST_SPACING", 0)
