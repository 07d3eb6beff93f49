"""Chunk parcels: how chunks travel to a device, with the cuts of the passes over them.

A cut is made on the host at a chunk's first load, and is kept in pinned memory, side by side. Chunks that lie in pinned memory
themselves are the same at every load, so their parcels are kept too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from torch import Tensor

from sagann.kernels.dialects import Dialect
from sagann.kernels.edge.pass_edges import Edges
from sagann.kernels.packed import Layout
from sagann.plan.hops import is_by_destination
from sagann.plan.steps import Block
from sagann.runtime.device.parcels import Parcel, tensors_of
from sagann.runtime.device.pinned import PinnedPool
from sagann.runtime.device.streams import Streams


class ChunkParcel(NamedTuple):
    """A chunk's edges on the host, their cut, and the parcel of both."""

    edges: Edges
    cut: Any
    "None where the dialect has no cuts."
    at: str
    "The end at which passes over the edges are cut."
    parcel: Parcel

    def landed(self, dialect: Any, views: Callable[[Tensor], Tensor]) -> Edges:
        """The edges on the device with their cut; ``views`` gives the copies of the parcel's tensors, in their order."""
        edges = self.edges.mapped(views)
        if self.cut is not None:
            dialect.set_cut(edges, self.at, self.cut.mapped(views))
        return edges


class ChunkParcels:
    """Parcels of chunks by block; ``pool`` has the pinned memory of the cuts."""

    def __init__(self, dialect: Dialect, streams: Streams, pool: PinnedPool) -> None:
        self.dialect: Any = dialect
        "Divides passes into items, if it is a device's."
        self._streams = streams
        self._pool = pool
        self._cuts: dict[Block, tuple[Any, Tensor]] = {}
        "Cut of each chunk at each end, and the pinned memory that it lies in."
        self._kept: dict[Block, ChunkParcel] = {}

    def of(self, block: Block, load: Callable[[], Edges], *, lasting: bool) -> ChunkParcel:
        """The parcel of a chunk that ``load`` gives. If it is ``lasting``, the edges are the same at every load."""
        # Another thread may call forget() meanwhile.
        known = self._kept.get(block) if lasting else None
        if known is None:
            known = self._made(block, load())
            if lasting:
                self._kept[block] = known
        return known

    def _made(self, block: Block, edges: Edges) -> ChunkParcel:
        at = "dst" if is_by_destination(block.name) else "src"
        cut = self._cut(block._replace(name=at), edges, at)
        of_cut = [] if cut is None else tensors_of(cut)
        return ChunkParcel(edges, cut, at, Parcel([*tensors_of(edges), *of_cut]))

    def _cut(self, block: Block, edges: Edges, at: str) -> Any:
        """The cut of edges at one end. It depends on the offsets alone, so forms with ids or picked rows share it."""
        if not hasattr(self.dialect, "set_cut"):
            return None
        known = self._cuts.get(block)
        if known is None:
            known = self._cuts[block] = self._packed(self.dialect.cut_of(edges, at))
        return known[0]

    def _packed(self, cut: Any) -> tuple[Any, Tensor]:
        """The same cut with its tensors side by side in pinned memory, and this memory."""
        tensors = {str(number): tensor for number, tensor in enumerate(tensors_of(cut))}
        layout = Layout(tensors)
        memory = self._pool.take(layout.num_bytes)
        views = layout.views(memory)
        copies = iter([view.copy_(tensors[name]) for name, view in views.items()])
        return cut.mapped(lambda _: next(copies)), memory

    def forget(self) -> None:
        """Forget all parcels and cuts."""
        self._kept.clear()
        if self._cuts:
            # Copies of the cuts may be under way.
            self._streams.finish(self._streams.mark("load"))
        while self._cuts:
            _, (_, memory) = self._cuts.popitem()
            self._pool.give(memory)
