"""Plan: a frozen list of operations on blocks, in order. An operation is a step, which computes, or a move, which copies.

An operation occupies a resource: a step its device (``device0``), a load ``device0.copy_in``, a store ``device0.copy_out``, a
send, and a load from another device, the link that it names (``link0-1``). The owner of a block is the device or worker in whose
memory the block lies. A plan for one device leaves these names out, and ``device0`` is meant. What lies outside of the devices has
one name, whoever stored it and whoever loads it (:attr:`Block.outside`).

An operation starts after the operations that produce or load its blocks, and those that leave room for them; :mod:`sagann.plan.waits` writes
these. An operation names other predecessors itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

from sagann.kernels.edge.work import Grain

if TYPE_CHECKING:
    from sagann.plan.machine import Machine

UNLIMITED = 1 << 62
"A budget that everything fits."
ALL = -2
"In place of the number of an interval: all intervals together."
DEVICE = "device0"
"Name of the device where there is one."

BlockKind = Literal[
    "value",
    "grad",
    "gather_saved",
    "grad_inputs",
    "state",
    "edges",
    "row_ids",
    "edge_grad",
    "stage_saved",
    "sent",
    "returned",
]
StepKind = Literal[
    "transform",
    "transform_loss",
    "collect",
    "begin_exchange",
    "send_rows",
    "exchange",
    "gather",
    "finish",
    "assemble",
    "means",
    "share_means",
    "store_constant",
    "output",
    "return",
    "prepare_grad",
    "transform_grad",
    "gather_grad",
    "finish_grad",
    "share_means_grad",
    "means_grad",
    "exchange_grad",
    "collect_grad",
    "output_grad",
    "share_grads",
]


# Plans look blocks up millions of times: a tuple is hashed and compared without a call of Python.
class Block(NamedTuple):
    """A named tensor, or a few that go together, restricted to an interval of vertices or to a chunk of edges.

    - value, grad: rows of a value, and of its gradient.
    - gather_saved: the part of a gather state that the backward reads.
    - grad_inputs: tensors of the destinations that are made of a gather's gradient for the backward passes to read.
    - state: a gather state, into which chunks are accumulated.
    - edges: the edges of a chunk.
    - row_ids: the ids of the rows that are picked for a chunk. No device holds such a block.
    - edge_grad: gradients at the edges of a chunk, which one backward pass leaves for another.
    - stage_saved: tensors that a stage saves for its gradient.
    - sent: the rows of a value that another worker needs. returned: their gradients, as that worker has sent them back.
    """

    kind: BlockKind
    "Kind of block."
    name: str
    "Name of the value; of a block that belongs to a gather, the name of the gather's result; of a chunk, the form of its edges."
    interval: int
    "Number of the interval; of a chunk, number of the source interval. :data:`ALL` where rows are undivided, or an end of a chunk is not cut."
    dst_interval: int = -1
    "Number of a chunk's destination interval; of a sent or returned block, rank of the worker that needs the rows; -1 for others."
    hop: int = 0
    "Number of a chunk's hop; 0 for other blocks."
    backward_pass: int = 0
    "Number of the backward pass that accumulates a state, counted from 1; 0 for a state of the forward, and for other blocks."
    stage: int = -1
    "Number of the stage that saves a stage_saved block; -1 for other blocks."
    needed_by: Block | None = None
    "Chunk that the rows are picked for; None where the block has all rows of the interval."
    owner: str = DEVICE
    "Device or worker in whose memory the block lies."

    @property
    def peer(self) -> int:
        """Rank of the worker that needs the rows of a sent or returned block."""
        return self.dst_interval

    @property
    def whole(self) -> Block:
        """The block with all rows of the interval."""
        return self if self.needed_by is None else self._replace(needed_by=None)

    @property
    def is_assembled(self) -> bool:
        """Whether the block has the rows of all intervals, which are made interval by interval."""
        return self.interval == ALL and self.kind != "edges"

    @property
    def outside(self) -> Block:
        """The block as it lies outside of the devices: with all rows, and without an owner, unless each device assembles it for itself."""
        whole = self.whole
        return whole if whole.owner == DEVICE or whole.is_assembled else whole._replace(owner=DEVICE)

    @property
    def label(self) -> str:
        """The block in a few words, for people."""
        name = f"of stage {self.stage}" if self.kind == "stage_saved" else self.name
        hop = f" of hop {self.hop}" if self.kind == "edges" and self.hop else ""
        return f"{self.kind} {name}{hop}: {_place(self.interval, self.dst_interval)}"


class Exchanged(NamedTuple):
    """The blocks of an exchange between workers, outside of the device."""

    value: str
    "Name of the value. Its rows travel, or with ``is_grad`` the gradients of its rows."
    sends: tuple[Block, ...]
    "Blocks that other workers get, in the order in which they are complete."
    receives: tuple[Block, ...]
    "Blocks that other workers send."
    is_grad: bool = False
    "Whether the gradients of the value's rows travel, and not the rows."

    @property
    def key(self) -> tuple[str, bool]:
        """What names the exchange in an epoch."""
        return self.value, self.is_grad


@dataclass(frozen=True, slots=True)
class Step:
    """A computation on an interval or on a chunk.

    - transform: run a stage on an interval. transform_loss: run the last stage, the loss of its rows, and their gradients.
    - collect: copy the rows of an interval that other workers need, for each of them.
    - begin_exchange: let rows of a value, or of its gradient, travel from worker to worker from now on, while the steps that follow run.
      send_rows: let those go that are complete, once they lie outside of the device. exchange: wait for the rows of the halo, of a value.
    - gather: accumulate a chunk into a state. finish: turn a state into the gathered rows.
    - assemble: copy the rows of an interval into an undivided block: where several devices make its rows, or slices take turns in memory.
    - means: add the rows of an interval, or the moments of edges that it has gathered, to the means over all rows that a BatchNorm reads.
      share_means: make them known to all stages and gathers, and add those of other workers. share_means_grad: add the gradients of other
      workers. means_grad: add the gradient through the means to that of what the interval has added to them.
    - share_grads: add the gradients of the parameters, where several devices have added up those of their intervals. This step and the two
      others that share add what each device has, in the order of the devices, and give all of them the sum.
    - store_constant: store rows that are the same in every epoch, for all epochs. output: give rows of the result to the caller.
    - return: control returns to the caller, who starts the backward.
    - prepare_grad: compute the tensors of an interval that a gather's backward passes read.
    - transform_grad, gather_grad, finish_grad: the gradients of a stage, a chunk and a state.
    - exchange_grad: wait for the gradients of own rows that other workers have in their halos. collect_grad: add what was received to the
      gradient of an interval.
    - output_grad: give rows of the features' gradient to the caller.
    """

    kind: StepKind
    "Kind of computation."
    number: int
    "Number of the stage, or of the link between stages."
    interval: int
    "Number of the interval that the step works on; of a chunk, number of the source interval."
    dst_interval: int = -1
    "Number of the chunk's destination interval; -1 for a step that works on no chunk."
    backward_pass: int = 0
    "Number of the pass within a gather's backward, counted from 1; 0 for a step of the forward, and for other steps."
    reads: tuple[Block, ...] = ()
    "Blocks whose content the step needs."
    writes: tuple[Block, ...] = ()
    "Blocks that the step makes or changes."
    temporary_bytes: int = 0
    "Peak bytes of temporary memory while the step runs."
    resource: str = DEVICE
    "Device or worker that computes; it owns the step's blocks."
    after: tuple[int, ...] = ()
    "Numbers of operations that must end before the step starts, in addition to those that follow from blocks."
    exchanged: Exchanged | None = None
    "Blocks that travel between workers: all of them where an exchange begins, else those that go or have come; None for other steps."

    @property
    def sends(self) -> tuple[Block, ...]:
        """Blocks whose content is read from now on, where it lies outside of the device."""
        return () if self.exchanged is None or self.kind == "begin_exchange" else self.exchanged.sends

    @property
    def receives(self) -> tuple[Block, ...]:
        """Blocks that lie outside of the device from now on."""
        return () if self.exchanged is None or self.kind == "begin_exchange" else self.exchanged.receives

    @property
    def blocks(self) -> tuple[Block, ...]:
        """The blocks that the step reads or writes, each once."""
        return tuple(dict.fromkeys((*self.reads, *self.writes)))

    @property
    def owner(self) -> str:
        """The device or worker that computes."""
        return self.resource

    @property
    def label(self) -> str:
        """The step in a few words, for people."""
        return f"{self.kind} {self.number}: {self.place}"

    @property
    def place(self) -> str:
        """The interval, or the two of a chunk, in a few words."""
        return _place(self.interval, self.dst_interval)


MoveKind = Literal["load", "store", "drop", "send", "receive", "all-reduce"]


class Move(NamedTuple):
    """A block is copied, or leaves its owner's memory.

    - load: copy the block into its owner's memory, from outside, or from the memory of a peer. store: copy the block out. drop: free the
      block's memory.
    - send: the owner copies the block to a peer. The block takes memory of the peer from the start of the send.
    - receive: a block that a peer has sent becomes readable at its owner.
    - all-reduce: the owners of a block of that name sum their blocks, and each gets the sum.
    """

    kind: MoveKind
    "Kind of move."
    block: Block
    "Block that is moved."
    num_bytes: int
    "Size of the block; of an all-reduce, the bytes that this owner sends."
    peer: str = ""
    "Receiver of a send, sender of a receive, or device from whose memory a load copies; empty for other moves."
    resource: str = ""
    "Resource that the move occupies; by default the owner's copy engine for loads and stores, and the owner otherwise."
    after: tuple[int, ...] = ()
    "Numbers of operations that must end before the move starts, in addition to those that follow from blocks."

    @property
    def occupies(self) -> str:
        """The resource that the move occupies, the default included."""
        return (self.kind != "load" and self.resource) or self.owner + _ENGINES.get(self.kind, "")

    @property
    def link(self) -> str:
        """The link that the move goes over."""
        return self.resource or self.occupies

    @property
    def owner(self) -> str:
        """The owner of the block."""
        return self.block.owner

    @property
    def source(self) -> Block | None:
        """The block that a load from a peer copies; None for other moves."""
        return self.block._replace(owner=self.peer) if self.peer and self.kind == "load" else None

    @property
    def label(self) -> str:
        """The move in a few words, for people."""
        return f"{self.kind} {self.block.label}"


_ENGINES = {"load": ".copy_in", "store": ".copy_out"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """Steps and moves in the order in which they begin.

    A load ends before the first step that reads its block, and a store before the block is written again. A store may end
    after the drop of its block. A block counts towards the budget from its load or first write to its drop.
    """

    operations: tuple[Step | Move, ...]
    "Steps and moves, in order."
    bounds: tuple[int, ...]
    "First vertex id of each interval, and the number of vertices."
    budget_bytes: int
    "Bytes that the blocks and temporaries in the memory of each device must not exceed."
    peak_bytes: int
    "Most bytes of blocks and temporaries in the memory of a device."
    initial: frozenset[Block] = frozenset()
    "Blocks that lie outside of the devices when the plan starts, or that the caller brings, by their names there."
    staying: tuple[Move, ...] = ()
    """Loads of the blocks that stay in memory from epoch to epoch (:mod:`sagann.plan.staying`), made before the first one. Among the
    operations, a load of such a block copies nothing, and a drop frees nothing."""
    waits: tuple[tuple[int, ...], ...] = ()
    """For each operation, the numbers of operations on other resources that end before it starts (:mod:`sagann.plan.waits`). Empty for a plan
    whose copies the computing cores make, and for one that is never executed."""
    levels: tuple[int, ...] = ()
    "For each operation, the level of its segment (:mod:`sagann.plan.segments`). Empty for one device, whose epoch is one segment."

    def vertices(self, interval: int) -> slice:
        """The ids of an interval's vertices, or of all."""
        if interval == ALL:
            return slice(0, self.bounds[-1])
        return slice(self.bounds[interval], self.bounds[interval + 1])

    @property
    def room_bytes(self) -> int:
        """Bytes of the budget beside the blocks that stay."""
        return self.budget_bytes - sum(load.num_bytes for load in self.staying)

    @property
    def loaded_bytes(self) -> int:
        """Bytes copied to the devices from outside in an epoch."""
        return sum(each.num_bytes for each in self._moves("load") if not each.peer)

    @property
    def stored_bytes(self) -> int:
        """Bytes copied from the device."""
        return sum(each.num_bytes for each in self._moves("store"))

    @property
    def picked_bytes(self) -> int:
        """Bytes of picked rows among the bytes copied to the device."""
        return sum(each.num_bytes for each in self._moves("load") if each.block.needed_by is not None)

    @property
    def moved_bytes(self) -> int:
        """Bytes copied to the device and from it."""
        return self.loaded_bytes + self.stored_bytes

    @property
    def spilled_bytes(self) -> int:
        """Bytes of the blocks that are stored at some time; each block counts once."""
        return sum({each.block.outside: each.num_bytes for each in self._moves("store")}.values())

    @property
    def num_intervals(self) -> int:
        """Number of intervals, P."""
        return len(self.bounds) - 1

    def _moves(self, kind: MoveKind) -> Iterator[Move]:
        return (each for each in self.operations if isinstance(each, Move) and each.kind == kind)


def uncut_ends(src: int, dst: int) -> tuple[bool, bool]:
    """Whether a chunk has the edges of all sources, and those of all destinations."""
    return src == ALL, dst == ALL


def _place(interval: int, dst_interval: int) -> str:
    numbers = [interval] if dst_interval == -1 else [interval, dst_interval]
    return " to ".join("all" if number == ALL else str(number) for number in numbers)


@dataclass(frozen=True, kw_only=True, slots=True)
class Beside:
    """What plans and their execution must know of the memory beside a device."""

    copies_beside: bool
    """Whether copies run beside steps. If not, both memories are one, and the cores that compute copy: nothing is loaded ahead, and edges and
    constants that only stages read are read in place."""
    has_engines: bool = False
    """Whether a device's own engines copy. Memory is reused in the order of the lane that computes, so a drop waits for its block's store, and
    tensors of the host are copied from where they lie."""
    grain: Grain | None = None
    "Size of the items into which kernels cut a pass, where the items take memory that is planned."
    machine: Machine | None = None
    "Rates of a device by which plans are compared, as epochs run that are recorded; None where bytes of files decide."

    @property
    def flops_per_byte(self) -> float:
        """Operations of matrix products in the time in which a byte is copied; of a processor and a disk for example at 100 GFLOP/s and 3 GB/s."""
        if self.machine is None or self.machine.host_to_device_bytes is None:
            return 32.0
        return self.machine.matmul_flops / self.machine.host_to_device_bytes

    @property
    def counts_process(self) -> bool:
        """Whether the budget holds for the whole process, because blocks lie in files."""
        return self.copies_beside and not self.has_engines

    def reads_in_place(self, budget_bytes: int) -> bool:
        """Whether edges and constants are read in place and take no room. Without a budget all blocks are, but they count."""
        return not self.copies_beside and budget_bytes < UNLIMITED


MEMORY = Beside(copies_beside=False)
"The memory of the processor that computes."
FILES = Beside(copies_beside=True)
"Files beside a processor."
