"""Blocks of the halo travel in pieces, between hosts of any kind; workers are threads."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from torch import Tensor

from sagann.compiler.model_program import Form
from sagann.errors import WorkerError
from sagann.graph import Graph, Topology
from sagann.plan.part_intervals import PartIntervals
from sagann.plan.steps import Block, Exchanged
from sagann.runtime.blocks.host import Host, RamHost
from sagann.runtime.blocks.spill import DiskHost
from sagann.runtime.workers import HaloBlocks, WorkerPart, Workers, worker_part
from sagann.runtime.workers.block_travel import BlockTravel
from tests.graphs import odd_topologies, random_topology
from tests.parts import blocks_of, cut
from tests.runtime.workers.threads import in_threads
from tests.tolerances import assert_close

TOPOLOGIES = odd_topologies()
WIDTH = 3


def begun(
    blocks: HaloBlocks,
    part: PartIntervals,
    host: Host,
    sends: Sequence[Block],
    receives: Sequence[Block],
    after: BlockTravel | None = None,
) -> BlockTravel:
    exchange = Exchanged("h", tuple(sends), tuple(receives))
    return blocks.begin(
        part, host, exchange, form=Form(shape=(WIDTH,), dtype=torch.float64), doing="testing", after=after
    )


def exchanged(
    blocks: HaloBlocks, part: PartIntervals, host: Host, sends: Sequence[Block], receives: Sequence[Block]
) -> None:
    travel = begun(blocks, part, host, sends, receives)
    for block in sends:
        travel.send(block, lambda: None)
    travel.wait()


def for_peers(part: PartIntervals, kind: str) -> list[Block]:
    return [Block(kind, "h", interval, peer) for interval in part.own for peer in part.sent_by(interval)]


def sent_and_returned(part: WorkerPart, rows: Tensor, host: Host, *, count: int, piece_bytes: int) -> Tensor:
    """The rows of the halo as they are received; then their gradients, twice the rows, are added to own zeros."""
    blocks = blocks_of(part, piece_bytes)
    intervals = cut(blocks, part, count)
    own = rows[part.vertices]

    def rows_at(interval: int) -> slice:
        return slice(*intervals.bounds[interval : interval + 2])

    for block in for_peers(intervals, "sent"):
        host.put(block, {"": own[rows_at(block.interval)][blocks.sent_rows(intervals, block)]})
    halo = [Block("value", "h", interval) for interval in intervals.halo]
    exchanged(blocks, intervals, host, for_peers(intervals, "sent"), halo)
    received = [host.get(block).views()[""] for block in halo]
    assert torch.equal(torch.cat([own, *received]), torch.cat([own, rows[part.halo.part.halo]]))
    grads = [block._replace(kind="grad") for block in halo]
    for block, value in zip(grads, received, strict=True):
        host.put(block, {"": 2 * value})
    exchanged(blocks, intervals, host, grads, for_peers(intervals, "returned"))
    total = torch.zeros_like(own)
    for block in for_peers(intervals, "returned"):
        at = rows_at(block.interval)
        total[at] = total[at].index_add(0, blocks.sent_rows(intervals, block), host.get(block).views()[""])
    return total


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("name", TOPOLOGIES)
def test_rows_of_the_halo_come_and_their_gradients_go_back(name: str, size: int) -> None:
    topology = TOPOLOGIES[name]
    rows = torch.randn(topology.num_src, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(0))

    def work(workers: Workers) -> tuple[Tensor, Tensor]:
        part = worker_part(Graph(topology=topology, features=rows), workers, opened=Graph(topology=topology))
        added = sent_and_returned(part, rows, RamHost(), count=workers.rank + 1, piece_bytes=5 * WIDTH * 8)
        return added, part.halo.part.halo

    found = in_threads(work, size)
    readers = torch.zeros(topology.num_src, dtype=torch.float64)
    for _, halo in found:
        readers[halo] += 1
    assert_close(torch.cat([added for added, _ in found]), 2 * rows * readers[:, None])


@pytest.mark.parametrize("piece_bytes", [1, 1 << 20])
def test_the_size_of_pieces_changes_nothing(piece_bytes: int, tmp_path: Path) -> None:
    topology: Topology = random_topology(60, 400)
    rows = torch.randn(60, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(0))

    def work(workers: Workers) -> tuple[Tensor, int]:
        part = worker_part(Graph(topology=topology, features=rows), workers, opened=Graph(topology=topology))
        host, before = DiskHost(tmp_path), workers.sent_bytes
        added = sent_and_returned(part, rows, host, count=3, piece_bytes=piece_bytes)
        # Each row of a halo travels once, there and back, after a byte for the direction.
        num_rows = len(part.halo.part.halo) + sum(map(len, part.halo.sent))
        assert workers.sent_bytes - before == num_rows * WIDTH * 8 + 2
        return added, len(part.halo.part.halo)

    found = in_threads(work, 2)
    assert all(num_halo > 0 for _, num_halo in found)
    halos = sum(added.count_nonzero() for added, _ in found)
    assert halos == sum(num_halo for _, num_halo in found) * WIDTH


class Streamed:
    """A worker's part with rows, streamed by four intervals, by default in pieces of two rows."""

    def __init__(self, workers: Workers, piece_bytes: int = 2 * WIDTH * 8) -> None:
        topology = random_topology(60, 400)
        self.rows = torch.randn(60, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        part = worker_part(Graph(topology=topology, features=self.rows), workers, opened=Graph(topology=topology))
        self.blocks = blocks_of(part, piece_bytes)
        self.part = cut(self.blocks, part, 4)
        self.own, self.halo_rows = self.rows[part.vertices], self.rows[part.halo.part.halo]
        self.host = RamHost()
        self.sends = for_peers(self.part, "sent")
        self.halo = [Block("value", "h", interval) for interval in self.part.halo]

    def put(self, block: Block) -> None:
        """Make the rows of an interval that another worker needs."""
        at = slice(*self.part.bounds[block.interval : block.interval + 2])
        self.host.put(block, {"": self.own[at][self.blocks.sent_rows(self.part, block)]})

    def received(self) -> bool:
        """Whether the halo's rows are there."""
        return torch.equal(torch.cat([self.host.get(block).views()[""] for block in self.halo]), self.halo_rows)


def wait_until(holds: Callable[[], bool]) -> None:
    since_s = time.monotonic()
    while not holds():
        assert time.monotonic() - since_s < 60
        time.sleep(0.001)


def test_an_error_of_the_thread_reaches_the_one_that_computes() -> None:
    def work(workers: Workers) -> str:
        streamed = Streamed(workers)
        travel = begun(streamed.blocks, streamed.part, streamed.host, streamed.sends, streamed.halo)
        workers.timeout_s = 0.2
        for block in streamed.sends:
            streamed.put(block)
        first, *others = streamed.sends
        travel.send(first, fail if workers.rank == 1 else lambda: None)
        if workers.rank == 1:
            wait_until(lambda: travel._is_done)
            with pytest.raises(OSError, match="no room"):
                travel.send(others[0], lambda: None)
        for block in others if workers.rank == 0 else []:
            travel.send(block, lambda: None)
        with pytest.raises((OSError, WorkerError)) as refused:
            travel.wait()
        return str(refused.value)

    def fail() -> None:
        raise OSError("no room")

    silent, failed = in_threads(work, 2)
    assert failed == "no room"
    assert silent.startswith("worker 1 is gone: no answer within 0.2 s while testing")


class FullHost(RamHost):
    """A host without room for what others send."""

    def put_rows(self, block: Block, at: slice, rows: Tensor, *, num_rows: int) -> None:
        raise OSError("no room")


def test_no_exchange_begins_after_one_that_has_failed() -> None:
    """The others would take its rows for those of the one that has failed."""

    def work(workers: Workers) -> tuple[str, str]:
        streamed = Streamed(workers)
        if workers.rank == 0:
            streamed.host = FullHost()
        again = [block._replace(name="again") for block in streamed.sends]
        halo = [block._replace(name="again") for block in streamed.halo]
        first = begun(streamed.blocks, streamed.part, streamed.host, streamed.sends, streamed.halo)
        second = begun(streamed.blocks, streamed.part, streamed.host, again, halo, after=first)
        for block, other in zip(streamed.sends, again, strict=True):
            streamed.put(block)
            streamed.host.put(other, streamed.host.get(block).views())
            with suppress(OSError):
                first.send(block, lambda: None)
                second.send(other, lambda: None)
        workers.timeout_s = 0.5
        found = []
        # Whichever is waited for first.
        for travel in (second, first):
            with pytest.raises((OSError, WorkerError)) as refused:
                travel.wait()
            found.append(str(refused.value))
        wait_until(lambda: second._is_done or workers.rank == 1)
        # What tells directions, and no more than the first pieces.
        assert second._beside.sent_bytes == 0
        return found[0], found[1]

    full, other = in_threads(work, 2)
    assert full == ("no room", "no room")
    assert all(each.startswith("worker 0 is gone: no answer within 0.5 s while testing") for each in other)


def test_only_the_time_in_which_another_worker_is_waited_for_counts() -> None:
    def work(workers: Workers) -> bool:
        streamed = Streamed(workers, piece_bytes=1 << 20)
        workers.timeout_s, began_s = 1.6, time.monotonic()
        travel = begun(streamed.blocks, streamed.part, streamed.host, streamed.sends, streamed.halo)
        # This worker's disk is slow, and then the other worker is: together slower than workers may be.
        late_s = began_s + (1.0 if workers.rank == 0 else 2.0)
        for block in streamed.sends:
            streamed.put(block)
            travel.send(block, lambda: time.sleep(max(0.0, late_s - time.monotonic())))
        travel.wait()
        return streamed.received()

    assert in_threads(work, 2) == [True, True]
