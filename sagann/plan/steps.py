"""Plan: a frozen list of operations on blocks, in order. An operation is a step, which computes, or a move, which copies.

An operation occupies a resource: a step its device (``device0``), a load ``device0.copy_in``, a store ``device0.copy_out``, a
send the link that it names (``link0-1``). A block has an owner, the device or worker in whose memory it lies. A plan for one
device leaves these names out: they are then those of ``device0``.

An operation waits for what made or brought its blocks; :mod:`sagann.plan.waits` derives that. What does not follow from
blocks, an operation names itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

UNLIMITED = 1 << 62
"A budget that everything fits."
DEVICE = "device0"
"Name of the device where there is one."

MemoryPolicy = Literal["belady", "none"]
"Which blocks the device keeps (:mod:`sagann.plan.memory`)."

BlockKind = Literal["value", "grad", "extra", "incoming", "state", "edges", "needed", "handed", "saved"]
StepKind = Literal[
    "transform",
    "transform_loss",
    "gather",
    "finish",
    "keep",
    "emit",
    "turn",
    "arrive",
    "transform_grad",
    "gather_grad",
    "finish_grad",
    "emit_grad",
]


# Plans look blocks up millions of times: tuples are hashed and compared without a call of Python.
class Block(NamedTuple):
    """A named tensor, or a few that go together, restricted to an interval or to a chunk of edges.

    value, grad: rows of a value, and its gradient. extra: what a gather keeps for its backward. incoming: what its
    backward reads of destinations. state: a gather in the making. edges: a chunk. needed: the
    ids of rows that are picked for it, which only hosts keep. handed: what the backward's passes
    leave at the edges of a chunk. saved: what a stage makes and its gradient reads.
    """

    kind: BlockKind
    "What it is."
    name: str
    "Of the value; of a gather's result; of a chunk, the form."
    interval: int
    "Number of the interval; of a chunk, that of its sources."
    other: int = -1
    "Of a chunk, the interval of its destinations."
    number: int = 0
    "Of a chunk, the hop; of a state in the backward, the pass; of what is saved, the stage."
    needed_by: Block | None = None
    "Where these are picked rows of the interval, the chunk that needs them."
    owner: str = DEVICE
    "Device or worker in whose memory it lies."

    @property
    def whole(self) -> Block:
        """The block that these rows are picked from; itself, where none are."""
        return self if self.needed_by is None else self._replace(needed_by=None)


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """Something that is computed."""

    kind: StepKind
    """transform: a stage on an interval. transform_loss: the last stage, the loss of its rows, and their gradients. gather:
    a chunk into a state. finish: a state into what was gathered. keep: what is the same in
    every epoch. emit: rows of the result, or of the features' gradient,
    to the caller. turn: the caller's, who begins the backward. arrive: what a gather's backward reads. And the gradients
    of a stage, a chunk and a state."""
    number: int
    "Of the stage, or of the gather."
    interval: int
    "That it works on; of a chunk, that of its sources."
    other: int = -1
    "Of a chunk, the interval of its destinations."
    part: int = 0
    "Which of the passes of a gather's backward."
    reads: tuple[Block, ...]
    "Blocks whose content it needs."
    writes: tuple[Block, ...]
    "Blocks that it makes or changes."
    temporary_bytes: int = 0
    "Peak bytes of temporary memory while the step runs."
    resource: str = DEVICE
    "Device or worker that computes; it owns the step's blocks."
    waits: tuple[int, ...] = ()
    "Numbers of other operations that must end before it starts, beside those that follow from blocks."

    @property
    def blocks(self) -> tuple[Block, ...]:
        """What it reads and writes, each once."""
        return tuple(dict.fromkeys((*self.reads, *self.writes)))


MoveKind = Literal["load", "store", "drop", "send", "receive", "all-reduce"]


class Move(NamedTuple):
    """A block is copied, or leaves its owner's memory.

    load: from outside into the memory of the block's owner. store: out of it. drop: the block leaves its owner's memory.
    send: the owner copies it to a peer, whose memory has room for it from the start of the send. receive: at its owner, a
    block that a peer has sent becomes readable. all-reduce: all owners of a block of that name sum theirs; each has the sum.
    """

    kind: MoveKind
    "What happens."
    block: Block
    "Block that is moved."
    num_bytes: int
    "Size of the block; of an all-reduce, the bytes that this owner sends."
    peer: str = ""
    "Of a send, the receiver; of a receive, the sender."
    resource: str = ""
    "What it occupies; by default its owner's copy engine for loads and stores, and its owner otherwise."
    waits: tuple[int, ...] = ()
    "Numbers of other operations that must end before it starts, beside those that follow from blocks."

    @property
    def occupies(self) -> str:
        """The resource, also where none is named."""
        return self.resource or self.block.owner + _ENGINES.get(self.kind, "")


_ENGINES = {"load": ".copy_in", "store": ".copy_out"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """Steps and moves in the order in which they begin.

    A load may take until the first step that reads its block, a store until the block is written again, or beyond its drop
    as :mod:`sagann.plan.leaving` says; a block counts from its load or first write until it is dropped.
    """

    operations: tuple[Step | Move, ...]
    "In order."
    bounds: tuple[int, ...]
    "Of the intervals."
    budget_bytes: int
    "Bytes that the memory of a device must not exceed."
    peak_bytes: int
    "Most bytes of blocks and temporaries in the memory of a device."
    ahead: bool
    "Whether loads come before the steps that need them, where there is room."
    memory_policy: MemoryPolicy = "belady"
    "Policy that chose which blocks the device keeps."
    initial: frozenset[Block] = frozenset()
    "Blocks that lie outside of the devices when the plan starts, or that the caller brings."

    def vertices(self, interval: int) -> slice:
        """The ids of an interval's vertices."""
        return slice(self.bounds[interval], self.bounds[interval + 1])

    @property
    def loaded_bytes(self) -> int:
        """Copied to the device."""
        return _moved(self.operations, "load")

    @property
    def stored_bytes(self) -> int:
        """Copied from the device."""
        return _moved(self.operations, "store")

    @property
    def picked_bytes(self) -> int:
        """Of what is copied to the device, the rows that were picked for a chunk."""
        return sum(each.num_bytes for each in _moves(self.operations, "load") if each.block.needed_by is not None)

    @property
    def moved_bytes(self) -> int:
        """Copied to the device and from it."""
        return self.loaded_bytes + self.stored_bytes

    @property
    def spilled_bytes(self) -> int:
        """Of the blocks that are stored at some time, each counted once."""
        return sum({each.block: each.num_bytes for each in _moves(self.operations, "store")}.values())

    @property
    def num_intervals(self) -> int:
        """P."""
        return len(self.bounds) - 1


def _moved(operations: Sequence[Step | Move], kind: str) -> int:
    return sum(each.num_bytes for each in _moves(operations, kind))


def _moves(operations: Sequence[Step | Move], kind: str) -> list[Move]:
    return [each for each in operations if isinstance(each, Move) and each.kind == kind]
