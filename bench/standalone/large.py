"""What contestants inside a hard limit of memory have in common: lines of JSON, and epochs.

Epochs are printed as they end, a line of JSON each, so that what a killed process had done is known.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import torch


def specification() -> dict:
    """What this process is to do: the last argument, in JSON."""
    asked = json.loads(sys.argv[-1])
    torch.set_num_threads(asked["threads"])
    return asked


def train(training: Any, epochs: int) -> None:
    """Run epochs of a :class:`Training`, and say what became of each."""
    say(loaded=True)
    for _ in range(epochs):
        started = time.monotonic()
        loss = training.run()
        say(loss=loss, epoch_s=time.monotonic() - started)


def say(**values: object) -> None:
    print(json.dumps(values), flush=True)
