"""Epochs of the drivers: what is compared between one process and several."""

from __future__ import annotations

from torch import Tensor, nn

from sagann.train.epoch_source import TrainStep, WholeGraph

Numbers = dict[str, Tensor]
EPOCHS = 2


def trained(model: nn.Module, source: WholeGraph) -> tuple[Numbers, TrainStep]:
    """Losses, gradients and logits of EPOCHS epochs, with steps of gradient descent between them; and the last step."""
    found: Numbers = {}
    for epoch in range(EPOCHS):
        model.train()
        model.zero_grad()
        (step,) = source.steps(epoch + 1)
        loss = step.loss()
        loss.backward()
        step.complete_gradients()
        found[f"loss {epoch}"] = loss.detach()
        for name, parameter in model.named_parameters():
            if parameter.grad is not None:
                found[f"{name} {epoch}"] = parameter.grad.clone()
                parameter.data -= 0.01 * parameter.grad
        found |= {f"{name} {epoch}": buffer.to(loss.dtype) for name, buffer in model.named_buffers()}
        found[f"logits {epoch}"] = source.logits()
    return found, step
