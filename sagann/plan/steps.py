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

BlockKind = Literal[
    "value", "grad", "gather_saved", "grad_inputs", "state", "edges", "row_ids", "edge_grad", "stage_saved"
]
StepKind = Literal[
    "transform",
    "transform_loss",
    "gather",
    "finish",
    "store_constant",
    "output",
    "return",
    "prepare_grad",
    "transform_grad",
    "gather_grad",
    "finish_grad",
    "output_grad",
]


# Plans look blocks up millions of times: tuples are hashed and compared without a call of Python.
class Block(NamedTuple):
    """A named tensor, or a few that go together, restricted to an interval of vertices or to a chunk of edges.

    - value, grad: the rows of a value, and of its gradient.
    - gather_saved: what a gather keeps of its state for the backward.
    - grad_inputs: what the passes of a gather's backward read of the destinations.
    - state: a gather state, which chunks are accumulated into.
    - edges: the edges of a chunk. row_ids: the ids of the rows that are picked for a chunk; only hosts hold these blocks.
    - edge_grad: gradients at the edges of a chunk, which one backward pass leaves for another.
    - stage_saved: what a stage saves for its gradient.
    """

    kind: BlockKind
    "Kind of block."
    name: str
    "Name of the value; for what belongs to a gather, the name of its result; for a chunk, the form of its edges."
    interval: int
    "Number of the interval; for a chunk, of the interval of its sources."
    dst_interval: int = -1
    "Number of the interval of a chunk's destinations; -1 for a block that is no chunk's."
    number: int = 0
    "Number of the hop of a chunk, of the backward pass of a state, or of the stage that saved the block."
    needed_by: Block | None = None
    "Chunk that the rows were picked for; None where all rows of the interval are there."
    owner: str = DEVICE
    "Device or worker in whose memory the block lies."

    @property
    def whole(self) -> Block:
        """The block that these rows are picked from; itself, where none are."""
        return self if self.needed_by is None else self._replace(needed_by=None)


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """A computation on an interval or on a chunk.

    - transform: run a stage on an interval. transform_loss: run the last stage, the loss of its rows, and their gradients.
    - gather: accumulate a chunk into a state. finish: turn a state into what was gathered.
    - store_constant: store what is the same in every epoch. output: give rows of the result to the caller.
    - return: return to the caller, who starts the backward.
    - prepare_grad: compute what the passes of a gather's backward read of an interval.
    - transform_grad, gather_grad, finish_grad: the gradients of a stage, a chunk and a state. output_grad: give rows of the
      features' gradient to the caller.
    """

    kind: StepKind
    "Kind of computation."
    number: int
    "Number of the stage, or of the gather."
    interval: int
    "Number of the interval that the step works on; for a chunk, of the interval of its sources."
    dst_interval: int = -1
    "Number of the interval of a chunk's destinations; -1 for a step that works on no chunk."
    part: int = 0
    "Number of the pass within a gather's backward."
    reads: tuple[Block, ...]
    "Blocks whose content the step needs."
    writes: tuple[Block, ...]
    "Blocks that the step makes or changes."
    temporary_bytes: int = 0
    "Peak bytes of temporary memory while the step runs."
    resource: str = DEVICE
    "Device or worker that computes; it owns the step's blocks."
    waits: tuple[int, ...] = ()
    "Numbers of other operations that must end before it starts, beside those that follow from blocks."

    @property
    def blocks(self) -> tuple[Block, ...]:
        """The blocks that the step reads or writes, each once."""
        return tuple(dict.fromkeys((*self.reads, *self.writes)))


MoveKind = Literal["load", "store", "drop", "send", "receive", "all-reduce"]


class Move(NamedTuple):
    """A block is copied, or leaves its owner's memory.

    load: from outside into the memory of the block's owner. store: out of it. drop: the block leaves its owner's memory.
    send: the owner copies it to a peer, whose memory has room for it from the start of the send. receive: at its owner, a
    block that a peer has sent becomes readable. all-reduce: all owners of a block of that name sum theirs; each has the sum.
    """

    kind: MoveKind
    "Kind of move."
    block: Block
    "Block that is moved."
    num_bytes: int
    "Size of the block; of an all-reduce, the bytes that this owner sends."
    peer: str = ""
    "Receiver of a send, or sender of a receive."
    resource: str = ""
    "Resource that the move occupies; by default the owner's copy engine for loads and stores, and the owner otherwise."
    waits: tuple[int, ...] = ()
    "Numbers of other operations that must end before it starts, beside those that follow from blocks."

    @property
    def occupies(self) -> str:
        """The resource that the move occupies, also where none is named."""
        return self.resource or self.block.owner + _ENGINES.get(self.kind, "")


_ENGINES = {"load": ".copy_in", "store": ".copy_out"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """Steps and moves in the order in which they begin.

    A load may take until the first step that reads its block, a store until the block is written again, or beyond its drop
    as :mod:`sagann.plan.leaving` says; a block counts from its load or first write until it is dropped.
    """

    operations: tuple[Step | Move, ...]
    "Steps and moves, in order."
    bounds: tuple[int, ...]
    "Ids of the first vertex of each interval, and the number of vertices."
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
        """Bytes copied to the device."""
        return _moved(self.operations, "load")

    @property
    def stored_bytes(self) -> int:
        """Bytes copied from the device."""
        return _moved(self.operations, "store")

    @property
    def picked_bytes(self) -> int:
        """Bytes of rows that were picked for a chunk, among those copied to the device."""
        return sum(each.num_bytes for each in _moves(self.operations, "load") if each.block.needed_by is not None)

    @property
    def moved_bytes(self) -> int:
        """Bytes copied to the device and from it."""
        return self.loaded_bytes + self.stored_bytes

    @property
    def spilled_bytes(self) -> int:
        """Bytes of the blocks that are stored at some time; each block counts once."""
        return sum({each.block: each.num_bytes for each in _moves(self.operations, "store")}.values())

    @property
    def num_intervals(self) -> int:
        """Number of intervals, P."""
        return len(self.bounds) - 1


def _moved(operations: Sequence[Step | Move], kind: str) -> int:
    return sum(each.num_bytes for each in _moves(operations, kind))


def _moves(operations: Sequence[Step | Move], kind: str) -> list[Move]:
    return [each for each in operations if isinstance(each, Move) and each.kind == kind]
