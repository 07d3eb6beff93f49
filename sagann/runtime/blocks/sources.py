"""Sources: where each block of a plan is loaded from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

import torch
from torch import Tensor

from sagann.compiler.model_program import ModelProgram
from sagann.kernels.feature_rows import FeatureRows
from sagann.kernels.memory import empty
from sagann.plan.steps import UNLIMITED, Block, Plan
from sagann.runtime.blocks.chunks import Chunks
from sagann.runtime.blocks.host import Host, MemoryHost, copy_alone_into, copy_into
from sagann.runtime.blocks.picking import pick_rows, read_rows
from sagann.runtime.blocks.spill import DiskHost
from sagann.runtime.streaming.epoch import Epoch
from sagann.storage.mapped import MappedRows


class Sources:
    """Reads blocks: edges from the chunks, features and the result's gradient from the caller, others from hosts.

    Features that are mapped from a file are read from it by position.

    Args:
        program: the captured model.
        plan: what is loaded.
        chunks: by numbers of hops.
        host: has what was stored in this epoch.
        constants: has what is the same in every epoch.
        epoch: has what is the caller's.
        is_in_place: of a block, whether it is read where it lies.
        copies: whether rows of the caller's tensors are copied otherwise.
    """

    def __init__(
        self,
        program: ModelProgram,
        plan: Plan,
        *,
        chunks: Mapping[int, Chunks],
        host: Host,
        constants: Host,
        epoch: Epoch,
        is_in_place: Callable[[Block], bool],
        copies: bool = True,
    ) -> None:
        self.plan = plan
        self._is_in_place = is_in_place
        self._copies = copies and plan.budget_bytes < UNLIMITED
        self.chunks = chunks
        self.host = host
        self.constants = constants
        self.epoch = epoch
        self._copy_into = copy_into if host.is_memory else copy_alone_into
        self._output = program.output
        self._kept = {gather.result for gather in program.gathers if gather.constant}

    def load(self, block: Block) -> Any:
        """A block's content, in memory of its own where that is counted, and the block is not read in place."""
        if self._is_in_place(block):
            return self._view(block)
        if block.kind == "edges":
            return self.chunks[block.hop].load(block)
        if block.needed_by is not None:
            return self._picked(block, self.chunks[block.needed_by.hop].needed_by(block.needed_by))
        if self._is_x(block):
            return self._rows_of(self.epoch.x, block.interval, self.epoch.mapped)
        if self._is_upstream(block):
            assert self.epoch.upstream is not None
            return self._rows_of(self.epoch.upstream, block.interval)
        payload = self._host_of(block).get(block)
        return payload.get("", payload)

    def _view(self, block: Block) -> Any:
        """A block's content, where it lies."""
        if block.kind == "edges":
            return self.chunks[block.hop].view(block)
        if self._is_x(block):
            vertices = self.plan.vertices(block.interval)
            if self.epoch.x.layout == torch.sparse_csr:
                return FeatureRows.of_interval(self.epoch.x, vertices)
            return self.epoch.x[vertices].detach()
        payload = cast("MemoryHost", self.constants).view(block)
        return payload.get("", payload)

    def is_at_hand(self, block: Block) -> bool:
        """Whether a block lies in a file that can be read without waiting for a disk, as far as the system tells."""
        if block.needed_by is not None or self._is_upstream(block):
            return False
        if block.kind == "edges":
            return self.chunks[block.hop].is_at_hand(block)
        if self._is_x(block):
            mapped = self.epoch.mapped
            return mapped is not None and mapped.is_at_hand(self.plan.vertices(block.interval))
        host = self._host_of(block)
        return isinstance(host, DiskHost) and host.is_at_hand(block)

    def known_as(self, block: Block) -> Block:
        """A chunk's block, by a number that is the same in every program and never of other edges."""
        return self.chunks[block.hop].known_as(block)

    def _is_x(self, block: Block) -> bool:
        return block.kind == "value" and block.name == "x"

    def _is_upstream(self, block: Block) -> bool:
        return block.kind == "grad" and block.name == self._output and self.epoch.upstream is not None

    def _picked(self, block: Block, rows: Tensor) -> Any:
        if self._is_x(block):
            return self._rows_of_x(self.plan.vertices(block.interval), rows)
        payload = self._host_of(block).pick(block.whole, rows)
        return payload.get("", payload)

    def _host_of(self, block: Block) -> Host:
        is_kept = block.kind == "value" and block.name in self._kept
        return self.constants if is_kept else self.host

    def _rows_of_x(self, vertices: slice, rows: Tensor) -> Tensor:
        x, mapped = self.epoch.x[vertices].detach(), self.epoch.mapped
        if mapped is None:
            return pick_rows(x, rows)
        into = empty((len(rows), *x.shape[1:]), x.dtype)
        read_rows(mapped.fill, vertices.start * x[:1].nbytes, rows, into)
        return into

    def _rows_of(self, tensor: Tensor, interval: int, mapped: MappedRows | None = None) -> Tensor:
        vertices = self.plan.vertices(interval)
        rows = tensor[vertices].detach()
        if mapped is not None:
            return mapped.read(vertices, empty(rows.shape, rows.dtype))
        return self._copy_into(empty(rows.shape, rows.dtype), rows) if self._copies else rows
