"""A model and its loss that another process can make, and shares for it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sagann.hybrid.synchronise import Synchroniser
from sagann.hybrid.trainer import LossOf, Share, Weights, differentiated
from sagann.nn import GNN, SAGE
from sagann.runtime.loading import MiniBatch, MiniBatches
from tests.train.runs import community_graph


def _raise() -> None:
    raise ArithmeticError("no such number")


DEEDS: dict[int, Callable[[], object]] = {1: _raise, 2: lambda: os._exit(3), 3: lambda: time.sleep(60)}
"What the loss does besides, by the number of seeds."


@dataclass(frozen=True, slots=True)
class Replica:
    """Two layers of SAGE under a seed. A batch of few seeds does what :data:`DEEDS` says."""

    dropout: float = 0.0
    starts: bool = True

    def __call__(self) -> tuple[nn.Module, LossOf]:
        if not self.starts:
            raise ValueError("there is no such model")
        torch.manual_seed(0)
        model = GNN([SAGE(8, 6), SAGE(6, 3)], dropout=self.dropout)

        def loss_of(batch: MiniBatch) -> Tensor:
            DEEDS.get(len(batch.seeds), lambda: None)()
            return F.cross_entropy(model(batch.blocks, batch.features), batch.labels)

        return model, loss_of


def shares_of(*parts: int, seed: int = 3) -> list[Share]:
    """Shares of one mini-batch of 20 seeds, with so many seeds each."""
    minibatches = MiniBatches(community_graph(), fanouts=(4, 3), batch_size=20)
    shares = []
    for ids in minibatches.items_of(0)[0].split(parts):
        batch = minibatches.load(minibatches.neighbor_sampler.sample(ids))
        shares.append(Share(batch=batch, weight=len(ids) / sum(parts), seed=seed, iteration="epoch 0, batch 0"))
    return shares


def published(parameters: Sequence[Tensor]) -> Weights:
    """Weights as they are, for a launch."""
    return Synchroniser(parameters).publish()


def expected_of(
    loss_of: LossOf, parameters: Sequence[Tensor], share: Share
) -> tuple[float, tuple[Tensor | None, ...]]:
    """A share's part of the loss, and its gradient."""
    loss, gradients = differentiated(loss_of, parameters, share)
    return loss.item(), gradients
