"""The training epoch that every contestant runs, and the copying of the common first weights."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

LEARNING_RATE = 1e-3


class Training:
    """Forward, cross-entropy on the training vertices, backward, one step of Adam.

    Args:
        forward: gives the logits [num_vertices, num_classes].
        parameters: what is learned.
        labels: int64 [num_vertices].
        train: int64 ids of the vertices to train on.
    """

    def __init__(
        self, forward: Callable[[], Tensor], parameters: Iterable[nn.Parameter], labels: Tensor, train: Tensor
    ) -> None:
        self.forward, self.train, self.labels = forward, train, labels[train]
        self.optimizer = torch.optim.Adam(parameters, lr=LEARNING_RATE)

    def run(self) -> float:
        """One epoch; gives the loss before its step."""
        self.optimizer.zero_grad()
        loss = self.loss()
        loss.backward()
        self.optimizer.step()
        return float(loss.detach())

    def loss(self) -> Tensor:
        """The mean cross-entropy of the training vertices."""
        return F.cross_entropy(self.forward()[self.train], self.labels)

    def result(self) -> dict[str, np.ndarray]:
        """The logits with the weights as they are now."""
        with torch.no_grad():
            return {"logits": self.forward().numpy()}


def read_weights(folder: Path, model: str) -> dict[str, Tensor]:
    """The first weights of a model, by sagann's names."""
    with np.load(folder / f"{model}.npz") as archive:
        return {name: torch.from_numpy(archive[name]) for name in archive.files}


def copy_weights(
    weights: dict[str, Tensor], model: nn.Module, renamed: dict[str, str], transposed: Iterable[str] = ()
) -> None:
    """Copy sagann's weights into a peer's model; every weight and every parameter must find its partner.

    Args:
        weights: by sagann's names, ``layers.0.linear.weight``.
        model: whose parameters have sagann's names, but for what ``renamed`` says.
        renamed: from sagann's name within a layer to the peer's, ``{"linear.weight": "lin.weight"}``.
        transposed: sagann's names within a layer whose matrices the peer keeps transposed.
    """
    parameters = dict(model.named_parameters())
    with torch.no_grad():
        for name, value in weights.items():
            prefix, inner = _split(name)
            target = parameters.pop(prefix + renamed.get(inner, inner))
            target.copy_((value.T if inner in set(transposed) else value).reshape(target.shape))
    if parameters:
        raise ValueError(f"Weights for {sorted(parameters)} are missing; sagann's are {sorted(weights)}.")


def _split(name: str) -> tuple[str, str]:
    """'layers.0.' and what follows, or nothing and the name."""
    if not name.startswith("layers."):
        return "", name
    _, layer, inner = name.split(".", 2)
    return f"layers.{layer}.", inner
