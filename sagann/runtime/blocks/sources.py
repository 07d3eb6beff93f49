"""Sources: where each block of a plan is loaded from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from sagann.graph.feature_store import FeatureStore, SparseRows, TensorRows, read_rows, read_slice
from sagann.graph.large_arrays import made_by
from sagann.kernels.feature_rows import FeatureRows
from sagann.kernels.memory import POOL
from sagann.kernels.packed import Region
from sagann.plan.epoch import Planned
from sagann.plan.steps import Beside, Block
from sagann.runtime.blocks.chunks import Chunks
from sagann.runtime.blocks.host import Host, Parts
from sagann.runtime.streaming.epoch import Epoch
from sagann.storage.mapped import MappedRows

Stayed = dict[Block, Any]
"Blocks that stay in memory from epoch to epoch, once they are loaded."


class Sources:
    """Reads blocks: edges from the chunks, features and the result's gradient from their stores, other blocks from hosts.

    The arguments are those of the executor. What lies in memory is given where it lies.
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
        stayed: Stayed,
    ) -> None:
        program, schedule, self.plan = planned
        self._halo = schedule.part.halo
        self._is_in_place = schedule.sizes.is_in_place
        self._has_engines = beside.has_engines
        self.chunks = chunks
        self.host = host
        self.constants = constants
        self.epoch = epoch
        self.stayed = stayed
        self._output = program.output

    def load(self, block: Block) -> Parts:
        """Read a block."""
        is_in_place = self._is_in_place(block)
        if block.kind == "edges":
            chunks = self.chunks[block.hop]
            return Parts.of(chunks.in_place(block)) if is_in_place else chunks.load(block)
        store = self._store_of(block)
        if block.needed_by is not None:
            ids = self.chunks[block.needed_by.hop].needed_by(block.needed_by)
            if store is None:
                return Parts([self._host_of(block).pick(block.outside, ids)])
            with made_by(POOL.empty):
                rows = read_rows(store, ids.long().add_(self.plan.vertices(block.interval).start)).detach()
            return self._given(store, rows)
        if store is None:
            return Parts([self._host_of(block).get(block.outside)])
        vertices = self.plan.vertices(block.interval)
        if isinstance(store, SparseRows) and (self._has_engines or is_in_place):
            return Parts.of(FeatureRows.of_interval(store.tensor, vertices))
        with made_by(POOL.empty):
            return self._given(store, read_slice(store, vertices.start, vertices.stop).detach())

    def _given(self, store: FeatureStore, rows: Tensor) -> Parts:
        """Rows of a store. The result's gradient lies on the device that computes, if it is one."""
        is_there = not self._has_engines or (store is self.epoch.upstream and len(self.epoch.replicas) == 1)
        return Parts.of(rows) if is_there else Parts([Region.of(rows.contiguous())])

    def is_at_hand(self, block: Block) -> bool:
        """Whether a block lies in a file that can be read without waiting for a disk, as far as the system tells."""
        if block.kind == "edges":
            return self.chunks[block.hop].is_at_hand(block)
        if block.needed_by is not None:
            return False
        if (store := self._store_of(block)) is not None:
            if isinstance(store, MappedRows):
                vertices = self.plan.vertices(block.interval)
                return store.is_at_hand(vertices.start, vertices.stop)
            return isinstance(store, TensorRows)
        return self._host_of(block).is_at_hand(block.outside)

    def lies_in_memory(self, block: Block) -> bool:
        """Whether a block is loaded from where it lies in memory: nothing is read, copied or picked."""
        if block.kind == "edges":
            return self.chunks[block.hop].lies_in_memory(block)
        if block.needed_by is not None:
            return False
        store = self._store_of(block)
        return self._host_of(block).lies_in_memory if store is None else isinstance(store, TensorRows)

    def _store_of(self, block: Block) -> FeatureStore | None:
        """The store of a block that the caller brings: of the features, or of the result's gradient. Other workers send the halo's."""
        if block.kind == "value" and block.name == "x" and block.interval not in self._halo:
            return self.epoch.x
        return self.epoch.upstream if block.kind == "grad" and block.name == self._output else None

    def _host_of(self, block: Block) -> Host:
        # The plan that computes constants may store and load them before they are kept.
        return self.constants if block.outside in self.plan.initial else self.host
