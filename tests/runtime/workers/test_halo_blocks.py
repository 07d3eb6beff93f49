"""Blocks of the halo travel in pieces, between hosts of any kind; workers are threads."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from sagann.graph import Graph, Topology
from sagann.plan.part_intervals import PartIntervals
from sagann.plan.steps import Block
from sagann.runtime.blocks.host import Host, RamHost
from sagann.runtime.blocks.spill import DiskHost, SpillFolder
from sagann.runtime.workers import HaloBlocks, WorkerPart, Workers, worker_part
from tests.graphs import odd_topologies, random_topology
from tests.parts import blocks_of, cut
from tests.runtime.workers.threads import in_threads
from tests.tolerances import assert_close

TOPOLOGIES = odd_topologies()
WIDTH = 3


def exchanged(
    blocks: HaloBlocks, part: PartIntervals, host: Host, sends: list[Block], receives: list[Block]
) -> None:
    blocks.exchange(
        part,
        host,
        sends=sends,
        receives=receives,
        row_shape=(WIDTH,),
        dtype=torch.float64,
        doing="testing",
    )


def for_peers(part: PartIntervals, kind: str) -> list[Block]:
    return [
        Block(kind, "h", interval, peer)  # type: ignore[arg-type]
        for interval in part.own
        for peer in part.sent_by(interval)
    ]


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
    received = [host.get(block)[""] for block in halo]
    assert torch.equal(torch.cat([own, *received]), torch.cat([own, rows[part.topology.part.halo]]))
    grads = [block._replace(kind="grad") for block in halo]
    for block, value in zip(grads, received, strict=True):
        host.put(block, {"": 2 * value})
    exchanged(blocks, intervals, host, grads, for_peers(intervals, "returned"))
    total = torch.zeros_like(own)
    for block in for_peers(intervals, "returned"):
        at = rows_at(block.interval)
        total[at] = total[at].index_add(0, blocks.sent_rows(intervals, block), host.get(block)[""])
    return total


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("name", TOPOLOGIES)
def test_rows_of_the_halo_come_and_their_gradients_go_back(name: str, size: int) -> None:
    topology = TOPOLOGIES[name]
    rows = torch.randn(topology.num_src, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(0))

    def work(workers: Workers) -> tuple[Tensor, Tensor]:
        part = worker_part(Graph(topology=topology, features=rows), workers, opened=Graph(topology=topology))
        added = sent_and_returned(part, rows, RamHost(), count=workers.rank + 1, piece_bytes=5 * WIDTH * 8)
        return added, part.topology.part.halo

    found = in_threads(work, size)
    readers = torch.zeros(topology.num_src, dtype=torch.float64)
    for _, halo in found:
        readers[halo] += 1
    assert_close(torch.cat([added for added, _ in found]), 2 * rows * readers[:, None])


@pytest.mark.parametrize("piece_bytes", [1, 40, 1 << 20])
def test_the_size_of_pieces_changes_nothing(piece_bytes: int, tmp_path: Path) -> None:
    topology: Topology = random_topology(60, 400)
    rows = torch.randn(60, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(0))

    def work(workers: Workers) -> tuple[Tensor, int]:
        part = worker_part(Graph(topology=topology, features=rows), workers, opened=Graph(topology=topology))
        host, before = DiskHost(SpillFolder(tmp_path)), workers.sent_bytes
        added = sent_and_returned(part, rows, host, count=3, piece_bytes=piece_bytes)
        # Each row of a halo travels once, there and back.
        num_rows = len(part.topology.part.halo) + sum(map(len, part.topology.halo.sent))
        assert workers.sent_bytes - before == num_rows * WIDTH * 8
        return added, len(part.topology.part.halo)

    found = in_threads(work, 2)
    assert all(num_halo > 0 for _, num_halo in found)
    halos = sum(added.count_nonzero() for added, _ in found)
    assert halos == sum(num_halo for _, num_halo in found) * WIDTH
