"""A tape gives the gradients of an ordinary graph, from tensors that were somewhere else meanwhile."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from sagann.kernels.dense import linear, relu_
from sagann.runtime.streaming.tape import Tape

ROWS, DIM = 40, 6
Stage = Callable[[Tensor, Tensor], Tensor]
STAGES: dict[str, Stage] = {
    "map": lambda x, w: linear(x, w),
    "map and relu": lambda x, w: linear(relu_(linear(x, w)), w),
    "views of what is given": lambda x, w: x[:, 1:3].reshape(-1, 1, 2) * w[0, 0] + x[:, :2].unsqueeze(1).exp(),
    "views of what is made": lambda x, w: (h := x @ w).view(ROWS, 2, -1)[:, 1].sigmoid() * h[:, :3].tanh(),
    "norm and softmax": lambda x, w: torch.softmax(F.layer_norm(x @ w, (DIM,)), 1) * x,
    "a spectrum and its conjugate": lambda x, w: ((f := torch.fft.rfft(x @ w)) * f.conj()).real,
    "a copy in another type": lambda x, w: (x.double() @ w.double()).exp().to(x.dtype),
}


@pytest.mark.parametrize("name", STAGES)
def test_gradients_are_those_of_pytorch(name: str) -> None:
    stage = STAGES[name]
    x, w = torch.randn(ROWS, DIM), torch.randn(DIM, DIM, requires_grad=True)
    leaf = x.clone().requires_grad_()
    expected = stage(leaf, w)
    upstream = torch.randn_like(expected)
    of_x, of_w = torch.autograd.grad(expected, [leaf, w], upstream)

    tape = Tape({"x": x}, [w])
    with tape.recording():
        entered = tape.enter(x)
        result = stage(entered, w)
    torch.testing.assert_close(result, expected)
    tape.leave({"x": entered, "w": w}, {"result": result})
    away = {each: value.clone() for each, value in tape.made.items()}
    # As it comes back: in order.
    copy = x.clone(memory_format=torch.contiguous_format)
    # Nothing of what was there is left: not what was made, nor what was given.
    for value in (*tape.made.values(), x):
        value.fill_(torch.nan)
    tape.forget()
    found = tape.gradients({"x": copy}, away, {"result": upstream})
    torch.testing.assert_close(found["x"], of_x)
    torch.testing.assert_close(found["w"], of_w)


def test_a_result_that_leads_nowhere_has_no_gradient() -> None:
    x, w = torch.randn(ROWS, DIM), torch.randn(DIM, DIM, requires_grad=True)
    tape = Tape({"x": x}, [w])
    with tape.recording():
        entered = tape.enter(x)
        results = {"constant": x * 2, "mapped": entered @ w, "unused": entered + 1}
    tape.leave({"x": entered, "w": w}, results)
    assert tape.leads_from("mapped")
    assert not tape.leads_from("constant")
    made = dict(tape.made)
    ones = {name: torch.ones_like(value) for name, value in results.items() if name != "unused"}
    found = tape.gradients({"x": x}, made, ones)
    torch.testing.assert_close(found["x"], torch.ones(ROWS, DIM) @ w.detach().T)
