"""Random numbers that can be drawn again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

NUM_SEEDS = 2**31
"Seeds are below it."


@contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Random numbers of a seed inside the ``with`` block; afterwards those that would have come without it."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed % NUM_SEEDS)
        yield
