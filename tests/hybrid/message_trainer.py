"""An accelerator in this process, in the place of :class:`~sagann.hybrid.process_trainer.ProcessTrainer`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from sagann.hybrid.served import Replica, put_together, taken_apart
from sagann.hybrid.trainer import Found, HostTrainer, Share
from sagann.kernels.seeds import seeded


class MessageTrainer(HostTrainer):
    """A replica of the model, whose weights it copies, and which gets its shares as messages."""

    def __init__(self, name: str, replica: Replica, parameters: Sequence[Tensor], **options: Any) -> None:
        self._trained = parameters
        model, loss_of = replica()
        super().__init__(loss_of, list(model.parameters()))

    def send(self, share: Share) -> Share:
        text, arrays = taken_apart(share)
        return put_together(text, [array.clone() for array in arrays])

    def launch(self, sent: Share) -> None:
        with torch.no_grad():
            for ours, theirs in zip(self._parameters, self._trained, strict=True):
                ours.copy_(theirs)
        super().launch(sent)

    def finish(self) -> Found:
        # As in a process of its own, but that this one's generator is put back.
        assert self._share is not None
        with seeded(self._share.seed, torch.device("cpu")):
            return super().finish()
