"""Blocks of the halo travel between hosts in memory and in files, between threads; a step is cut into pieces by its exchanges."""

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
from sagann.runtime.workers import Workers, stopwatch, worker_part
from sagann.runtime.workers.exchange import HaloSteps
from sagann.runtime.workers.stopwatch import Lap, Stopwatch
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


class Clock:
    """A clock that the test moves on."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def perf_counter(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(stopwatch, "time", found)
    return found


def test_what_a_device_has_still_to_compute_is_computing(clock: Clock) -> None:
    queued_s = 0.0

    def finish() -> None:
        nonlocal queued_s
        clock.now_s += queued_s
        queued_s = 0.0

    watch = Stopwatch(finish)
    with watch.waiting():
        # Outside of a step nobody waits for the device.
        queued_s = 100.0
    assert queued_s == 100.0
    queued_s = 0.0
    watch.start()
    queued_s = 3.0
    with watch.waiting():
        clock.now_s += 50.0
    queued_s = 5.0
    watch.exchange(row_bytes=8)
    queued_s = 7.0
    watch.turn()
    watch.stop()
    assert {kind: lap.seconds for kind, lap in watch.take().items()} == {
        "forward 0": 8.0,
        "forward 1": 7.0,
        "backward 0": 0.0,
    }


def test_pieces_of_a_step_have_their_seconds_without_waits(clock: Clock) -> None:
    watch = Stopwatch()

    def work(compute_s: float, wait_s: float = 0.0) -> None:
        clock.now_s += compute_s
        with watch.waiting():
            clock.now_s += wait_s

    watch.start()
    work(1.0, 5.0)
    first = watch.exchange(row_bytes=64)
    work(2.0, 7.0)
    second = watch.exchange(row_bytes=256)
    work(4.0)
    watch.turn()
    work(8.0, 3.0)
    watch.give_back(second)
    work(16.0)
    # Another tensor of the same exchange.
    watch.give_back(second)
    work(32.0, 9.0)
    watch.give_back(first)
    work(64.0)
    watch.stop()
    work(1000.0)
    assert watch.take() == {
        "forward 0": Lap(row_bytes=0, seconds=1.0),
        "forward 1": Lap(row_bytes=64, seconds=2.0),
        "forward 2": Lap(row_bytes=256, seconds=4.0),
        "backward 2": Lap(row_bytes=256, seconds=8.0 + 16.0),
        "backward 1": Lap(row_bytes=64, seconds=32.0),
        "backward 0": Lap(row_bytes=0, seconds=64.0),
    }
    assert watch.take() == {}
