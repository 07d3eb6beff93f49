"""Traces: calls that stay whole, sizes that may differ, and what a trace cannot show."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx
from torch._subclasses.fake_tensor import FakeTensorMode

from sagann.compiler.row_check import OTHER_ROWS, check_sizes
from sagann.compiler.trace import ROWS, TraceError, distinct_names, fake_rows, make_graph, trace_layer
from sagann.nn import GGNN
from tests.compiler.layers import Layer, targets, traced


def remember(m: Layer, e: object) -> torch.Tensor:
    m.remembered = 2 * e.src
    return m.remembered


class Sign(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, x: torch.Tensor) -> torch.Tensor:
        return torch.sign(x)

    @staticmethod
    def backward(ctx: object, grad: torch.Tensor) -> torch.Tensor:
        return grad


FOREIGN = torch.ones(4, requires_grad=True)
SEEN: dict[str, list[torch.Tensor]] = {"rows": []}


def replace_buffer(m: Layer, e: object) -> torch.Tensor:
    m.register_buffer("count", torch.zeros(1))
    return e.src


def test_names_of_parameters_are_pythons_and_differ() -> None:
    names = ["W", "w", "linA.weight", "lin_a.weight", "maps.user->item.w", "maps.user_item.w", "a b", "\u03b2"]
    given = distinct_names("parameter", names)
    assert len(set(given)) == len(names)
    assert all(name.isidentifier() and name == name.lower() for name in given)


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
        (lambda m, e: Sign.apply(e.src), "autograd.Function a trace shows no backward"),
        (lambda m, e: torch.linalg.inv(m.w) @ e.src[..., None], "_linalg_check_errors.default gives no tensor"),
        (lambda m, e: e.src * m.a.item(), "cannot be traced"),
        (lambda m, e: e.src * FOREIGN, "no parameter of the layer"),
        (lambda m, e: (e.src, e.dst), "must return one row per edge"),
        (remember, "sets the attribute 'remembered'"),
        (lambda m, e: SEEN["rows"].append(e.src) or e.src, "changes 'SEEN', a list"),
        (replace_buffer, "sets 'count', a buffer"),
        (lambda m, e: {}["key"], "cannot be traced: KeyError"),
        (lambda m, e: m.v, "one row per edge"),
        (no_gradient, "switches gradients"),
        (half, r"switches autocast, .*test_trace.py:"),
        (inference, r"switches autocast, inference mode"),
        (overwritten, "sets the data of a tensor"),
        (packed, r"hooks of saved tensors on"),
        (reversed_gradient, r"has it changed by a hook \(test_trace.py:"),
        (lambda m, e: e.src * (2 if m.w.requires_grad else 1), "asks whether a tensor gets a gradient"),
        (lambda m, e: torch.from_numpy(e.src.detach().numpy()), r"out of PyTorch by Tensor.numpy \(test_trace.py:"),
        (lambda m, e: torch.tensor(e.src.tolist()), "out of PyTorch by Tensor.tolist"),
        (lambda m, e: e.src * float(np.asarray(m.a.detach())), "out of PyTorch by Tensor.__array__"),
    ],
)
def test_what_a_trace_does_not_show_and_a_program_would_leave_out_is_refused(function: object, reason: str) -> None:
    with pytest.raises(TraceError, match=reason):
        trace_layer(Layer(function), torch.randn(9, 4), torch.rand(5))


def traced_with(function: Callable[[Tensor], Tensor], num_rows: int) -> fx.GraphModule:
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    return make_graph(fake, function, fake_rows(fake, torch.empty(1, 4), num_rows))


def check(function: Callable[[Tensor], Tensor]) -> None:
    check_sizes(traced_with(function, ROWS), traced_with(function, OTHER_ROWS))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.view(2 * len(x), 2).sum(1),
        lambda x: torch.zeros(len(x), 3) + x[:, :3],
        lambda x: x * float("nan"),
        lambda x: x + torch.tensor([1.0, 2.0, 3.0, float("nan")]),
    ],
)
def test_sizes_and_constants_pass(function: Callable[[Tensor], Tensor]) -> None:
    check(function)


@pytest.mark.parametrize("function", [lambda x: x / (len(x) - 1), lambda x: x + torch.tensor(1.0 / len(x))])
def test_a_number_that_depends_on_the_number_of_rows_is_refused(function: Callable[[Tensor], Tensor]) -> None:
    with pytest.raises(TraceError, match=r"operator \S+ reads a number that depends on the number of vertices"):
        check(function)


def test_another_operator_is_refused() -> None:
    with pytest.raises(TraceError, match="something else when it is traced again"):
        check(lambda x: x.relu() if len(x) == ROWS else x.tanh())
