"""Blocks of the halo travel between hosts in memory and in files; workers are threads."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from sagann.compiler.model_program import Form
from sagann.graph import Graph, Topology
from sagann.plan.intervals import PartIntervals
from sagann.plan.steps import Block, Exchanged, Step, StepKind
from sagann.runtime.blocks.host import DiskHost, Host, RamHost
from sagann.runtime.workers import Workers, worker_part
from sagann.runtime.workers.exchange import HaloSteps
from tests.graphs import odd_topologies, random_topology
from tests.parts import cut
from tests.runtime.workers.threads import in_threads
from tests.tolerances import assert_close

TOPOLOGIES = odd_topologies()
WIDTH = 3


class Residents(dict[Block, Tensor]):
    """Blocks in the memory that computes, whose stores have ended."""

    def await_store(self, block: Block) -> None:
        pass


class Streamed:
    """A worker's part, with values ``names`` of its own vertices."""

    def __init__(self, workers: Workers, topology: Topology, count: int, host: Host, names: Sequence[str] = "h"):
        generator = torch.Generator().manual_seed(0)
        self.rows = {name: torch.randn(topology.num_src, WIDTH, generator=generator).double() for name in names}
        graph = Graph(topology=topology, features=self.rows["h"])
        part = worker_part(graph, workers, opened=Graph(topology=topology))
        self.part: PartIntervals = cut(part.blocks, part, count)
        self.halo_ids, self.vertices = part.halo.part.halo, part.vertices
        self.host, self.resident = host, Residents()
        forms = dict.fromkeys(names, Form(shape=(WIDTH,), dtype=torch.float64))
        self.steps = HaloSteps(part.blocks, self.part, forms, host, self.resident)

    def rows_at(self, interval: int) -> slice:
        return slice(*self.part.bounds[interval : interval + 2])

    def run(self, kind: StepKind, exchanged: Exchanged | None = None, **blocks: tuple[Block, ...]) -> None:
        getattr(self.steps, kind)(Step(kind, 0, 0, exchanged=exchanged, **blocks))

    def exchanged(self, name: str, *, is_grad: bool = False) -> Exchanged:
        halo = tuple(Block("grad" if is_grad else "value", name, interval) for interval in self.part.halo)
        own = tuple(
            Block("returned" if is_grad else "sent", name, interval, peer)
            for interval in self.part.own
            for peer in self.part.sent_by(interval)
        )
        sends, receives = (halo, own) if is_grad else (own, halo)
        return Exchanged(name, sends, receives, is_grad)

    def collect(self, exchanged: Exchanged) -> None:
        """Copy the rows that the others need out of own rows, and to the host."""
        own = self.rows[exchanged.value][self.vertices]
        for block in exchanged.sends:
            whole = Block("value", exchanged.value, block.interval)
            self.resident[whole] = own[self.rows_at(block.interval)]
            self.run("collect", reads=(whole,), writes=(block,))
            self.host.put(block, {"": self.resident[block]})

    def send(self, exchanged: Exchanged, block: Block) -> None:
        self.run("send_rows", exchanged._replace(sends=(block,), receives=()))

    def received(self, name: str) -> Tensor:
        rows = [self.host.view(Block("value", name, interval))[""] for interval in self.part.halo]
        return torch.cat([self.rows[name][:0], *rows])


@pytest.mark.parametrize("on_disk", [False, True])
@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("name", TOPOLOGIES)
def test_rows_of_the_halo_come_and_their_gradients_go_back(
    name: str, size: int, on_disk: bool, tmp_path: Path
) -> None:
    """Workers have numbers of intervals of their own, and blocks go in any order."""
    topology = TOPOLOGIES[name]

    def work(workers: Workers) -> tuple[Tensor, Tensor]:
        host = DiskHost(tmp_path) if on_disk else RamHost()
        streamed = Streamed(workers, topology, 2 * workers.rank + 1, host)
        there, back = streamed.exchanged("h"), streamed.exchanged("h", is_grad=True)
        streamed.run("begin_exchange", there)
        streamed.collect(there)
        for block in there.sends[:: -1 if workers.rank % 2 else 1]:
            streamed.send(there, block)
        streamed.run("exchange", there)
        assert torch.equal(streamed.received("h"), streamed.rows["h"][streamed.halo_ids])
        before = workers.sent_bytes
        streamed.run("begin_exchange", back)
        for block in back.sends:
            host.put(block, {"": 2 * host.view(block._replace(kind="value"))[""]})
            streamed.send(back, block)
        streamed.run("exchange_grad", back)
        assert workers.sent_bytes - before == len(streamed.halo_ids) * WIDTH * 8
        found = []
        for interval in streamed.part.own:
            grad = Block("grad", "h", interval)
            at = streamed.rows_at(interval)
            streamed.resident[grad] = torch.zeros(at.stop - at.start, WIDTH, dtype=torch.float64)
            returned = tuple(block for block in back.receives if block.interval == interval)
            streamed.resident |= {block: host.view(block)[""] for block in returned}
            streamed.run("collect_grad", reads=(grad, *returned), writes=(grad,))
            found.append(streamed.resident[grad])
        host.close()
        return torch.cat(found), streamed.halo_ids

    found = in_threads(work, size)
    rows = torch.randn(topology.num_src, WIDTH, generator=torch.Generator().manual_seed(0)).double()
    readers = torch.zeros(topology.num_src, dtype=torch.float64)
    for _, halo in found:
        readers[halo] += 1
    assert_close(torch.cat([added for added, _ in found]), 2 * rows * readers[:, None])


def test_exchanges_that_are_under_way_together_are_told_apart() -> None:
    topology = random_topology(60, 400)

    def work(workers: Workers) -> None:
        streamed = Streamed(workers, topology, 4, RamHost(), names="hg")
        exchanges = [streamed.exchanged(name) for name in "hg"]
        for each in exchanges:
            streamed.run("begin_exchange", each)
            streamed.collect(each)
        blocks = [(each, block) for each in exchanges for block in each.sends]
        for each, block in blocks if workers.rank else blocks[::-1]:
            streamed.send(each, block)
        for each in exchanges[::-1]:
            streamed.run("exchange", each)
        for name in "hg":
            assert len(streamed.halo_ids)
            assert torch.equal(streamed.received(name), streamed.rows[name][streamed.halo_ids])

    in_threads(work, 2)
