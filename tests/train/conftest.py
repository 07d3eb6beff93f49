"""Fixtures that the tests of training share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sagann.runtime.in_memory.engine import CompiledEngine
from sagann.saga.engine import NaiveEngine, using_engine
from sagann.train import saver
from tests.plain import kernels as kernels, no_kernels_are_generated as no_kernels_are_generated


@pytest.fixture(scope="module")
def naive() -> Iterator[None]:
    """Layers run as plain PyTorch, without being traced and compiled: for tests of what is around them."""
    with using_engine(NaiveEngine()):
        yield


@pytest.fixture
def compiled() -> Iterator[None]:
    """Layers are compiled, in a module whose other tests are ``naive``."""
    with using_engine(CompiledEngine()):
        yield


@pytest.fixture
def every_batch_saved(monkeypatch: pytest.MonkeyPatch) -> None:
    """Checkpoints are written as if batches took long."""
    monkeypatch.setattr(saver, "_MOST_UNSAVED_S", 0.0)
    monkeypatch.setattr(saver, "_LEAST_SPACING", 0)
