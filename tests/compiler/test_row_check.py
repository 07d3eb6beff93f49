"""Stages that mix vertices are refused, by operator and line."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sagann.compiler.capture import capture
from sagann.errors import LayerError
from sagann.graph import Topology
from sagann.nn import SAGE
from tests.compiler.models import Model, captured
from tests.graphs import random_topology

MIXING: dict[str, Callable[[Tensor], Tensor]] = {
    "roll": lambda z: z.roll(1, 0),
    "flip": lambda z: z.flip(0),
    "sort": lambda z: z.sort(0).values,
}


@pytest.mark.parametrize("name", MIXING)
def test_rows_that_are_mixed_are_found_in_what_two_inputs_differ_in(name: str) -> None:
    with pytest.raises(LayerError, match=f"operator {name} mixes them"):
        captured(lambda m, h, x: MIXING[name](x - m.plain(h[0], x)))


class Embedded(nn.Module):
    """A layer over rows of a table, by ids that stand in the features."""

    def __init__(self, scale: int) -> None:
        super().__init__()
        self.table, self.layer, self.scale = nn.Embedding(3, 4), SAGE(4, 2), scale

    def forward(self, hops: Sequence[Topology], x: Tensor) -> Tensor:
        return self.layer(hops[0], self.table(self.scale * x[:, 0].long()))


def test_rows_of_a_table_are_looked_up() -> None:
    program = capture(Embedded(1), [random_topology(30, 90)], torch.ones(30, 1))
    assert program.forms[program.output].shape == (2,)


def test_ids_that_few_rows_can_be_are_refused_by_name() -> None:
    with pytest.raises(LayerError, match=r"on made-up ones: IndexError: .* \(in Embedded.forward\). Clamp"):
        capture(Embedded(100), [random_topology(30, 90)], torch.zeros(30, 1))


PICKED: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "as they are": lambda m, x: x.index_select(1, m.order)[:, :4],
    "what is made of them": lambda m, x: x.index_select(1, 3 - m.order)[:, :4],
    "divisors": lambda m, x: x + x.long() // (1 + m.order[:4]),
}


@pytest.mark.parametrize("name", PICKED)
def test_integers_of_the_models_own_are_not_made_up(name: str) -> None:
    model = Model(lambda m, h, x: m.first(h[0], PICKED[name](m, x)))
    model.register_buffer("order", torch.arange(40) % 4)
    program = capture(model, [random_topology(30, 90)], torch.randn(30, 4))
    assert program.forms[program.output].shape == (6,)


def test_rows_that_are_mixed_are_found_beside_ids() -> None:
    with pytest.raises(LayerError, match="roll"):
        captured(lambda m, h, x: m.first(h[0], x.long().to(x.dtype).roll(1, 0)))
