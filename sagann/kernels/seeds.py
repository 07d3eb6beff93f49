"""Seeds: random numbers that can be drawn again.

A seed is a number, or lies in a device's memory, from where kernels read it: a recorded epoch is launched with other seeds each time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

import torch
from torch import Tensor

Seed: TypeAlias = int | Tensor
"A number from 0 to 2**31 - 1, or an int64 scalar on the device that computes."

_SEEDING = threading.RLock()
"Held while a :func:`seeded` block is open, so that no other thread draws seeds from the seeded generators."
NUM_SEEDS = 2**31
"Seeds are below this number, and at least 0."


_PLACES: list[Callable[[int], Seed]] = []
"What drawn seeds pass through, where an epoch is recorded: at most one. Threads of PyTorch draw seeds as well, where they compute again."


def drawn_seed() -> Seed:
    """Draw a seed from PyTorch's generator of the CPU."""
    with _SEEDING:
        seed = int(torch.randint(NUM_SEEDS, ()))
    return _PLACES[-1](seed) if _PLACES else seed


@contextmanager
def placing_seeds(place: Callable[[int], Seed]) -> Iterator[None]:
    """Inside the block, a layer that draws a seed gets what ``place`` makes of it."""
    _PLACES.append(place)
    try:
        yield
    finally:
        _PLACES.pop()


def device_seed(seed: Seed, device: torch.device) -> Tensor:
    """The seed in the memory of a device, int64, for a kernel to read. The host does not wait for the device."""
    return seed if isinstance(seed, Tensor) else torch.full((), seed, dtype=torch.int64, device=device)


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
