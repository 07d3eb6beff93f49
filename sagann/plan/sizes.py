"""Sizes: bytes of a model's blocks over a chunk grid, and peak bytes of temporary memory of its steps. Nothing is made for it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from operator import getitem

from torch import Tensor, fx

from sagann.compiler.model_program import Gather, ModelProgram
from sagann.compiler.program import Stage
from sagann.compiler.trace import ROWS, is_rows
from sagann.graph.rows import id_dtype
from sagann.kernels.dense import NUM_PARTS, add_, linear, relu_
from sagann.kernels.edge.function import kind_of
from sagann.kernels.edge.work import HOST_GRAIN, most_items, most_slots, most_splits
from sagann.kernels.memory import SMALLEST_BYTES, allocated_bytes
from sagann.kernels.packed import packed_bytes
from sagann.kernels.row_dropout import dropout
from sagann.plan.gradients import Gradients
from sagann.plan.hops import PICKED, HopSize, kept_forms, most_merged
from sagann.plan.intervals import PartIntervals
from sagann.plan.steps import ALL, UNLIMITED, Beside, Block, Step, uncut_ends

# Operators by what their gradient reads. The result of these is a view of an operand,
_ALIASES = frozenset(
    ["view", "reshape", "unsqueeze", "squeeze", "expand", "slice", "permute", "select", "t", "detach"]
)
# the gradient of these reads the result alone,
_FROM_RESULT = frozenset(["relu", "sigmoid", "tanh", "exp", "sqrt", "_softmax"])
# and the gradient of these reads nothing. Other gradients are taken to read all operands and the result.
_FROM_NOTHING = frozenset(["add", "sub", "neg", "cat", "split_with_sizes_copy", "sum"])


@dataclass(frozen=True, kw_only=True, slots=True)
class StageSize:
    """Bytes per row of a stage's values, and bytes of its largest weight."""

    computed: int
    "Bytes per row of all values that the stage computes."
    kept: tuple[int, ...]
    "Bytes per row of each of these values that the gradient reads, without results."
    results: Mapping[str, int]
    "Bytes per row of each result that the gradient reads, by name."
    largest: int
    "Bytes per row of the largest value."
    flops: int
    "Floating-point operations per row in matrix products."
    peak: int
    "Most bytes per row that live at the same time, without inputs and outputs."
    weight: int
    "Bytes of the parts that are summed to the largest gradient of a weight; not per row."

    @classmethod
    def of(cls, stage: Stage, gradients: Gradients) -> StageSize:
        """Measure a stage; ``gradients`` says which values get a gradient."""
        computed = [node for node in stage.module.graph.nodes if node.op == "call_function"]
        each = [bytes_per_row(node) for node in computed]
        maps = [node.args[1] for node in computed if node.target is linear]
        weights = [weight.meta["val"] for weight in maps if isinstance(weight, fx.Node)]
        kept, results = _kept(stage, gradients)
        return cls(
            computed=sum(each),
            kept=tuple(kept),
            results=results,
            largest=max(each, default=0),
            flops=sum(2 * weight.numel() for weight in weights),
            peak=_peak_bytes(stage, computed),
            weight=NUM_PARTS * max((weight.numel() * weight.element_size() for weight in weights), default=0),
        )


def _kept(stage: Stage, gradients: Gradients) -> tuple[list[int], dict[str, int]]:
    """Most bytes per row of each tensor that a stage computes and its gradient reads: of those that are no results, and of results by name."""
    wanted = gradients.nodes(stage)
    alias: dict[fx.Node, fx.Node] = {}
    found: dict[fx.Node, int] = {}
    for node in stage.module.graph.nodes:
        if node.op == "placeholder":
            # The memory of an input is not the stage's.
            found[node] = 0
            continue
        if node.op != "call_function" or node not in wanted:
            continue
        name = str(getattr(node.target, "overloadpacket", node.target)).rpartition(".")[2]
        if name in _ALIASES:
            alias[node] = alias.get(node.all_input_nodes[0], node.all_input_nodes[0])
            continue
        if node.target is linear:
            read = [node.args[0]] if node.args[1] in wanted else []
        elif node.target is relu_ or name in _FROM_RESULT:
            read = [node]
        else:
            reads_nothing = name in _FROM_NOTHING or node.target in (add_, dropout, getitem)
            read = [] if reads_nothing else [*node.all_input_nodes, node]
        for each in read:
            assert isinstance(each, fx.Node)
            root = alias.get(each, each)
            found.setdefault(root, bytes_per_row(root))
    results: dict[str, int] = {}
    (outputs,) = (node.args[0] for node in stage.module.graph.nodes if node.op == "output")
    for name, node in zip(stage.outputs, outputs, strict=True):
        root = alias.get(node, node)
        # A part of a tensor, or one in another order, is a result apart.
        if found.get(root) == bytes_per_row(node) and node.meta["val"].is_contiguous():
            results[name] = found.pop(root)
    return [*filter(None, found.values())], results


def bytes_per_row(node: fx.Node) -> int:
    """Bytes of a row of a node's value, or of all its values; 0 for a value without rows."""
    value = node.meta.get("val")
    return sum(map(_value_bytes, value)) if isinstance(value, (tuple, list)) else _value_bytes(value)


def _value_bytes(value: object) -> int:
    if not isinstance(value, Tensor) or not any(map(is_rows, value.shape)):
        return 0
    return math.prod(value.shape) // ROWS * value.dtype.itemsize


def _peak_bytes(stage: Stage, computed: Sequence[fx.Node]) -> int:
    (results,) = (node.args[0] for node in stage.module.graph.nodes if node.op == "output")
    outputs = set(results) if isinstance(results, (tuple, list)) else set()
    last = {argument: index for index, node in enumerate(computed) for argument in node.all_input_nodes}
    alive: dict[fx.Node, int] = {}
    peak = 0
    for index, node in enumerate(computed):
        alive[node] = 0 if node in outputs else bytes_per_row(node)
        peak = max(peak, sum(alive.values()))
        alive = {each: size for each, size in alive.items() if last.get(each, -1) > index}
    return peak


FREE_BYTES = 32 << 20
"Bytes that a plan's own objects may take beside the budget."
# At most, Python objects of a step on a chunk, and of a chunk.
_STEP_BYTES, _CHUNK_BYTES = 1080, 1500
_SINGLE_BYTES = 4
# An id of a picked row, and the position that is made of it.
_PICK_BYTES = 4 + 8
# Per row, while a pass is divided into work on the CPU: a few int64.
_WALK_BYTES = 40
# Copies of the cut rows while their pieces are merged into the previous state.
_MERGED_AT_ONCE = 8
# A loss on rows of the result: logarithms of probabilities, their gradient, the gradient of the rows, and one to spare.
_LOSS_TENSORS = 4


class BlockSizes:
    """Sizes of the blocks of a captured model over a chunk grid.

    Edges that are read in place take no memory, nor do the values of ``values_in_place``, which are some of :func:`constants_of_stages`.
    """

    def __init__(
        self,
        program: ModelProgram,
        hops: Mapping[int, HopSize],
        part: PartIntervals,
        gradients: Gradients,
        *,
        edges_in_place: bool = False,
        values_in_place: frozenset[str] = frozenset(),
    ) -> None:
        self.program = program
        self.part = part
        self.hops = hops
        self.gradients = gradients
        self.rows = part.rows
        "Number of vertices of each interval, and of all."
        self._edges_in_place = edges_in_place
        self._values_in_place = values_in_place
        self._gathers = {gather.result: gather for gather in program.gathers}
        self._stages = [StageSize.of(stage, gradients) for stage in program.stages]
        self._bytes: dict[Block, int] = {}

    def of(self, block: Block) -> int:
        """Bytes of a block in the device's memory; 0 where the block is read in place."""
        known = self._bytes.get(block)
        if known is None:
            known = self._bytes[block] = 0 if self.is_in_place(block) else self.content_of(block)
        return known

    def is_in_place(self, block: Block) -> bool:
        """Whether a block is read where it lies."""
        if block.kind == "edges" and self._edges_in_place:
            # A chunk for which rows may be picked is kept with ids of the picked rows, so reading all rows needs a copy.
            return block.name in PICKED.values() or not self.hops[block.hop].may_pick(block)
        if block.kind == "value" and block.name == "x" and self.program.x_is_sparse:
            return True
        return block.kind == "value" and block.needed_by is None and block.name in self._values_in_place

    def content_of(self, block: Block) -> int:
        """Bytes of a block, wherever it lies."""
        chunk = block.needed_by
        if chunk is None:
            return self._content(block, self.rows[block.interval])
        rows = self.hops[chunk.hop].num_picked(chunk)
        # The ids of the rows are held while the rows are picked.
        return _PICK_BYTES * rows + self._content(block, rows)

    def _content(self, block: Block, rows: int) -> int:
        if block.kind in ("value", "grad"):
            return allocated_bytes(rows * self.row_bytes(block.name))
        if block.kind == "stage_saved":
            stage, apart = self._stages[block.stage], self.saved_results(block.stage)
            beside = [size for name, size in stage.results.items() if name not in apart]
            return packed_bytes(rows * size for size in (*stage.kept, *beside))
        if block.kind in ("sent", "returned"):
            return allocated_bytes(self.part.sent[block.interval, block.peer] * self.row_bytes(block.name))
        if block.kind == "edges":
            return self.hops[block.hop].chunk_bytes(self.rows, block.interval, block.dst_interval, block.name)
        gather = self._gathers[block.name]
        if block.kind == "edge_grad":
            return self.hops[gather.hop].edges[block.interval, block.dst_interval] * self._edge_grad_bytes(gather)
        if block.kind == "grad_inputs":
            return sum(allocated_bytes(rows * size) for size in self._grad_input_bytes(gather))
        results = self._result_bytes(gather, block.backward_pass)
        if block.kind == "gather_saved":
            results = [results[position] for position in gather.edges.gathering.keeps]
        return sum(allocated_bytes(rows * result) for result in results)

    def rows_in(self, block: Block, interval: int) -> int:
        """Bytes of an interval's rows of a block, which may be undivided."""
        return self._content(block, self.rows[interval])

    def made_apart(self, writes: Iterable[Block], interval: int) -> int:
        """Bytes of what a step makes before it is copied into undivided blocks."""
        return sum(self.rows_in(block, interval) for block in writes if block.interval == ALL)

    def row_bytes(self, name: str) -> int:
        """Bytes of a row of a value."""
        form = self.program.forms[name]
        return math.prod(form.shape) * form.dtype.itemsize

    def widened_bytes(self, name: str, interval: int) -> int:
        """Bytes of the rows of a value in single precision, where they are in half; 0 where they are not."""
        form = self.program.forms[name]
        is_half = form.dtype.itemsize < _SINGLE_BYTES
        return self.rows[interval] * math.prod(form.shape) * _SINGLE_BYTES if is_half else 0

    def transform_bytes(self, number: int, interval: int) -> int:
        """Temporary bytes of a stage on an interval."""
        return allocated_bytes(self.rows[interval] * self._stages[number].peak)

    def transform_grad_bytes(
        self, number: int, interval: int, *, of_loss: bool = False, saved: bool = False
    ) -> int:
        """Temporary bytes of a stage's gradient, or of the gradient of a loss on the stage's result.

        The stage runs again unless the forward saved what the gradient reads.
        """
        stage = self._stages[number]
        row = (0 if saved else stage.computed) + 2 * stage.largest
        if of_loss:
            row += _LOSS_TENSORS * self.row_bytes(self.program.output)
        # A gradient that comes from several operators is summed into a new tensor.
        inputs = [name for name in self.program.stages[number].inputs if name not in self.gradients.shared]
        row += max((self.row_bytes(name) for name in inputs if self.gradients.has(name)), default=0)
        is_small = self.rows[interval] * stage.largest < SMALLEST_BYTES
        return allocated_bytes(self.rows[interval] * row) + (0 if is_small else stage.weight)

    def saved_results(self, number: int) -> tuple[str, ...]:
        """Names of the results that a stage's gradient reads where they lie, so that they are not saved besides. Undivided rows would stay for
        that."""
        names = self._stages[number].results
        return tuple(name for name in names if self.part.holding("value", name, 0) != ALL)

    def is_worth_keeping(self, number: int, flops_per_byte: float) -> bool:
        """Whether copying what a stage's gradient reads out and in takes less time than running the stage again, where so many operations take
        as long as a byte."""
        stage = self._stages[number]
        return 2 * sum((*stage.kept, *stage.results.values())) * flops_per_byte < stage.flops

    def gather_bytes(self, gather: Gather, src: int, dst: int, backward_pass: int = 0) -> int:
        """Temporary bytes of a pass over a chunk: of the forward, or of a backward pass, counted from 1.

        On the CPU the pass is divided into work by rows. The pieces of cut rows lie in memory until they are merged.
        """
        hop, function = self.hops[gather.hop], self.gradients.function(gather, backward_pass)
        rows = self.rows[dst if function.at == "dst" else src]
        edges = hop.edges[src, dst]
        of_rows = slots = most_slots(rows, edges, hop.grain or HOST_GRAIN)
        taken, of_totals = _WALK_BYTES * rows, 0
        if hop.grain is not None:
            items = most_items(rows, edges, hop.grain)
            of_rows += most_merged(slots) + _MERGED_AT_ONCE * most_splits(rows, edges, hop.grain)
            taken, of_totals = 0, 2 * items + most_merged(items)
        for result in function.reduced_results:
            size = math.prod(result.shape) * (result.dtype or id_dtype(hop.num_edges)).itemsize
            taken += size * (of_rows if result.rows == "row" else of_totals)
        return allocated_bytes(taken)

    def prepare_grad_bytes(self, gather: Gather, interval: int) -> int:
        """Temporary bytes of preparing a gather's backward: the results' gradients in the type that is computed in."""
        results = self._result_bytes(gather)
        row = sum(results[each.state.start] for each in gather.edges.gathering.reduced)
        return allocated_bytes(self.rows[interval] * row)

    def _result_bytes(self, gather: Gather, backward_pass: int = 0) -> list[int]:
        """Bytes of a row of each tensor of a gather state."""
        ids = id_dtype(self.hops[gather.hop].num_edges)
        return [
            math.prod(result.shape) * (result.dtype or ids).itemsize if result.rows == "row" else 0
            for result in self.gradients.function(gather, backward_pass).reduced_results
        ]

    def _grad_input_bytes(self, gather: Gather) -> list[int]:
        """Bytes of a row of each tensor that is made for the backward passes to read of destinations; half precision is widened."""
        function, ids = self.gradients.function(gather), id_dtype(self.hops[gather.hop].num_edges).itemsize
        found = []
        for each, output in zip(gather.edges.gathering.reduced, function.outputs, strict=True):
            shapes = {
                "value": function.value(output.values[-1]).shape,
                "score": function.value(output.values[0]).shape,
            }
            width = 8 if kind_of(function.value(output.values[-1])) == "f8" else 4
            reads = output.reduction.reads
            made = (
                reads[: len(reads) - len(each.accumulator.keeps)] if gather.edges.gathering.passes_kept else reads
            )
            found += [math.prod(shapes[read.of]) * (ids if read.is_edge else width) for read in made]
        return found

    def _edge_grad_bytes(self, gather: Gather) -> int:
        """Bytes per edge of the gradients that one backward pass leaves for another."""
        return sum(
            math.prod(value.shape) * value.dtype.itemsize
            for step in self.gradients.passes(gather)
            for output in step.function.outputs
            if output.reduce == "edge"
            for value in [step.function.value(output.values[0])]
        )


def plan_bytes(
    program: ModelProgram,
    hops: Mapping[int, HopSize],
    part: PartIntervals,
    gradients: Gradients,
    budget_bytes: int,
    beside: Beside,
) -> int:
    """Bytes of a plan's own objects that count towards the budget: those beyond :data:`FREE_BYTES`.

    The objects are steps, moves, and chunks with their files. They count where the budget holds for the process.
    """
    if not beside.counts_process or budget_bytes >= UNLIMITED:
        return 0
    kept = kept_forms(part)
    num_visited = {number: part.num_own if part.undivided else len(hop.edges) for number, hop in hops.items()}
    num_steps = sum((1 + len(gradients.passes(each))) * num_visited[each.hop] for each in program.gathers)
    if part.slice_lanes:
        # Undivided rows are put together for a forward and for a backward.
        num_steps += 2 * len(part.undivided) * part.num_own
    num_chunks = sum(uncut_ends(*at) in kept for hop in hops.values() for at in hop.edges)
    if part.undivided and any(gather.constant for gather in program.gathers):
        # What is gathered once has a square grid of its own, which may not have been cut yet.
        num_chunks += len(hops) * part.num_own**2
    return max(0, _STEP_BYTES * num_steps + _CHUNK_BYTES * num_chunks - FREE_BYTES)


def needed_bytes(steps: Sequence[Step], bytes_of: Callable[[Block], int], *, ahead: bool = False) -> int:
    """The least budget that the steps fit: the bytes of the step that needs most.

    With ``ahead``, the blocks that the next step reads fit too, so that they are loaded while the step runs. What a pass reads undivided stays
    from its first chunk to its last.
    """
    most = 0
    for step, later, staying in zip_longest(steps, steps[1:], _staying(steps)):
        blocks = {*step.blocks, *staying}
        temporary = step.temporary_bytes
        if ahead and later is not None:
            blocks |= set(later.reads)
            temporary = max(temporary, later.temporary_bytes)
        most = max(most, temporary + sum(map(bytes_of, blocks)))
    return most


def _staying(steps: Sequence[Step]) -> list[tuple[Block, ...]]:
    """For each step, the undivided blocks that the pass under way reads."""
    passes = [
        (step.kind, step.number, step.backward_pass) if step.kind in ("gather", "gather_grad") else None
        for step in steps
    ]
    last = {key: number for number, key in enumerate(passes)}
    found: list[tuple[Block, ...]] = []
    staying: tuple[Block, ...] = ()
    until = -1
    for number, (step, key) in enumerate(zip(steps, passes, strict=True)):
        if key is not None:
            staying = tuple(block for block in step.reads if block.is_assembled)
            until = last[key]
        found.append(staying if number <= until else ())
    return found


def constants_of_stages(program: ModelProgram) -> frozenset[str]:
    """Names of values that are the same in every epoch and that only stages read, no pass over edges of an epoch."""
    read = {
        name
        for gather in program.gathers
        for name, side in zip(gather.inputs, gather.edges.sides, strict=True)
        if side in ("src", "dst") and not gather.constant
    }
    return frozenset(["x", *(gather.result for gather in program.gathers if gather.constant)]) - read
