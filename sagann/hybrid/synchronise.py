"""Synchroniser: the weights that are trained, on their way to trainers with copies, and gradients on their way back.

The weights lie where most seeds are: on the first CUDA device that trains, else on the processor. Each trainer's loss is the mean over its
seeds, times its part of all seeds. So the sum is the mean over the iteration's seeds, and its gradient that of one large batch. Gradients are
added in the order of the trainers, to that of the trainer which has the weights. The paper averages the gradients, which is the same only
where all shares are equal.

References:
    Lin and Prasanna, HyScale-GNN, IPDPS 2023, Sec. II-B and III (synchronous SGD).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from sagann.errors import TrainerError
from sagann.hybrid.trainer import Elapsed, Exchange, Found, Weights
from sagann.runtime.device.streams import Streams


class Synchroniser:
    """Publishes parameters, and adds gradients to theirs. They lie on the device of ``streams``, or without streams on the processor."""

    def __init__(self, parameters: Sequence[Tensor], streams: Streams | None = None) -> None:
        self._parameters, self._streams = tuple(parameters), streams
        self._num_bytes = Exchange.layout(self._parameters).num_bytes
        self.weights = self.pinned()
        "Memory of the host in which weights are published, as :class:`~sagann.hybrid.trainer.Exchange` lays them out."
        self._outgoing, self._incoming = (
            Exchange(self._parameters, self.weights if streams is None else streams.empty(self._num_bytes))
            for _ in range(2)
        )
        self._staging: dict[str, Tensor] = {}

    def pinned(self) -> Tensor:
        """Memory of the host for gradients, which the device copies by itself."""
        if self._streams is None:
            return torch.empty(self._num_bytes, dtype=torch.uint8)
        return self._streams.pinned(self._num_bytes)

    def publish(self) -> Weights:
        """Copy the parameters as they are now to the host's memory. Does not wait for a device."""
        with torch.no_grad():
            torch._foreach_copy_(self._outgoing.tensors, [each.detach() for each in self._parameters])
        if self._streams is None:
            return Weights(memory=self.weights)
        self._streams.copy(self.weights, self._outgoing.memory)
        mark = self._streams.mark("compute")
        return Weights(memory=self.weights, arrival=Elapsed(0.0, self._streams, (mark, mark)))

    def add(self, name: str, found: Found, loss: Tensor) -> Tensor:
        """Add the gradient that a trainer has found to those of the parameters, and its part to the loss. Does not wait for a device."""
        assert found.memory is not None
        there, gradients = self._received(name, found), found.gradients
        into, parts = list[Tensor](), list[Tensor]()
        with torch.no_grad():
            for parameter, part, known in zip(self._parameters, there.tensors, gradients, strict=True):
                if known is None or not parameter.requires_grad:
                    continue
                if parameter.grad is None:
                    parameter.grad = part.clone()
                else:
                    into.append(parameter.grad)
                    parts.append(part)
            if into:
                torch._foreach_add_(into, parts)
            return loss + there.numbers[0]

    def _received(self, name: str, found: Found) -> Exchange:
        """What a trainer has found, where the parameters lie."""
        memory, streams = found.memory, self._streams
        assert memory is not None
        if streams is None:
            return Exchange(self._parameters, memory)
        if found.elapsed.marks is not None:
            streams.wait("compute", found.elapsed.marks[1])
        elif not streams.is_pinned(memory):
            # That of a process. It is free again when the process has got the next weights.
            if name not in self._staging:
                self._staging[name] = self.pinned()
            memory = self._staging[name].copy_(memory)
        streams.copy(self._incoming.memory, memory)
        return self._incoming


def require_finite(numbers: Mapping[str, Sequence[float]], iteration: str) -> None:
    """Require that all trainers' numbers, by name, are finite, or none's: then the run has diverged, which the training step says.

    Raises:
        TrainerError: a trainer gave numbers that are not finite, and another one did not.
    """
    finite = {name: all(map(math.isfinite, each)) for name, each in numbers.items()}
    if any(finite.values()) and not all(finite.values()):
        name = next(name for name, is_finite in finite.items() if not is_finite)
        raise TrainerError(
            f"trainer '{name}' gave numbers that are not finite while propagating {iteration}: its loss is "
            f"{numbers[name][0]:.6g}, and the others' numbers are finite (in trainer '{name}')",
            hint="If one vertex has such a feature, correct the data; otherwise leave this trainer out of --devices.",
        )
