"""Sources: where each block of a plan is loaded from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from torch import Tensor

from sagann.graph.feature_store import FeatureStore, SparseRows, TensorRows, read_rows, read_slice
from sagann.graph.large_arrays import made_by
from sagann.kernels.feature_rows import FeatureRows
from sagann.kernels.memory import POOL, empty
from sagann.plan.beside import Beside
from sagann.plan.epoch import Planned
from sagann.plan.steps import UNLIMITED, Block
from sagann.runtime.blocks.chunks import Chunks
from sagann.runtime.blocks.host import Host, RamHost, copy_alone_into
from sagann.runtime.blocks.spill import DiskHost
from sagann.runtime.streaming.epoch import Epoch
from sagann.storage.mapped import MappedRows


class Sources:
    """Reads blocks: edges from the chunks, features and the result's gradient from their stores, other blocks from hosts.

    The arguments are those of the executor. Where a device has no engines that copy, rows of the caller's tensors are copied before they are read.
    """

    def __init__(
        self,
        planned: Planned,
        *,
        chunks: Mapping[int, Chunks],
        host: Host,
        constants: Host,
        epoch: Epoch,
        beside: Beside,
    ) -> None:
        program, schedule, self.plan = planned
        self._num_own = schedule.part.num_own
        self._is_in_place = schedule.sizes.is_in_place
        self._copies = not beside.has_engines and self.plan.budget_bytes < UNLIMITED
        self.chunks = chunks
        self.host = host
        self.constants = constants
        self.epoch = epoch
        # No step runs while blocks are copied within memory, so that all threads may copy.
        self._copy_into = copy_alone_into if beside.copies_beside else Tensor.copy_
        self._output = program.output

    def load(self, block: Block) -> Any:
        """A block's content: in memory of its own, unless the block is read in place or takes no room of the budget."""
        if self._is_in_place(block):
            return self._view(block)
        if block.kind == "edges":
            return self.chunks[block.hop].load(block)
        store = self._store_of(block)
        if block.needed_by is not None:
            ids = self.chunks[block.needed_by.hop].needed_by(block.needed_by)
            if store is None:
                return _unnamed(self._host_of(block).pick(block.whole, ids))
            with made_by(POOL.empty):
                return read_rows(store, ids.long().add_(self.plan.vertices(block.interval).start)).detach()
        return _unnamed(self._host_of(block).get(block)) if store is None else self._rows_of(store, block)

    def _view(self, block: Block) -> Any:
        """A block's content, where it lies."""
        if block.kind == "edges":
            return self.chunks[block.hop].view(block)
        store, vertices = self._store_of(block), self.plan.vertices(block.interval)
        if isinstance(store, SparseRows):
            return FeatureRows.of_interval(store.tensor, vertices)
        if store is not None:
            return read_slice(store, vertices.start, vertices.stop).detach()
        return _unnamed(cast("RamHost", self.constants).view(block))

    def is_at_hand(self, block: Block) -> bool:
        """Whether a block lies in a file that can be read without waiting for a disk, as far as the system tells."""
        if block.kind == "edges":
            return self.chunks[block.hop].is_at_hand(block)
        if block.needed_by is not None:
            return False
        if (store := self._store_of(block)) is not None:
            vertices = self.plan.vertices(block.interval)
            return isinstance(store, MappedRows) and store.is_at_hand(vertices.start, vertices.stop)
        host = self._host_of(block)
        return isinstance(host, DiskHost) and host.is_at_hand(block)

    def lies_pinned(self, block: Block) -> bool:
        """Whether a block beside a device is loaded from where it lies in pinned memory: nothing is read, copied or picked."""
        if block.kind == "edges":
            return self.chunks[block.hop].lies_pinned(block)
        if block.needed_by is not None or self._store_of(block) is not None:
            return False
        return not self._host_of(block).gives_copies

    def known_as(self, block: Block) -> Block:
        """A chunk's block, by a number that is the same in every program and never of other edges."""
        return self.chunks[block.hop].known_as(block)

    def _store_of(self, block: Block) -> FeatureStore | None:
        """The store of a block that the caller brings: of the features, or of the result's gradient. Other workers send the halo's."""
        if block.kind == "value" and block.name == "x" and block.interval < self._num_own:
            return self.epoch.x
        return self.epoch.upstream if block.kind == "grad" and block.name == self._output else None

    def _host_of(self, block: Block) -> Host:
        # The plan that computes constants may store and load them before they are kept.
        return self.constants if block.whole in self.plan.initial else self.host

    def _rows_of(self, store: FeatureStore, block: Block) -> Tensor:
        vertices = self.plan.vertices(block.interval)
        with made_by(POOL.empty):
            rows = read_slice(store, vertices.start, vertices.stop).detach()
        if self._copies and isinstance(store, TensorRows):
            return self._copy_into(empty(rows.shape, rows.dtype), rows)
        return rows


def _unnamed(payload: dict[str, Tensor]) -> Any:
    """The only tensor of a block that has no names; else the tensors by name."""
    return payload.get("", payload)
