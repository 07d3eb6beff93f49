"""The sampled epoch that every contestant trains: mini-batches in a random order, a step of Adam for each."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

LEARNING_RATE = 1e-3


class Batch(NamedTuple):
    """A mini-batch in the contestant's own form."""

    forward: Callable[[], Tensor]
    "Gives the logits of the seeds."
    labels: Tensor
    num_edges: int
    "Edges that were sampled for it."
    num_rows: int = 0
    "Rows of features that it reads, where they are counted."


class SampledTraining:
    """Epochs of mini-batches."""

    def __init__(self, model: nn.Module, batches: Callable[[int], Iterable[Batch]]) -> None:
        self._batches = batches
        self._optimizer = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE)
        self._epoch = 0

    def run(self) -> float:
        """One epoch; gives the mean of its losses."""
        return self.epoch()["loss"]

    def epoch(self) -> dict:
        """One epoch; gives its seconds, those of the training steps among them, the mean loss, the sampled edges and the rows.

        On a device, a step ends on the host before the device has done it; the epoch waits for the device once, at its end.
        """
        losses: list[Tensor] = []
        num_edges, num_rows, step_s = 0, 0, 0.0
        start = time.perf_counter()
        for batch in self._batches(self._epoch):
            step_start = time.perf_counter()
            losses.append(self.step(batch))
            num_edges, num_rows = num_edges + batch.num_edges, num_rows + batch.num_rows
            step_s += time.perf_counter() - step_start
        # Reading the losses waits for the device.
        loss = float(np.mean(torch.stack(losses).tolist()))
        self._epoch += 1
        seconds = time.perf_counter() - start
        return {"seconds": seconds, "step_s": step_s, "loss": loss, "edges": num_edges, "rows": num_rows}

    def step(self, batch: Batch) -> Tensor:
        """One step of the optimizer; gives the loss before it."""
        self._optimizer.zero_grad()
        loss = F.cross_entropy(batch.forward(), batch.labels)
        loss.backward()
        self._optimizer.step()
        return loss.detach()


REQUESTS = {"epoch": lambda runner, _: runner.epoch()}
