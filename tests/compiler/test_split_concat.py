"""Linear maps of concatenations are split."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from sagann.compiler.spec import verify
from sagann.compiler.split_concat import split_concat
from tests.compiler.graphs import targets, traced
from tests.compiler.layers import Layer, assert_compiles_right
from tests.graphs import odd_topologies


def test_a_linear_map_of_a_concatenation_is_split() -> None:
    module = traced(Layer(lambda m, e: torch.tanh(F.linear(torch.cat([e.src, e.dst], -1), m.wide, m.wide[:, 0]))))
    assert "linear" in targets(module, "edge")
    (note,) = split_concat(module)
    verify(module)
    assert note.kind == "split"
    assert targets(module, "edge") == ["add", "tanh"]
    assert targets(module, "src") == ["linear", "add"]
    assert targets(module, "dst") == ["linear"]


def test_what_is_the_same_in_every_row_joins_a_term_of_one_end() -> None:
    def edge(m: Layer, e: Any) -> torch.Tensor:
        ones = torch.ones_like(e.src[:, :1])
        return torch.tanh(F.linear(torch.cat([ones, e.dst, ones, e.src[:, :2]], -1), m.wide))

    module = traced(Layer(edge))
    (note,) = split_concat(module)
    verify(module)
    assert note.text.endswith("(constant, dst, src)")
    assert targets(module, "edge") == ["add", "tanh"]
    topology = odd_topologies()["skewed"]
    x = torch.randn(topology.num_src, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert_compiles_right(Layer(edge).double(), topology, x)


def test_a_concatenation_of_one_end_is_left_alone() -> None:
    assert split_concat(traced(Layer(lambda m, e: F.linear(torch.cat([e.src, e.src], -1), m.wide)))) == []
