"""The training epoch that every contestant runs, and the copying of the common first weights."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

LEARNING_RATE = 1e-3


class Training:
    """Forward, cross-entropy on the training vertices, backward, one step of Adam."""

    def __init__(
        self,
        forward: Callable[[], Tensor],
        model: nn.Module,
        labels: Tensor,
        train: Tensor,
        lr: float = LEARNING_RATE,
    ) -> None:
        self.forward, self.train, self.labels = forward, train, labels[train]
        self.optimizer = torch.optim.Adam(model.parameters(), lr=lr)

    def run(self) -> float:
        return float(self.step())

    def step(self) -> Tensor:
        self.optimizer.zero_grad()
        loss = self.loss()
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def loss(self) -> Tensor:
        return F.cross_entropy(self.forward()[self.train], self.labels)


class EvaluatedTraining(Training):
    """The loop of ``sagann train`` with its defaults: a step with dropout, then an evaluation without.

    Loss and accuracy of the training and validation vertices are measured in every epoch.
    """

    def __init__(
        self, forward: Callable[[], Tensor], model: nn.Module, labels: Tensor, train: Tensor, val: Tensor
    ) -> None:
        super().__init__(forward, model, labels, train)
        self.model, self.measured = model, [(train, labels[train]), (val, labels[val])]
        self.optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)

    def run(self) -> float:
        """One epoch. Gives no loss: contestants drop different values."""
        self.model.train()
        self.step()
        self.model.eval()
        with torch.no_grad():
            logits = self.forward()
            for rows, labels in self.measured:
                chosen = logits[rows]
                float(F.cross_entropy(chosen, labels))
                float((chosen.argmax(1) == labels).float().mean())
        return float("nan")


def training_of(
    specification: Mapping[str, Any], forward: Callable[[], Tensor], model: nn.Module, stored: Any
) -> Training:
    """The loop that a specification asks for, over the labels and ids of a stored graph."""
    if specification["defaults"]:
        return EvaluatedTraining(forward, model, stored.labels, stored.train, stored.val)
    return Training(forward, model, stored.labels, stored.train)


class Stack(nn.Module, ABC):
    """A peer's model: layers with an activation between them, or GG-NN's steps between two linear maps, with dropout before each.

    Parameters have sagann's names where the peer has none of its own.
    """

    def __init__(self, specification: dict, in_dim: int, classes: int) -> None:
        super().__init__()
        kind, hidden, count = (specification[name] for name in ("model", "hidden", "layers"))
        self.dropout = specification["dropout"]
        self.activation = {"gat": F.elu, "ggnn": nn.Identity()}.get(kind, F.relu)
        self.encoder = nn.Linear(in_dim, hidden) if kind == "ggnn" else None
        self.decoder = nn.Linear(hidden, classes) if kind == "ggnn" else None
        dims, heads = [in_dim, *[hidden] * (count - 1), classes], [specification["heads"]] * (count - 1) + [1]
        made = (self.layer(specification, a, b, h) for (a, b), h in zip(pairwise(dims), heads, strict=True))
        self.layers = nn.ModuleList(self.steps(hidden, count) if kind == "ggnn" else made)

    @abstractmethod
    def layer(self, specification: dict, in_dim: int, out_dim: int, heads: int) -> nn.Module:
        """A layer by sagann's name of the model."""

    @abstractmethod
    def steps(self, width: int, count: int) -> list[nn.Module]:
        """The steps of GG-NN."""

    def forward(self, x: Tensor, *graph: Any) -> Tensor:
        x = x if self.encoder is None else self.encoder(x)
        for number, layer in enumerate(self.layers):
            x = layer(dropped(self.activation(x) if number else x, self.dropout, self.training), *graph)
        return x if self.decoder is None else self.decoder(dropped(x, self.dropout, self.training))


def dropped(x: Tensor, p: float, training: bool) -> Tensor:
    """Dropout of dense or ``torch.sparse_csr`` rows: of the latter, of the non-zeros."""
    if p == 0.0 or not training:
        return x
    if x.layout != torch.sparse_csr:
        return F.dropout(x, p)
    return torch.sparse_csr_tensor(x.crow_indices(), x.col_indices(), F.dropout(x.values(), p), size=x.shape)


def read_weights(folder: Path, model: str) -> dict[str, Tensor]:
    """The first weights of a model, by sagann's names."""
    with np.load(folder / f"{model}.npz") as archive:
        return {name: torch.from_numpy(archive[name]) for name in archive.files}


def copy_weights(
    folder: str, kind: str, model: nn.Module, renamed: dict[str, str], transposed: Iterable[str] = ()
) -> None:
    """Copy the first weights of sagann's model of a kind into a peer's; every weight and every parameter must find its partner."""
    weights = read_weights(Path(folder), kind)
    parameters = dict(model.named_parameters())
    with torch.no_grad():
        for name, value in weights.items():
            prefix, inner = _split(name.replace("encoder.linear.", "encoder."))
            target = parameters.pop(prefix + renamed.get(inner, inner))
            target.copy_((value.mT if inner in set(transposed) else value).reshape(target.shape))
    if parameters:
        raise ValueError(f"Weights for {sorted(parameters)} are missing; sagann's are {sorted(weights)}.")


def _split(name: str) -> tuple[str, str]:
    """'layers.0.' and what follows, or nothing and the name."""
    if not name.startswith("layers."):
        return "", name
    _, layer, inner = name.split(".", 2)
    return f"layers.{layer}.", inner
