"""A model whose forward comes from a test."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from sagann.compiler import CompilerOptions
from sagann.compiler.capture import capture
from sagann.compiler.model_program import ModelProgram
from sagann.graph import Topology
from sagann.nn import SAGE
from sagann.saga import SagaLayer
from tests.graphs import random_topology


class Model(nn.Module):
    """Two layers, and a function of a test that says how they are used."""

    def __init__(self, forward: Callable[..., Tensor]) -> None:
        super().__init__()
        self.first, self.second, self.plain = SAGE(4, 6), SAGE(6, 3), SagaLayer()
        self.table = nn.Embedding(30, 6)
        self.norm, self.batch_norm = nn.LayerNorm(6), nn.BatchNorm1d(6)
        self.function = forward

    def forward(self, hops: Sequence[Topology], x: Tensor) -> Tensor:
        return self.function(self, hops, x)


def captured(forward: Callable[..., Any], options: CompilerOptions | None = None) -> ModelProgram:
    topology = random_topology(30, 90)
    return capture(Model(forward), [topology, topology], torch.randn(30, 4), options=options)


def plain(m: Any, hops: Any, x: Tensor) -> Tensor:
    return m.second(hops[1], torch.relu(m.norm(m.first(hops[0], x))))
