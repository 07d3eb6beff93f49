"""What the contestants of a graph larger than memory have in common: the dataset as a user would load it, and epochs.

Features are mapped, which takes no memory of the process's own; the edges are in memory, as both libraries want them.
Epochs are printed as they end, a line of JSON each, so that what a killed process had done is known.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Dataset(NamedTuple):
    """A dataset folder of sagann's, opened as any .npy files."""

    indptr: Tensor
    "int64 [num_vertices + 1]: in-edges by destination."
    indices: Tensor
    "int32 [num_edges]: sources, mapped."
    features: Tensor
    "float32 [num_vertices, F], mapped."
    labels: Tensor
    "int64 [num_vertices]."
    train: Tensor
    "int64 ids of the vertices to train on."


def specification() -> dict:
    """What this process is to do: the last argument, in JSON."""
    asked = json.loads(sys.argv[-1])
    torch.set_num_threads(asked["threads"])
    return asked


def open_dataset(folder: str) -> Dataset:
    """Open a dataset folder."""

    def opened(name: str) -> Tensor:
        # Copy on write, as PyTorch knows no tensor that cannot be written to.
        return torch.from_numpy(np.load(Path(folder) / f"{name}.npy", mmap_mode="c"))

    train = opened("split_train").nonzero().squeeze(1)
    return Dataset(opened("indptr"), opened("indices"), opened("features"), opened("labels"), train)


def destinations(dataset: Dataset, dtype: torch.dtype) -> Tensor:
    """The destination of every edge."""
    return torch.repeat_interleave(torch.arange(len(dataset.labels), dtype=dtype), dataset.indptr.diff())


def weights_of(folder: str) -> list[tuple[Tensor, Tensor]]:
    """The first weight, [out, in], and bias of each layer."""
    with np.load(Path(folder) / "gcn.npz") as archive:
        return [
            tuple(torch.from_numpy(archive[f"layers.{layer}.linear.{part}"]) for part in ("weight", "bias"))
            for layer in range(2)
        ]


def train(forward: Callable[[], Tensor], parameters: Iterable[nn.Parameter], dataset: Dataset, asked: dict) -> None:
    """Run epochs: forward, cross-entropy of the training vertices, backward, a step of Adam."""
    say(loaded=True)
    optimizer = torch.optim.Adam(parameters, lr=asked["lr"])
    labels = dataset.labels[dataset.train]
    for _ in range(asked["epochs"]):
        started = time.monotonic()
        optimizer.zero_grad()
        loss = F.cross_entropy(forward()[dataset.train], labels)
        loss.backward()
        optimizer.step()
        say(loss=float(loss.detach()), epoch_s=time.monotonic() - started)


def say(**values: object) -> None:
    """A line of JSON."""
    print(json.dumps(values), flush=True)
