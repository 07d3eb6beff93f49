"""Calls of PyTorch that stay whole in a trace, and calls that a program would leave out."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from sagann.compiler.trace import TraceError, trace_layer
from sagann.nn import GGNN
from tests.compiler.graphs import targets, traced
from tests.compiler.layers import Layer


def test_dropout_and_linear_maps_stay_whole_and_cells_are_taken_apart() -> None:
    module = traced(Layer(lambda m, e: F.dropout(e.src, 0.5), lambda m, v, a: F.linear(a, m.w)))
    assert targets(module, "edge") == ["dropout"]
    assert targets(module, "vertex") == ["gather", "linear"]
    cell = trace_layer(GGNN(4, 1), torch.randn(9, 4), torch.zeros(5, dtype=torch.int64))
    found = [str(node.target) for node in cell.graph.nodes]
    assert [sum(name in each for each in found) for name in ("sagann.linear", "sigmoid", "tanh")] == [2, 2, 1]


def test_dropout_that_does_nothing_leaves_no_node() -> None:
    module = traced(Layer(lambda m, e: F.dropout(F.dropout(e.src, 0.0), 0.5, training=False)))
    assert targets(module, "edge") == []


def no_gradient(m: Layer, e: object) -> torch.Tensor:
    with torch.no_grad():
        return 2 * e.src


def half(m: Layer, e: object) -> torch.Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        return F.linear(e.src, m.w)


def inference(m: Layer, e: object) -> torch.Tensor:
    src = e.src
    with torch.inference_mode():
        return 2 * src


def packed(m: Layer, e: object) -> torch.Tensor:
    with torch.autograd.graph.saved_tensors_hooks(lambda x: x.bfloat16(), lambda x: x.float()):
        return torch.tanh(e.src)


def reversed_gradient(m: Layer, e: object) -> torch.Tensor:
    out = 2 * e.src
    if out.requires_grad:
        out.register_hook(torch.neg)
    return out


def overwritten(m: Layer, e: object) -> torch.Tensor:
    out = 2 * e.src
    out.data = e.dst
    return out


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (no_gradient, "switches gradients"),
        (half, r"switches autocast, .*test_whole_operators.py:"),
        (inference, r"switches autocast, inference mode"),
        (overwritten, "sets the data of a tensor"),
        (packed, r"hooks of saved tensors on"),
        (reversed_gradient, r"has it changed by a hook \(test_whole_operators.py:"),
        (lambda m, e: e.src * (2 if m.w.requires_grad else 1), "asks whether a tensor gets a gradient"),
        (
            lambda m, e: torch.from_numpy(e.src.detach().numpy()),
            r"out of PyTorch by Tensor.numpy \(test_whole_operators.py:",
        ),
        (lambda m, e: torch.tensor(e.src.tolist()), "out of PyTorch by Tensor.tolist"),
        (lambda m, e: e.src * float(np.asarray(m.a.detach())), "out of PyTorch by Tensor.__array__"),
    ],
)
def test_what_a_program_would_leave_out_is_refused(function: object, reason: str) -> None:
    with pytest.raises(TraceError, match=reason):
        trace_layer(Layer(function), torch.randn(9, 4), torch.rand(5))
