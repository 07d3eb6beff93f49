"""An accelerator in this process, in the place of :class:`~sagann.hybrid.process_trainer.ProcessTrainer`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from sagann.hybrid.served import Replica, put_together, taken_apart
from sagann.hybrid.trainer import Exchange, HostTrainer, Share, Weights


class MessageTrainer(HostTrainer):
    """A replica of the model, whose weights it copies, and which gets its shares as messages."""

    def __init__(self, name: str, replica: Replica, parameters: Sequence[Tensor], **options: Any) -> None:
        model, loss_of = replica()
        num_bytes = Exchange.layout(parameters).num_bytes
        self._copy, found = (torch.empty(num_bytes, dtype=torch.uint8) for _ in range(2))
        super().__init__(model, loss_of, self._copy, found)

    def send(self, share: Share) -> Share:
        text, arrays = taken_apart(share)
        return put_together(text, [array.clone() for array in arrays])

    def launch(self, sent: Share, weights: Weights) -> None:
        weights.arrival.seconds()
        self._copy.copy_(weights.memory)
        super().launch(sent, weights)
