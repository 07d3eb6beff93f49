"""What contestants inside a hard limit of memory have in common: lines of JSON, and epochs.

Each epoch prints a line of JSON when it ends, which a killed process leaves behind.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import torch


def specification() -> dict:
    """The specification of this process: the last argument, in JSON."""
    asked = json.loads(sys.argv[-1])
    torch.set_num_threads(asked["threads"])
    return asked


def seeds_of(asked: dict, num_vertices: int) -> torch.Tensor:
    """The training vertices: the first batches of a random order, which is the same for all contestants."""
    order = torch.randperm(num_vertices, generator=torch.Generator().manual_seed(0))
    return order[: asked["batches"] * asked["batch_size"]].sort().values


def train(training: Any, epochs: int) -> None:
    """Run epochs of a :class:`Training`, and print the loss and seconds of each."""
    say(loaded=True)
    for _ in range(epochs):
        started = time.monotonic()
        loss = training.run()
        say(loss=loss, epoch_s=time.monotonic() - started)


def say(**values: object) -> None:
    print(json.dumps(values), flush=True)
