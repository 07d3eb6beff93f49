from __future__ import annotations

import pytest
import torch

from sagann.compiler.trace import TraceError, distinct_names, trace_layer
from tests.compiler.layers import Layer


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
    ],
)
def test_what_a_trace_cannot_show_is_said(function: object, reason: str) -> None:
    with pytest.raises(TraceError, match=reason):
        trace_layer(Layer(function), torch.randn(9, 4), torch.rand(5))


def test_names_of_parameters_are_pythons_and_differ() -> None:
    names = ["W", "w", "linA.weight", "lin_a.weight", "maps.user->item.w", "maps.user_item.w", "a b", "\u03b2"]
    given = distinct_names("parameter", names)
    assert len(set(given)) == len(names)
    assert all(name.isidentifier() and name == name.lower() for name in given)
