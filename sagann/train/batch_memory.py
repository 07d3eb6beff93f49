"""Memory of mini-batches: the bytes of a batch, of a training step and of the threads, from a few batches that are sampled first.

The sizes depend on the graph, the model and the options of sampling alone. They are rounded up by a margin, because later batches may be
a little larger than the ones that were tried.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from sagann.runtime.loading import MiniBatch, MiniBatches
from sagann.train.predictor import Predictor
from sagann.train.resources import seeded

TRIED_BATCHES = 3
"Number of batches that are sampled to learn their size."
MARGIN = 1.125
"Factor on the size of the largest batch that was tried."
# Per source of a batch: its next use in the window of a cache.
_WINDOW_BYTES = 8
# Per source of a batch and thread: the table of local ids, and the positions of rows while they are read.
_THREAD_BYTES = 128


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchMemory:
    """Bytes that mini-batches take, apart from the graph, the hot tier and the weights."""

    batch_bytes: int
    "Bytes of a mini-batch: blocks with their out-edges, rows of features, ids, labels."
    step_bytes: int
    "Bytes that a training step takes besides its batch: what the backward pass reads again, and temporary rows."
    thread_bytes: int
    "Bytes of the tables of all threads that sample or load."
    window_bytes: int = 0
    "Bytes that each batch ahead takes besides: a further batch of the window, which is sampled and not loaded. 0 without a window."

    def needed_bytes(self, ahead: int) -> int:
        """Peak bytes of a training step while ``ahead`` mini-batches are made.

        Example:
            >>> BatchMemory(batch_bytes=100, step_bytes=50, thread_bytes=7).needed_bytes(2)
            357
        """
        # Without batches ahead, the step's batch is still there while the next one is made.
        beside = self.step_bytes if ahead else max(self.step_bytes, self.batch_bytes)
        return self.thread_bytes + beside + (ahead + 1) * self.batch_bytes + ahead * self.window_bytes


def measure_batches(predictor: Predictor, minibatches: MiniBatches, *, has_window: bool = False) -> BatchMemory:
    """Sample the first mini-batches of epoch 1, and run model and loss forward on the largest one.

    The model runs as in training, dropout included. Its buffers and modes and the random generators are as before afterwards.

    Args:
        predictor: has the model.
        minibatches: makes each batch when it is asked for (``ahead=0``), so that no more than two of them exist.
        has_window: as many batches as are made ahead will be sampled and announced ahead of these.
    """
    with minibatches.batches(1) as batches:
        largest = max(itertools.islice(batches, TRIED_BATCHES), key=_batch_bytes)
    num_sources = len(largest.src_ids)
    window_bytes = 0
    if has_window:
        window_bytes = int(MARGIN * (_batch_bytes(replace(largest, features=None)) + _WINDOW_BYTES * num_sources))
    return BatchMemory(
        batch_bytes=int(MARGIN * (_batch_bytes(largest) + _WINDOW_BYTES * num_sources)),
        step_bytes=int(MARGIN * _step_bytes(predictor, largest)),
        thread_bytes=2 * minibatches.threads * _THREAD_BYTES * num_sources,
        window_bytes=window_bytes,
    )


def _arrays_of(batch: MiniBatch) -> list[Tensor]:
    arrays: list[Tensor] = []

    def note(array: Tensor) -> Tensor:
        arrays.append(array)
        return array

    batch.mapped(note)
    return arrays


def _batch_bytes(batch: MiniBatch) -> int:
    return sum(array.nbytes for array in _arrays_of(batch))


def _step_bytes(predictor: Predictor, batch: MiniBatch) -> int:
    """Bytes that autograd keeps for the backward pass of the loss, and twice the largest tensor for gradients of rows."""
    model, device = predictor.model, predictor.device
    kept: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        # Sparse features are arrays of the batch.
        if tensor.layout == torch.strided:
            kept[_address(tensor)] = tensor.untyped_storage().nbytes()
        return tensor

    with (
        seeded(0, device),
        _training(model),
        saved_tensors_hooks(note, lambda tensor: tensor),
    ):
        # Without the result, memory of kept tensors could be given to others.
        loss = predictor.loss_of_batch(batch)
    note(loss)
    # Lazy parameters have memory only now.
    for array in (*_arrays_of(batch), *model.parameters(), *model.buffers()):
        kept.pop(_address(array), None)
    return sum(kept.values()) + 2 * max(kept.values(), default=0)


@contextmanager
def _training(model: nn.Module) -> Iterator[None]:
    """Inside the ``with`` block, the model is in training mode. Modes and buffers are put back."""
    modes = {module: module.training for module in model.modules()}
    buffers = [(buffer, buffer.clone()) for buffer in model.buffers()]
    model.train()
    try:
        yield
    finally:
        for module, mode in modes.items():
            module.training = mode
        with torch.no_grad():
            for buffer, before in buffers:
                buffer.copy_(before)


def _address(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
