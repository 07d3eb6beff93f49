"""Seeds: random numbers that can be drawn again."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

_SEEDING = threading.RLock()
"Held while a :func:`seeded` block is open, so that no other thread draws seeds from the seeded generators."
NUM_SEEDS = 2**31
"Seeds are below this number, and at least 0."


def drawn_seed() -> int:
    """Draw a seed from PyTorch's generator of the CPU."""
    with _SEEDING:
        return int(torch.randint(NUM_SEEDS, ()))


@contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Seed the generators inside the ``with`` block, and restore their states afterwards.

    Blocks of several threads run one after the other. A thread that draws from PyTorch's generators outside of any block may
    draw from generators that another thread has seeded.
    """
    generators = generators_of(device)
    with _SEEDING:
        states = [generator.get_state() for generator in generators]
        try:
            for generator in generators:
                generator.manual_seed(seed % NUM_SEEDS)
            yield
        finally:
            for generator, state in zip(generators, states, strict=True):
                generator.set_state(state)


def generators_of(device: torch.device) -> list[torch.Generator]:
    """PyTorch's generators that operators on ``device`` draw from: the generator of the CPU, and the device's own.

    ``torch.manual_seed`` seeds all devices, and is slow on machines without one.
    """
    generators = [torch.default_generator]
    if device.type == "cuda":
        index = torch.cuda.current_device() if device.index is None else device.index
        generators.append(torch.cuda.default_generators[index])
    return generators
