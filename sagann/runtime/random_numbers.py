"""Random numbers that can be drawn again."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

_SEEDING = threading.RLock()
"Held while the process's generators are of a seed: another thread's draws would be of it, and this one's not."
NUM_SEEDS = 2**31
"Seeds are below it."


def drawn_seed() -> int:
    """A seed, drawn from the process's random numbers."""
    with _SEEDING:
        return int(torch.randint(NUM_SEEDS, ()))


@contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Random numbers of a seed inside the ``with`` block; afterwards those that would have come without it.

    Other threads' blocks wait. What they draw outside of one has no seed, and may be of this one's.
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
    """PyTorch's generators that computing on a device draws from: that of the CPU, and the device's own.

    ``torch.manual_seed`` seeds every device there is, and takes long where there is none.
    """
    generators = [torch.default_generator]
    if device.type == "cuda":
        index = torch.cuda.current_device() if device.index is None else device.index
        generators.append(torch.cuda.default_generators[index])
    return generators
