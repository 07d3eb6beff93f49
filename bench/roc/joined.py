"""One plan of all workers, from the plan of each: what an exchange moves becomes sends and receives over links.

Each worker's plan has steps in which it exchanges blocks that lie outside of its device (:mod:`sagann.plan.exchanges`). Here devices send to one
another. A block that another worker needs is sent when it is made, in place of the store before the exchange. It is received before the first
step that reads it, in place of the load after the exchange. A block of the halo that is evicted is stored, and loaded again. At the end the
gradients of the parameters are summed by an all-reduce.

Rows that travel have one name at both ends: the number of the interval of the graph that they lie in, and the rank of the worker that needs
them (blocks *sent* and *returned*).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from bench.roc.graphs import Cut, Share
from sagann.plan.epoch import Planned
from sagann.plan.machine import Machine
from sagann.plan.steps import Block, BlockKind, Move, MoveKind, Plan, Step

DEVICES_PER_NODE = 4
_OF_CHUNKS = frozenset(["edges", "row_ids", "edge_grad"])


def route(first: int, second: int) -> str:
    """The link from one device to another."""
    nodes = first // DEVICES_PER_NODE, second // DEVICES_PER_NODE
    return f"link{first}-{second}" if nodes[0] == nodes[1] else f"network{nodes[0]}-{nodes[1]}"


def ring_of(link: str) -> str:
    """The name of a link as the ring of an all-reduce occupies it.

    A ring has a queue of its own. If it waited for all devices in the queue of sends, sends that other devices wait for would wait behind it.
    """
    return f"ring of {link}"


def with_rings(machine: Machine) -> Machine:
    """The machine whose links may be occupied by rings as well. Transfers between nodes share the switches."""
    return replace(
        machine, links={**machine.links, **{ring_of(name): link for name, link in machine.links.items()}}
    )


def joined(
    workers: Sequence[Planned], cut: Cut, *, budget_bytes: int, parameter_bytes: int
) -> tuple[Plan, Mapping[Step, tuple[int, Step]]]:
    """The plan of all workers, and for each step the rank of its worker and the step in that worker's own plan."""
    operations: list[Step | Move] = []
    origins: dict[Step, tuple[int, Step]] = {}
    initial: set[Block] = set()
    for rank, (planned, part) in enumerate(zip(workers, cut.parts, strict=True)):
        worker = WorkerPlan(planned.plan, part)
        for operation, origin in worker.operations():
            if isinstance(operation, Step):
                assert isinstance(origin, Step)
                origins[operation] = rank, origin
            operations.append(operation)
        if len(workers) > 1 and parameter_bytes:
            last = max(number for number, each in enumerate(operations) if isinstance(each, Step))
            summed = Block("grad", "parameters", 0, owner=worker.device)
            step = operations[last]
            assert isinstance(step, Step)
            operations[last] = summing = replace(step, writes=(*step.writes, summed))
            origins[summing] = origins.pop(step)
            # A ring sends each byte so many times.
            sent_bytes = 2 * (len(workers) - 1) * parameter_bytes // len(workers)
            ring = ring_of(route(rank, (rank + 1) % len(workers)))
            operations += [
                Move("all-reduce", summed, sent_bytes, resource=ring),
                Move("drop", summed, parameter_bytes),
            ]
        initial.update(map(worker.renamed, planned.plan.initial))
    plan = Plan(
        operations=tuple(operations),
        bounds=cut.bounds,
        budget_bytes=budget_bytes,
        peak_bytes=budget_bytes,
        initial=frozenset(initial),
    )
    return plan, origins


class WorkerPlan:
    """The operations of a worker's plan, as those of a device among others."""

    def __init__(self, plan: Plan, part: Share) -> None:
        self.plan, self.part = plan, part
        self.rank = part.intervals.rank
        self.device = f"device{self.rank}"
        steps = [(number, each) for number, each in enumerate(plan.operations) if isinstance(each, Step)]
        exchanges = [(number, step) for number, step in steps if step.exchanged is not None]
        # By block that an exchange sends, the number of its last store before the exchange.
        wanted = {block: number for number, step in exchanges for block in step.sends}
        self.sends: dict[Block, int] = {}
        self.loads = Counter[Block]()
        for number, each in enumerate(plan.operations):
            if isinstance(each, Move) and each.kind == "store" and number < wanted.get(each.block, -1):
                self.sends[each.block] = number
            if isinstance(each, Move) and each.kind == "load":
                self.loads[each.block] += 1
        self.received = {block for _, step in exchanges for block in step.receives}
        self.bytes = {each.block: each.num_bytes for each in plan.operations if isinstance(each, Move)}

    def operations(self) -> Iterator[tuple[Step | Move, Step | Move]]:
        """The operations, each with the one of the worker's plan that it comes from."""
        # Blocks that another device sends, and that no step has read yet.
        coming = set(self.received)
        sent: set[Block] = set()
        # Drops of blocks that were sent. A drop waits for the send, so it stands before the step that makes the next value to send.
        drops: list[Move] = []
        for number, each in enumerate(self.plan.operations):
            if isinstance(each, Step):
                if each.exchanged is not None:
                    continue
                if drops and any(
                    block in self.sends and self._differs(block, drops[0].block) for block in each.writes
                ):
                    yield from ((drop, drop) for drop in drops)
                    drops = []
                for block in each.reads:
                    if block in coming:
                        coming.remove(block)
                        yield self._move("receive", block), each
                        if self.loads[block] > 1:
                            yield self._move("store", block), each
                yield self._step(each), each
            elif each.block in coming:
                # The block is not there before the step that receives it.
                continue
            elif self.sends.get(each.block) == number:
                sent.add(each.block)
                yield self._move("send", each.block), each
            elif each.kind == "drop" and each.block in sent:
                drops.append(each._replace(block=self.renamed(each.block)))
            else:
                yield each._replace(block=self.renamed(each.block)), each
        yield from ((drop, drop) for drop in drops)

    def _differs(self, block: Block, sent: Block) -> bool:
        """Whether a block has rows of another value than one that was sent, which has its name in the plan of all workers."""
        named = self.renamed(block)
        return (named.kind, named.name) != (sent.kind, sent.name)

    def _move(self, kind: MoveKind, block: Block) -> Move:
        peer = "" if kind == "store" else f"device{self._peer(block)}"
        link = route(self.rank, self._peer(block)) if kind == "send" else ""
        return Move(kind, self.renamed(block), self.bytes[block], peer=peer, resource=link)

    def _peer(self, block: Block) -> int:
        """The worker at the other end: the one that needs own rows, or the owner of rows of the halo."""
        if self._is_own(block.interval):
            return block.peer
        intervals = self.part.intervals
        return intervals.owners[block.interval - intervals.num_own]

    def _is_own(self, interval: int) -> bool:
        return interval < self.part.intervals.num_own

    def _step(self, step: Step) -> Step:
        return replace(
            step,
            interval=self.part.numbers[step.interval],
            dst_interval=step.dst_interval if step.dst_interval < 0 else self.part.numbers[step.dst_interval],
            reads=tuple(map(self.renamed, step.reads)),
            writes=tuple(map(self.renamed, step.writes)),
            resource=self.device,
        )

    def renamed(self, block: Block) -> Block:
        """The block as the plan of all workers names it."""
        number = self.part.numbers[block.interval]
        if block.kind in ("value", "grad") and not self._is_own(block.interval):
            kind: BlockKind = "sent" if block.kind == "value" else "returned"
            return Block(kind, block.name, number, self.rank, owner=self.device)
        dst = block.dst_interval
        if block.kind in _OF_CHUNKS:
            dst = self.part.numbers[dst]
        elif not self._is_own(block.interval):
            # Several workers have a state of the same interval.
            dst = self.rank
        return block._replace(interval=number, dst_interval=dst, owner=self.device)
