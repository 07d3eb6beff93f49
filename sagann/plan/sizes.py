"""Sizes: bytes of blocks, and of what steps take beside them. Known before anything is made."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from sagann.compiler.model_program import Gather, ModelProgram
from sagann.graph.topology import Topology
from sagann.graph.widths import id_dtype, local_id_dtype
from sagann.kernels.edge.function import EdgeFunction
from sagann.kernels.edge.kinds import kind_of, reduced_results
from sagann.kernels.edge.work import Grain, most_items, most_slots, most_splits
from sagann.kernels.memory import SMALLEST_BYTES, allocated_bytes
from sagann.kernels.packed import packed_bytes
from sagann.plan.gradients import Gradients
from sagann.plan.stage_size import StageSize
from sagann.plan.steps import Block

CSC, CSR, NUMBERED = "csc", "csr", "numbered csr"
"Forms of a chunk: its edges by destination, by source, and by source with their ids."
PICKED_CSC, PICKED_CSR, PICKED_NUMBERED = (
    "csc of picked sources",
    "csr of picked destinations",
    "numbered csr of picked",
)
"The same, with the other end's rows counted among those that the chunk needs."
PICKED = MappingProxyType({CSC: PICKED_CSC, CSR: PICKED_CSR, NUMBERED: PICKED_NUMBERED})
"By the form that counts all rows."
# Of an id, and of a position that is made of it.
_PICK_BYTES = 4 + 8
_OFFSET_BYTES = 8
# Per row, while work is divided: a few int64.
_WALK_BYTES = 40
# Of an item, a merge and a row that is cut, on a device: int64 fields.
_ITEM_BYTES, _MERGE_BYTES, _SPLIT_BYTES = 40, 24, 8
# Copies of the rows that were cut, while their pieces are merged into what they were before.
_MERGED_AT_ONCE = 8
# Of matrix products, in the time in which a byte is copied: 100 GFLOP/s and 3 GB/s, say.
_FLOPS_PER_BYTE = 32
# A loss on rows of the result: logarithms of probabilities, their gradient, and the rows' own, with one to spare.
_LOSS_TENSORS = 4


@dataclass(frozen=True, kw_only=True, slots=True)
class HopSize:
    """The chunks of one hop, as far as sizes go."""

    num_edges: int
    "Number of edges in the whole hop."
    edges: Mapping[tuple[int, int], int]
    "Edges of each chunk that has any, by source and destination interval."
    data_bytes: tuple[int, ...]
    "Bytes per edge of each of the edge data."
    id_bytes: int
    "Bytes of a vertex id in the whole hop."
    grain: Grain | None = None
    """Into which items kernels cut a pass, where these are copied with the edges and take memory of the device; None
    where they lie on the host."""
    are_topologies: bool = False
    "Whether chunks are read where they lie, as topologies: with wider ids and offsets, and the ids of the edges in CSR."
    needed: Mapping[tuple[str, int, int], int] = field(default_factory=dict)
    """By form (csc or csr, of picked rows), source and destination interval: rows of the other end that a chunk needs, where
    these may be picked."""

    @classmethod
    def of(
        cls,
        topology: Topology,
        edges: Mapping[tuple[int, int], int],
        needed: Mapping[tuple[str, int, int], int] | None = None,
        *,
        are_topologies: bool = False,
    ) -> HopSize:
        """The size of a topology whose chunks have so many edges."""
        data = topology.edge_data.values()
        return cls(
            num_edges=topology.num_edges,
            edges=edges,
            data_bytes=tuple(rows.element_size() * rows[:1].numel() for rows in data) if edges else (),
            id_bytes=topology.indices.element_size(),
            are_topologies=are_topologies,
            needed=needed or {},
        )

    def chunk_bytes(self, rows: Sequence[int], src: int, dst: int, form: str) -> int:
        """What a chunk takes.

        Args:
            rows: vertices of each interval.
            src: number of the source interval.
            dst: number of the destination interval.
            form: one of the above.
        """
        edges = self.edges[src, dst]
        near, far = (rows[dst], rows[src]) if is_by_destination(form) else (rows[src], rows[dst])
        position_bytes = id_dtype(edges).itemsize
        offset_bytes = _OFFSET_BYTES if self.are_topologies else position_bytes
        id_bytes = self.id_bytes if self.are_topologies else local_id_dtype(far).itemsize
        has_ids = form in (NUMBERED, PICKED_NUMBERED) or (form == CSR and self.are_topologies)
        grouped = packed_bytes(
            [
                offset_bytes * (near + 1),
                edges * id_bytes,
                *(edges * each for each in self.data_bytes),
                *([] if self.grain is None else self._cut_bytes(near, edges, self.grain)),
            ]
        )
        return grouped + (packed_bytes([edges * position_bytes]) if has_ids else 0)

    def may_pick(self, chunk: Block) -> bool:
        """Whether rows may be picked for a chunk."""
        return _needed_key(chunk) in self.needed

    def num_picked(self, chunk: Block) -> int:
        """How many rows of the other end are picked for a chunk."""
        return self.needed[_needed_key(chunk)]

    def _cut_bytes(self, rows: int, edges: int, grain: Grain) -> list[int]:
        """Items, the rows that are cut, and the merges of both: :class:`sagann.kernels.edge.gpu.cut.Cut`, at most."""
        items, slots = most_items(rows, edges, grain), most_slots(rows, edges, grain)
        merges = _MERGE_BYTES * (most_splits(rows, edges, grain) + _merged(slots) + _merged(items) + 1)
        return [_ITEM_BYTES * items, _SPLIT_BYTES * most_splits(rows, edges, grain), merges]


def is_by_destination(form: str) -> bool:
    """Whether a chunk's edges are grouped by destination, not by source."""
    return form in (CSC, PICKED_CSC)


def _needed_key(chunk: Block) -> tuple[str, int, int]:
    return PICKED_CSC if is_by_destination(chunk.name) else PICKED_CSR, chunk.interval, chunk.dst_interval


class BlockSizes:
    """Sizes of the blocks of a captured model over a chunk grid.

    Args:
        program: the model.
        hops: what its gathers go over, by numbers of hops.
        rows: vertices of each interval.
        gradients: what its backward computes.
        edges_in_place: whether edges are read where they lie, and take no room.
        values_in_place: names of the values of which the same holds: of :func:`constants_of_stages`.
    """

    def __init__(
        self,
        program: ModelProgram,
        hops: Mapping[int, HopSize],
        rows: Sequence[int],
        gradients: Gradients,
        *,
        edges_in_place: bool = False,
        values_in_place: frozenset[str] = frozenset(),
    ) -> None:
        self.program = program
        self.hops = hops
        self.rows = rows
        self.gradients = gradients
        self._edges_in_place = edges_in_place
        self._values_in_place = values_in_place
        self._gathers = {gather.result: gather for gather in program.gathers}
        self._stages = [StageSize.of(stage, gradients) for stage in program.stages]
        self._bytes: dict[Block, int] = {}

    def of(self, block: Block) -> int:
        """What a block takes of the device's memory; nothing where it is read in place."""
        if block not in self._bytes:
            self._bytes[block] = 0 if self.is_in_place(block) else self.content_of(block)
        return self._bytes[block]

    def is_in_place(self, block: Block) -> bool:
        """Whether a block is read where it lies."""
        if block.kind == "edges" and self._edges_in_place:
            # Where rows are picked for a chunk, who reads them all needs other numbers than those that are kept.
            return block.name in PICKED.values() or not self.hops[block.number].may_pick(block)
        if block.kind == "value" and block.name == "x" and self.program.x_is_sparse:
            return True
        return block.kind == "value" and block.needed_by is None and block.name in self._values_in_place

    def result_bytes(self, gather: Gather, part: int = 0) -> list[int]:
        """Bytes of a row of each result of a gather's forward, or of a pass of its backward, counted from 1."""
        ids = id_dtype(self.hops[gather.hop].num_edges)
        return [
            math.prod(result.shape) * (result.dtype or ids).itemsize if result.rows == "row" else 0
            for result in reduced_results(self._function(gather, part))
        ]

    def row_bytes(self, name: str) -> int:
        """Of a row of a value."""
        form = self.program.forms[name]
        return math.prod(form.shape) * form.dtype.itemsize

    def running(self, number: int, interval: int) -> int:
        """Taken while a stage runs, beside what it reads and gives."""
        return allocated_bytes(self.rows[interval] * self._stages[number].peak)

    def differentiating(self, number: int, interval: int, *, of_loss: bool = False, saved: bool = False) -> int:
        """Taken while a stage is run once more and differentiated, beside what it reads and gives.

        Args:
            number: of the stage.
            interval: on whose rows.
            of_loss: whether the gradient is that of a loss on the stage's result.
            saved: whether it need not run once more.
        """
        stage = self._stages[number]
        row = (0 if saved else stage.computed) + 2 * stage.largest
        if of_loss:
            row += _LOSS_TENSORS * self.row_bytes(self.program.output)
        # A gradient that comes from several operators is summed into a new tensor.
        row += max((self.row_bytes(name) for name in self._read(number) if self.gradients.has(name)), default=0)
        is_small = self.rows[interval] * stage.largest < SMALLEST_BYTES
        return allocated_bytes(self.rows[interval] * row) + (0 if is_small else stage.weight)

    def is_worth_keeping(self, number: int) -> bool:
        """Whether what a stage's gradient reads is copied out and in again in less time than the stage runs once more."""
        stage = self._stages[number]
        return 2 * sum(stage.kept) * _FLOPS_PER_BYTE < stage.flops

    def walking(self, gather: Gather, src: int, dst: int, part: int = 0) -> int:
        """Taken while a gather's forward, or a pass of its backward, counted from 1, goes over a chunk.

        On the CPU how its rows are cut into work; on a device what their pieces give until they are merged.
        """
        hop, rows = self.hops[gather.hop], max(self.rows[src], self.rows[dst])
        if hop.grain is None:
            return _WALK_BYTES * rows
        edges = hop.edges[src, dst]
        slots, items = most_slots(rows, edges, hop.grain), most_items(rows, edges, hop.grain)
        of_rows = slots + _merged(slots) + _MERGED_AT_ONCE * most_splits(rows, edges, hop.grain)
        taken = 0
        for result in reduced_results(self._function(gather, part)):
            size = math.prod(result.shape) * (result.dtype or id_dtype(hop.num_edges)).itemsize
            taken += size * (of_rows if result.rows == "row" else 2 * items + _merged(items))
        return allocated_bytes(taken)

    def arriving(self, gather: Gather, interval: int) -> int:
        """Taken while a gather's backward is prepared: in the type that is computed in, like what arrives."""
        return allocated_bytes(self.rows[interval] * sum(self._result_bytes(gather)))

    def _read(self, number: int) -> list[str]:
        """The values of vertices that a stage reads."""
        return [name for name in self.program.stages[number].inputs if name not in self.gradients.shared]

    def _rows_of(self, block: Block) -> int:
        """How many rows a block has."""
        chunk = block.needed_by
        if chunk is None:
            return self.rows[block.interval]
        return self.hops[chunk.number].num_picked(chunk)

    def content_of(self, block: Block) -> int:
        """A block's size, wherever it is."""
        rows = self._rows_of(block)
        # Who picks rows holds their ids meanwhile.
        ids = _PICK_BYTES * rows if block.needed_by is not None else 0
        return ids + self._content(block, rows)

    def _content(self, block: Block, rows: int) -> int:
        if block.kind in ("value", "grad"):
            return allocated_bytes(rows * self.row_bytes(block.name))
        if block.kind == "stage_saved":
            return packed_bytes(rows * size for size in self._stages[block.number].kept)
        if block.kind == "edges":
            return self.hops[block.number].chunk_bytes(self.rows, block.interval, block.dst_interval, block.name)
        gather = self._gathers[block.name]
        if block.kind == "edge_grad":
            return self.hops[gather.hop].edges[block.interval, block.dst_interval] * self._handed_bytes(gather)
        if block.kind == "grad_inputs":
            return sum(allocated_bytes(rows * size) for size in self._incoming_bytes(gather))
        results = self.result_bytes(gather, block.number)
        if block.kind == "gather_saved":
            results = [results[position] for position in gather.edges.gathering.keeps]
        return sum(allocated_bytes(rows * result) for result in results)

    def _result_bytes(self, gather: Gather) -> list[int]:
        """Bytes of a row of each accumulator's result, in the type that is computed in."""
        sizes = self.result_bytes(gather)
        return [sizes[each.state.start] for each in gather.edges.gathering.reduced]

    def _incoming_bytes(self, gather: Gather) -> list[int]:
        """Bytes of a row of each tensor that the backward's passes read of destinations; half precision is widened."""
        function, ids = self._function(gather, 0), id_dtype(self.hops[gather.hop].num_edges).itemsize
        sizes = []
        for output in function.outputs:
            shapes = {
                "value": function.value(output.values[-1]).shape,
                "score": function.value(output.values[0]).shape,
            }
            width = 8 if kind_of(function.value(output.values[-1])) == "f8" else 4
            sizes += [
                math.prod(shapes[read.of]) * (ids if read.is_edge else width) for read in output.reduction.reads
            ]
        return sizes

    def _function(self, gather: Gather, part: int) -> EdgeFunction:
        if part:
            return self.gradients.passes(gather)[part - 1].function
        assert gather.edges.function is not None
        return gather.edges.function

    def _handed_bytes(self, gather: Gather) -> int:
        functions = [step.function for step in self.gradients.passes(gather)]
        values = [
            function.value(output.values[0])
            for function in functions
            for output in function.outputs
            if output.reduce == "edge"
        ]
        return sum(math.prod(value.shape) * value.dtype.itemsize for value in values)


def constants_of_stages(program: ModelProgram) -> frozenset[str]:
    """Names of values that no epoch changes, and that no epoch's edges read here and there."""
    read = {
        name
        for gather in program.gathers
        for name, side in zip(gather.inputs, gather.edges.sides, strict=True)
        if side in ("src", "dst") and not gather.constant
    }
    return frozenset(["x", *(gather.result for gather in program.gathers if gather.constant)]) - read


def _merged(slots: int) -> int:
    """What a tree of merges adds to so many slots, at most: two groups of a row that has just more than one of them."""
    return slots // 16 + 2
