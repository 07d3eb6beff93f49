"""One gather as an operation, forward and backward, over rows that require a gradient."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

HEADS = 4
"Heads of the softmax gather."
SLOPE = 0.2
"Of its LeakyReLU."
SAMPLED_ROWS = 100
"Rows that stand for the result where contestants are compared."


def attention(num_features: int) -> tuple[Tensor, Tensor]:
    """Fixed attention vectors of source and destination, each [HEADS, num_features / HEADS]."""
    source = torch.linspace(-1, 1, num_features).view(HEADS, -1)
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
