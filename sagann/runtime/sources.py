"""Sources: where each block of a plan is loaded from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from sagann.plan.steps import UNLIMITED, Block, Plan
from sagann.runtime.chunks import Chunks
from sagann.runtime.epoch import Epoch
from sagann.runtime.host import Host, copied


class Sources:
    """Reads blocks: edges from the chunks, features and the result's gradient from the caller, others from the host.

    Args:
        plan: what is loaded.
        output: name of the model's result.
        chunks: of each hop.
        host: has what was stored.
        epoch: has what is the caller's.
    """

    def __init__(self, plan: Plan, output: str, *, chunks: Sequence[Chunks], host: Host, epoch: Epoch) -> None:
        self.plan = plan
        self.output = output
        self.chunks = chunks
        self.host = host
        self.epoch = epoch

    def load(self, block: Block) -> Any:
        """A block's content, in memory of its own where memory is counted."""
        if block.kind == "edges":
            return self.chunks[block.number].load(block)
        if block.kind == "value" and block.name == "x":
            return self._rows_of(self.epoch.x, block.interval)
        if block.kind == "grad" and block.name == self.output and self.epoch.upstream is not None:
            return self._rows_of(self.epoch.upstream, block.interval)
        payload = self.host.get(block)
        return payload.get("", payload)

    def _rows_of(self, tensor: Tensor, interval: int) -> Tensor:
        rows = tensor[self.plan.vertices(interval)].detach()
        return copied(rows) if self.plan.budget_bytes < UNLIMITED else rows
