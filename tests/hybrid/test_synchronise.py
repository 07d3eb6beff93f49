"""One loss of all trainers: its gradient is that of the whole mini-batch."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from sagann.errors import TrainerError
from sagann.hybrid.synchronise import synchronised
from sagann.hybrid.trainer import Found, propagate
from tests.hybrid.replicas import Replica, shares_of


def found_of(*parts: int) -> tuple[dict[str, Found], list[torch.nn.Parameter]]:
    model, loss_of = Replica()()
    model.double()
    parameters = list(model.parameters())
    found = {}
    for number, share in enumerate(shares_of(*parts)):
        batch = share.batch.mapped(lambda array: array.double() if array.dtype == torch.float32 else array)
        found[f"trainer{number}"] = propagate(loss_of, parameters, replace(share, batch=batch))
    return found, parameters


@pytest.mark.parametrize("parts", [(4, 16), (7, 4, 9)])
def test_shares_of_any_size_give_the_whole_gradient(parts: tuple[int, ...]) -> None:
    whole, parameters = found_of(20)
    expected = synchronised(whole, parameters, "it")
    expected.backward()
    gradients = [parameter.grad for parameter in parameters]
    found, parameters = found_of(*parts)
    loss = synchronised(found, parameters, "it")
    loss.backward()
    assert loss.item() == pytest.approx(expected.item(), rel=1e-12)
    for parameter, gradient in zip(parameters, gradients, strict=True):
        torch.testing.assert_close(parameter.grad, gradient, rtol=1e-11, atol=1e-13)


def test_a_loss_of_none_of_the_parameters_has_no_gradient() -> None:
    found = {"host": Found(loss=torch.tensor(2.0), gradients=(None,), seconds=0.0)}
    loss = synchronised(found, [torch.zeros(3, requires_grad=True)], "it")
    assert not loss.requires_grad


def test_a_parameter_without_gradient_keeps_none() -> None:
    used, unused = torch.zeros(2, requires_grad=True), torch.zeros(3, requires_grad=True)
    found = {"host": Found(loss=torch.tensor(2.0), gradients=(torch.ones(2), None), seconds=0.0)}
    (3 * synchronised(found, [used, unused], "it")).backward()
    assert torch.equal(used.grad, torch.full((2,), 3.0))
    assert unused.grad is None


@pytest.mark.parametrize("loss", [float("nan"), 1.0])
def test_numbers_that_are_not_finite_name_their_trainer(loss: float) -> None:
    parameter = torch.zeros(2, requires_grad=True)
    good = Found(loss=torch.tensor(1.0), gradients=(torch.ones(2),), seconds=0.0)
    bad = Found(loss=torch.tensor(loss), gradients=(torch.full((2,), float("inf")),), seconds=0.0)
    with pytest.raises(TrainerError, match=r"trainer 'accelerator0' gave numbers.*epoch 2, batch 7"):
        synchronised({"host": good, "accelerator0": bad}, [parameter], "epoch 2, batch 7")
    # If all have diverged, so has the run.
    assert not torch.isfinite(synchronised({"host": bad, "accelerator0": bad}, [parameter], "it")) or loss == 1.0
