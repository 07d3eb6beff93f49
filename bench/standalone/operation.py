"""One gather as an operation, forward and backward, over rows that require a gradient."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

SLOPE = 0.2
"Of its LeakyReLU."
SAMPLED_ROWS = 100
"Rows that stand for the result where contestants are compared."


def num_heads(num_features: int) -> int:
    """Heads of the softmax gather: 4, or as many of them as divide the row."""
    return math.gcd(num_features, 4)


def attention(num_features: int) -> tuple[Tensor, Tensor]:
    """Fixed attention vectors of source and destination, each [heads, num_features / heads]."""
    source = torch.linspace(-1, 1, num_features).view(num_heads(num_features), -1)
    return source, source.flip(1) / 2


class Operation:
    """Runs ``forward(x)`` and its backward from a fixed gradient.

    Args:
        forward: [num_vertices, F] -> [num_vertices, F].
        x: the rows, which are also the gradient that comes back.
    """

    def __init__(self, forward: Callable[[Tensor], Tensor], x: Tensor) -> None:
        self.forward, self.grad, self.x = forward, x, x.clone().requires_grad_()

    def run(self) -> float:
        """Forward and backward; gives a number that depends on both."""
        self.x.grad = None
        out = self.forward(self.x)
        out.backward(self.grad)
        rows = slice(SAMPLED_ROWS)
        return float(out.detach()[rows].square().sum() + self.x.grad[rows].square().sum())

    def result(self) -> dict[str, np.ndarray]:
        """The values and the gradient."""
        self.run()
        return {"values": self.forward(self.x).detach().numpy(), "gradient": self.x.grad.numpy()}
