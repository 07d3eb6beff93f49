"""Device transport: blocks copied to and from a device by streams of their own.

The host queues and does not wait; events say what comes after what. All memory of blocks is allocated in the order of the
lane that computes, so that it is used again in the plan's order:

- A load is given memory, and a mark of computing, when the plan comes to it. Its copy waits for the mark, because what
  computed before may still use that memory. The first step that reads the block has computing wait for the copy.
- A store's copy waits for the block's last writer. Whoever drops or changes the block has computing wait for the copy.

So a copy may take from where the plan begins it to where the plan needs it, as threads' copies on the CPU do, and memory
is never in use beyond what was planned.

A thread brings what is loaded to where it can be copied from: it reads files, and copies pageable memory to a ring of
pinned pieces.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any
from weakref import finalize

import torch
from torch import Tensor

from sagann.kernels.edge.pass_edges import Edges
from sagann.plan.steps import Block
from sagann.plan.timeline import block_name
from sagann.runtime.blocks.host import copy_alone_into
from sagann.runtime.blocks.transport import BytesOf, Pending, Source
from sagann.runtime.device.hosts import DeviceHost
from sagann.runtime.device.pinned import PinnedPool
from sagann.runtime.device.recorder import EventRecorder
from sagann.runtime.device.streams import Mark, Streams
from sagann.runtime.recorder import recorded

ALIGNMENT = 64
"Of a tensor in a block's memory, in bytes."
MOST_TENSORS = 32
"Of a block, for each of which its memory has room to be aligned."
PIECE_BYTES = 16 << 20
"Of pageable memory that is copied at a time: while one piece goes to the device, the next is made ready."
SMALL_BYTES = 64 << 10
"Of a piece for less."

Cuts = Callable[[Block, Edges], Callable[[Edges, Callable[[Tensor], Tensor]], None] | None]
"""Given a chunk's block and edges on the host: what hands edges on the device what passes over them need, moved by a
function; or None."""


class DeviceTransport:
    """Copies between a host and a device.

    Args:
        source: gives a block's content where it lies on the host; or on the device, where it lies there.
        host: takes what is stored.
        bytes_of: a block's size.
        streams: of the device.
        staging: pinned memory for what is copied from elsewhere.
        cuts: what comes along with edges.
        timeline: where copies are recorded.
    """

    counts_process = False

    def __init__(
        self,
        source: Source,
        host: DeviceHost,
        bytes_of: BytesOf,
        *,
        streams: Streams,
        staging: PinnedPool,
        cuts: Cuts,
        timeline: EventRecorder | None,
    ) -> None:
        self._source = source
        self._host = host
        self._bytes_of = bytes_of
        self._streams = streams
        self._staging = staging
        self._cuts = cuts
        self._timeline = timeline
        self._stores: dict[Block, Mark] = {}
        self._loader = ThreadPoolExecutor(max_workers=1, thread_name_prefix="sagann-load")
        # Of copies under way: not before they are done may the memory be used by others, also if all else is forgotten.
        self._under_way: dict[Block, Tensor] = {}
        self._end = finalize(self, _end, streams, self._loader, self._under_way)
        self._end.atexit = False

    def load(self, block: Block) -> Pending:
        """Queue a load."""
        memory = self._streams.empty(self._bytes_of(block) + MOST_TENSORS * ALIGNMENT)
        self._under_way[block] = memory
        free = self._streams.mark("compute")
        job = partial(
            _loaded, block, self._source, memory, free, self._streams, self._staging, self._cuts, self._timeline
        )
        return _Loaded(self._loader.submit(job), block, self._streams, self._under_way)

    def store(self, block: Block, tensors: Mapping[str, Tensor]) -> None:
        """Queue a store."""
        self._streams.wait("store", self._streams.mark("compute"))
        with (
            self._streams.on("store"),
            recorded(self._timeline, "store", block_name(block), self._bytes_of(block)),
        ):
            self._stores[block] = self._host.receive(block, tensors)

    def await_store(self, block: Block) -> None:
        """Have computing wait for a block's store, if there is one under way."""
        if (arrived := self._stores.pop(block, None)) is not None:
            self._streams.wait("compute", arrived)

    def drop(self, block: Block) -> None:
        """Have computing, in whose order memory is used again, wait for a block's store."""
        self.await_store(block)

    def make_room(self, room_bytes: int) -> None:
        """Nothing: what was dropped is stored, when what is computed next runs."""

    def close(self) -> None:
        """Wait for the copies under way, and queue no others."""
        self._end()
        self._host.close()
        if self._timeline is not None:
            self._timeline.settle()


class _Loaded:
    """A load that was queued."""

    def __init__(
        self,
        job: Future[tuple[Any, _Landing]],
        block: Block,
        streams: Streams,
        under_way: dict[Block, Tensor],
    ) -> None:
        self._job, self._block, self._streams, self._under_way = job, block, streams, under_way

    def result(self) -> Any:
        """Have computing wait for the copy; gives the content on the device."""
        content, landing = self._job.result()
        assert landing.arrived is not None
        self._streams.wait("compute", landing.arrived)
        for memory in landing.own:
            self._streams.hand_over(memory)
        self._under_way.pop(self._block, None)
        return content


def _loaded(
    block: Block,
    source: Source,
    memory: Tensor,
    free: Mark,
    streams: Streams,
    staging: PinnedPool,
    cuts: Cuts,
    timeline: EventRecorder | None,
) -> tuple[Any, _Landing]:
    """Read a block and queue its copy; in the loader's thread."""
    name = block_name(block)
    with recorded(None if timeline is None else timeline.of_host, "load", f"{name}, read"):
        content = source.load(block)
    with streams.on("load"):
        streams.wait("load", free)
        landing = _Landing(memory, streams, staging)
        with recorded(timeline, "load", name, memory.nbytes - MOST_TENSORS * ALIGNMENT):
            moved = _moved(block, content, landing, source, cuts)
        landing.arrived = streams.mark("load")
    return moved, landing


def _moved(block: Block, content: Any, landing: _Landing, source: Source, cuts: Cuts) -> Any:
    if isinstance(content, Tensor):
        return landing(content)
    if isinstance(content, Mapping):
        return {name: landing(tensor) for name, tensor in content.items()}
    edges = content.mapped(landing)
    hand_over = cuts(source.known_as(block), content)
    if hand_over is not None:
        hand_over(edges, landing)
    return edges


class _Landing:
    """Puts tensors side by side into a block's memory on the device; copies are queued in this thread's lane.

    Args:
        memory: of the device, uint8.
        streams: of the device.
        staging: pinned memory for tensors that do not lie in such.
    """

    def __init__(self, memory: Tensor, streams: Streams, staging: PinnedPool) -> None:
        self._memory = memory
        self._streams = streams
        self._staging = staging
        self._taken = 0
        self.own: list[Tensor] = []
        "Memory beyond the block's, for what was not foreseen."
        self.arrived: Mark | None = None
        "What comes after the copies, once they are queued."

    def __call__(self, tensor: Tensor) -> Tensor:
        """The tensor on the device; itself where it lies there."""
        if self._streams.holds(tensor):
            return tensor
        source = tensor.detach().contiguous()
        into = self._room(source.nbytes)
        words = source.reshape(-1).view(torch.uint8)
        if self._streams.is_pinned(source):
            self._streams.copy(into, words)
        elif len(words):
            for part, here in zip(words.split(PIECE_BYTES), into.split(PIECE_BYTES), strict=True):
                self._by_way_of_staging(here, part)
        return into.view(source.dtype).view(source.shape)

    def _by_way_of_staging(self, into: Tensor, part: Tensor) -> None:
        # Of two sizes, so that pieces are used again: to make one takes longer than to copy it.
        piece = self._staging.take(SMALL_BYTES if len(part) <= SMALL_BYTES else PIECE_BYTES)
        staged = copy_alone_into(piece[: len(part)], part)
        self._streams.copy(into, staged)
        self._staging.give(piece, self._streams.mark("load"))

    def _room(self, num_bytes: int) -> Tensor:
        """Memory of the device for so many bytes."""
        begin = -(-self._taken // ALIGNMENT) * ALIGNMENT
        if begin + num_bytes <= len(self._memory):
            self._taken = begin + num_bytes
            return self._memory[begin : self._taken]
        # Of this lane, which other copies of it may have used before, and no one else.
        self.own.append(self._streams.empty(num_bytes))
        return self.own[-1]


def _end(streams: Streams, loader: ThreadPoolExecutor, under_way: dict[Block, Tensor]) -> None:
    loader.shutdown(wait=True, cancel_futures=True)
    streams.finish(streams.mark("load"))
    streams.finish(streams.mark("store"))
    under_way.clear()
