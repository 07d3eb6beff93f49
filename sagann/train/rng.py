"""Random number generators of a run: seeded, saved and restored. The caller's states come back untouched."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from sagann.kernels.seeds import generators_of


def capture_rng(device: torch.device) -> dict[str, Any]:
    """The states of the global generators of torch (CPU and ``device``), NumPy and Python, as checkpoints can hold them."""
    kind, words, *rest = np.random.get_state()
    state = {
        "torch": torch.get_rng_state(),
        "python": random.getstate(),
        "numpy": (kind, words.tolist(), *rest),
    }
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
    return state


def restore_rng(state: Mapping[str, Any], device: torch.device) -> None:
    """Set the generators to a result of :func:`capture_rng` for the same kind of device."""
    random.setstate(state["python"])
    np.random.set_state(state["numpy"])
    torch.set_rng_state(state["torch"])
    if device.type == "cuda":
        torch.cuda.set_rng_state(state["cuda"], device)


@contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Seed the global generators inside the block, except those of other devices. Their states come back after the block."""
    before = capture_rng(device)
    for generator in generators_of(device):
        generator.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed % 2**32)
    try:
        yield
    finally:
        restore_rng(before, device)
