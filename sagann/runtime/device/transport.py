"""Device transport: copies between host and device, in lanes of their own.

The host queues copies and does not wait; marks order the lanes. All memory of blocks is allocated in the order of the lane
that computes, so memory is reused in the plan's order:

- A load gets its memory, and a mark of computing, when the plan comes to the load. Its copy waits for the mark, because
  earlier steps may still use the memory. The first step that reads the block waits for the copy.
- A store's copy waits for the step that wrote the block last. A step that changes or drops the block waits for the copy.

So a copy may last from where the plan begins it to where the plan needs it, as a thread's copy does on the CPU, and no more
memory is in use than was planned.

A thread prepares loads: it reads files, and copies pageable memory to a ring of pinned pieces.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any
from weakref import finalize

from torch import Tensor

from sagann.graph.rows import as_byte_tensor
from sagann.kernels.dialects import Dialect
from sagann.kernels.edge.pass_edges import Edges
from sagann.plan.hops import is_by_destination
from sagann.plan.steps import Block
from sagann.runtime.blocks.host import copy_alone_into
from sagann.runtime.blocks.sources import Sources
from sagann.runtime.blocks.transport import BytesOf, Load, Transport
from sagann.runtime.device.hosts import DeviceHost
from sagann.runtime.device.pinned import PinnedPool
from sagann.runtime.device.recorder import EventRecorder
from sagann.runtime.device.streams import Mark, Streams
from sagann.runtime.recorder import recorded

ALIGNMENT = 64
"Alignment of a tensor in its block's memory, in bytes."
MOST_TENSORS = 32
"Most tensors of a block. Its memory has room to align so many."
PIECE_BYTES = 16 << 20
"Bytes of pageable memory that are copied at a time: one piece goes to the device while the next is prepared."
SMALL_BYTES = 64 << 10
"Bytes of a piece for tensors that are no larger."


class Cuts:
    """How passes over each chunk are divided. A cut is made on the host at a chunk's first load, and kept there."""

    def __init__(self, dialect: Dialect) -> None:
        # Only the dialects of devices have cuts.
        self._dialect: Any = dialect if hasattr(dialect, "set_cut") else None
        self._known: dict[Block, Any] = {}

    def hand_over(self, block: Block, edges: Edges, moved: Edges, move: Callable[[Tensor], Tensor]) -> None:
        """Give a chunk's edges, ``moved`` to the device, their cut; ``move`` copies a tensor there."""
        if self._dialect is None:
            return
        # A cut depends on the offsets alone, so forms with ids or picked rows share it.
        at = "dst" if is_by_destination(block.name) else "src"
        known = block._replace(name=at)
        # Another thread may call forget() meanwhile.
        cut = self._known.get(known)
        if cut is None:
            cut = self._known[known] = self._dialect.cut_of(edges, at)
        self._dialect.set_cut(moved, at, cut.mapped(move))

    def forget(self) -> None:
        """Forget all cuts."""
        self._known.clear()


class DeviceTransport(Transport):
    """Copies between a host and a device; ``staging`` is pinned memory for copies from pageable memory."""

    _host: DeviceHost
    _timeline: EventRecorder | None

    def __init__(
        self,
        sources: Sources,
        host: DeviceHost,
        bytes_of: BytesOf,
        *,
        streams: Streams,
        staging: PinnedPool,
        cuts: Cuts,
        timeline: EventRecorder | None,
    ) -> None:
        super().__init__(sources, host, bytes_of, timeline)
        self._reader = _Reader(sources=sources, streams=streams, staging=staging, cuts=cuts, timeline=timeline)
        self._streams = streams
        self._stores: dict[Block, Mark] = {}
        self._loader = ThreadPoolExecutor(max_workers=1, thread_name_prefix="sagann-load")
        # Memory of copies under way is kept until they are done, even if the transport itself is dropped.
        self._under_way: dict[Block, Tensor] = {}
        self._end = finalize(self, _end, streams, self._loader, self._under_way)
        self._end.atexit = False

    def load(self, block: Block) -> Load:
        memory = self._streams.empty(self._bytes_of(block) + MOST_TENSORS * ALIGNMENT)
        self._under_way[block] = memory
        job = self._loader.submit(self._reader.load, block, memory, self._streams.mark("compute"))
        return partial(self._landed, block, job)

    def store(self, block: Block, tensors: Mapping[str, Tensor]) -> None:
        self._streams.wait("store", self._streams.mark("compute"))
        with self._streams.on("store"):
            self._stores[block] = self._recorded("store", self._host.receive, block, tensors)

    def await_store(self, block: Block) -> None:
        if (arrived := self._stores.pop(block, None)) is not None:
            self._streams.wait("compute", arrived)

    # Memory is reused in the order of the lane that computes, so this lane waits for the store. Dropped blocks are stored before
    # the next step runs, so there is no room to make.
    drop = await_store

    def close(self) -> None:
        self._end()
        super().close()
        if self._timeline is not None:
            self._timeline.settle()

    def _landed(self, block: Block, job: Future[_Landing]) -> Any:
        """The content of a block whose load was queued."""
        landing = job.result()
        assert landing.arrived is not None
        self._streams.wait("compute", landing.arrived)
        for memory in landing.own:
            self._streams.hand_over(memory)
        self._under_way.pop(block, None)
        return landing.content


@dataclass(frozen=True, kw_only=True, slots=True)
class _Reader:
    """Reads blocks and queues their copies, in the loader's thread. It must not hold the transport, which ends the thread."""

    sources: Sources
    streams: Streams
    staging: PinnedPool
    cuts: Cuts
    timeline: EventRecorder | None

    def load(self, block: Block, memory: Tensor, free: Mark) -> _Landing:
        """Read a block and queue its copy to the device's ``memory``, which is free after the mark ``free``."""
        name = block.label
        with recorded(None if self.timeline is None else self.timeline.of_host, "load", f"{name}, read"):
            content = self.sources.load(block)
        with self.streams.on("load"):
            self.streams.wait("load", free)
            landing = _Landing(memory, self.streams, self.staging)
            with recorded(self.timeline, "load", name, memory.nbytes - MOST_TENSORS * ALIGNMENT):
                landing.content = self._moved(block, content, landing)
            landing.arrived = self.streams.mark("load")
        return landing

    def _moved(self, block: Block, content: Any, landing: _Landing) -> Any:
        if isinstance(content, Tensor):
            return landing(content)
        if isinstance(content, Mapping):
            return {name: landing(tensor) for name, tensor in content.items()}
        edges = content.mapped(landing)
        self.cuts.hand_over(self.sources.known_as(block), content, edges, landing)
        return edges


class _Landing:
    """Puts tensors side by side into a block's memory on the device. Their copies are queued in this thread's lane."""

    def __init__(self, memory: Tensor, streams: Streams, staging: PinnedPool) -> None:
        self._memory = memory
        self._streams = streams
        self._staging = staging
        self._taken = 0
        self.own: list[Tensor] = []
        "Memory beyond the block's, for tensors that do not fit."
        self.content: Any = None
        "Content of the block on the device."
        self.arrived: Mark | None = None
        "Mark after the copies, once they are queued."

    def __call__(self, tensor: Tensor) -> Tensor:
        """The tensor on the device; the same tensor if it lies there."""
        if self._streams.holds(tensor):
            return tensor
        source = tensor.detach().contiguous()
        into = self._room(source.nbytes)
        words = as_byte_tensor(source)
        if self._streams.is_pinned(source):
            self._streams.copy(into, words)
        elif len(words):
            for part, here in zip(words.split(PIECE_BYTES), into.split(PIECE_BYTES), strict=True):
                self._by_way_of_staging(here, part)
        return into.view(source.dtype).view(source.shape)

    def _by_way_of_staging(self, into: Tensor, part: Tensor) -> None:
        # Pieces have two sizes only, so that they are reused: pinning one takes longer than copying it.
        piece = self._staging.take(SMALL_BYTES if len(part) <= SMALL_BYTES else PIECE_BYTES)
        staged = copy_alone_into(piece[: len(part)], part)
        self._streams.copy(into, staged)
        self._staging.give(piece, self._streams.mark("load"))

    def _room(self, num_bytes: int) -> Tensor:
        begin = -(-self._taken // ALIGNMENT) * ALIGNMENT
        if begin + num_bytes <= len(self._memory):
            self._taken = begin + num_bytes
            return self._memory[begin : self._taken]
        # This lane allocates the memory, so only this lane's earlier copies can have used it.
        self.own.append(self._streams.empty(num_bytes))
        return self.own[-1]


def _end(streams: Streams, loader: ThreadPoolExecutor, under_way: dict[Block, Tensor]) -> None:
    loader.shutdown(wait=True, cancel_futures=True)
    streams.finish(streams.mark("load"))
    streams.finish(streams.mark("store"))
    under_way.clear()
