"""Schedule: the steps of an epoch of a captured model over a chunk grid, before anything is placed.

Forward in column order: all chunks into a destination interval, then the next stage on it at once. Backward in row
order: all chunks out of a source interval, then the stage before on it at once. In this way a state, and what follows
from it, is made while it lies in memory.

References:
    Ma et al., NeuGraph, USENIX ATC 2019, Sec. 3.2; Ma et al., NGra, 2018, Sec. 3.1.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor, fx

from sagann.compiler.model_program import Gather, ModelProgram
from sagann.compiler.program import Stage
from sagann.compiler.trace import ROWS, is_rows
from sagann.graph.widths import id_dtype
from sagann.kernels.edge.function import EdgeFunction
from sagann.kernels.edge.kinds import reduced_results
from sagann.plan.intervals import sizes
from sagann.plan.steps import Block, Step

CSC, CSR = "csc", "csr"
_OFFSET_BYTES = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class HopSize:
    """The chunks of one hop, as far as sizes go."""

    num_edges: int
    "Of the whole hop."
    edges: Mapping[tuple[int, int], int]
    "Edges of each chunk that has any, by source and destination interval."
    data_bytes: int
    "Of an edge's data."
    id_bytes: int
    "Of a vertex id."


def chunk_bytes(hop: HopSize, rows: Sequence[int], src: int, dst: int, form: str) -> int:
    """What a chunk takes.

    Args:
        hop: whose chunk.
        rows: vertices of each interval.
        src: number of the source interval.
        dst: number of the destination interval.
        form: "csc", or "csr", which comes with both.
    """
    edges = hop.edges[src, dst]
    csc = _OFFSET_BYTES * (rows[dst] + 1) + edges * (hop.id_bytes + hop.data_bytes)
    if form == CSC:
        return csc
    # Destinations and positions of the edges; their data is put in order once more.
    return csc + _OFFSET_BYTES * (max(rows[src], rows[dst]) + 1) + edges * (2 * hop.id_bytes + hop.data_bytes)


class Schedule:
    """Steps and sizes of an epoch.

    Args:
        program: the model.
        hops: its hops.
        bounds: of the intervals.
        wanted_x: whether the features get a gradient.
        trained: names of the program's parameters that get one.
    """

    def __init__(
        self,
        program: ModelProgram,
        hops: Sequence[HopSize],
        bounds: Sequence[int],
        *,
        wanted_x: bool = False,
        trained: frozenset[str] | None = None,
    ) -> None:
        self.program = program
        self.hops = hops
        self.rows = sizes(tuple(bounds))
        self.wanted_x = wanted_x
        names = {name for name, _ in program.parameters}
        self.shared = names | set(program.param.outputs)
        self.trained = self.shared if trained is None else trained | set(program.param.outputs)

    @property
    def intervals(self) -> range:
        """Numbers of the intervals."""
        return range(len(self.rows))

    def initial(self) -> list[Block]:
        """The blocks that exist before the forward: features and edges."""
        blocks = [Block("value", "x", interval) for interval in self.intervals]
        for number in sorted({gather.hop for gather in self.program.gathers}):
            for src, dst in self.hops[number].edges:
                blocks += [Block("edges", form, src, dst, number) for form in (CSC, CSR)]
        return blocks

    def upstream(self) -> list[Block]:
        """The gradient of the result, which exists before the backward."""
        return [Block("grad", self.program.output, interval) for interval in self.intervals]

    def epoch(self) -> Iterator[Step]:
        """Forward, the caller's loss, and backward."""
        yield from self.forward()
        yield Step(kind="loss", number=0, interval=0, reads=(), writes=())
        yield from self.backward()

    def forward(self) -> Iterator[Step]:
        """The steps of the forward."""
        for interval in self.intervals:
            yield from self._transform(0, interval)
        for number, gather in enumerate(self.program.gathers):
            for dst in self.intervals:
                yield from self._gather(number, gather, dst)
                yield from self._transform(number + 1, dst)

    def backward(self) -> Iterator[Step]:
        """The steps of the backward."""
        reached = {self.program.output}
        last = len(self.program.gathers)
        for interval in self.intervals:
            yield from self._transform_grad(last, interval, reached)
        self._reach(last, reached)
        for number in reversed(range(last)):
            gather = self.program.gathers[number]
            done = False
            if gather.result in reached:
                for interval in self.intervals:
                    yield self._arrive(number, gather, interval)
                steps = gather.edges.backward.passes(self.wanted(gather)) if gather.edges.backward else ()
                for part, step in enumerate(steps):
                    done = part == len(steps) - 1
                    values = self._values_of(gather, step.results)
                    known = reached & set(values)
                    reached |= set(values)
                    for interval in self.intervals:
                        yield from self._gather_grad(number, gather, part, step.function, interval)
                        yield self._finish_grad(number, gather, part, step.function, interval, values, known)
                        if done:
                            yield from self._transform_grad(number, interval, reached)
            if not done:
                for interval in self.intervals:
                    yield from self._transform_grad(number, interval, reached)
            self._reach(number, reached)
        if self.wanted_x and "x" in reached:
            for interval in self.intervals:
                yield Step(
                    kind="emit_grad", number=0, interval=interval, reads=(Block("grad", "x", interval),), writes=()
                )

    def wanted(self, gather: Gather) -> tuple[str, ...]:
        """The inputs of a gather's edges that get a gradient, by the names of its stage."""
        return tuple(
            name
            for name, side, value in zip(gather.edges.stage.inputs, gather.edges.sides, gather.inputs, strict=True)
            if (side == "param" and value in self.trained) or (side in ("src", "dst") and self._has_gradient(value))
        )

    def bytes_of(self, block: Block) -> int:
        """A block's size."""
        if block.kind in ("value", "grad"):
            return self.rows[block.interval] * self._row_bytes(block.name)
        if block.kind == "edges":
            return chunk_bytes(self.hops[block.number], self.rows, block.interval, block.other, block.name)
        gather = next(each for each in self.program.gathers if each.result == block.name)
        if block.kind == "incoming":
            return self.rows[block.interval] * (self._row_bytes(block.name) + self._lse_bytes(gather))
        if block.kind == "handed":
            width = self._handed_bytes(gather)
            return self.hops[gather.hop].edges[block.interval, block.other] * width
        function = self._function(gather, block.number)
        results = self._result_bytes(gather, function)
        if block.kind == "extra":
            return self.rows[block.interval] * sum(results[1:])
        return self.rows[block.interval] * sum(results)

    def _transform(self, number: int, interval: int) -> Iterator[Step]:
        stage = self.program.stages[number]
        if stage.outputs:
            yield Step(
                kind="transform",
                number=number,
                interval=interval,
                reads=tuple(self._values(stage.inputs, interval)),
                writes=tuple(self._values(stage.outputs, interval)),
                temporary_bytes=self.rows[interval] * _peak_bytes(stage),
            )
        if self.program.output in stage.outputs:
            out = Block("value", self.program.output, interval)
            yield Step(kind="emit", number=number, interval=interval, reads=(out,), writes=())

    def _gather(self, number: int, gather: Gather, dst: int) -> Iterator[Step]:
        state = Block("state", gather.result, dst)
        begun = False
        for src in self.intervals:
            if (src, dst) not in self.hops[gather.hop].edges:
                continue
            reads = [Block("edges", CSC, src, dst, gather.hop), *self._edge_values(gather, src, dst)]
            yield Step(
                kind="gather",
                number=number,
                interval=src,
                other=dst,
                reads=(*reads, state) if begun else tuple(reads),
                writes=(state,),
            )
            begun = True
        writes = [Block("value", gather.result, dst)]
        if len(self._result_bytes(gather, self._function(gather))) > 1:
            writes.append(Block("extra", gather.result, dst))
        yield Step(
            kind="finish",
            number=number,
            interval=dst,
            reads=(state,) if begun else (),
            writes=tuple(writes),
        )

    def _transform_grad(self, number: int, interval: int, reached: set[str]) -> Iterator[Step]:
        stage = self.program.stages[number]
        upstream = [name for name in stage.outputs if name in reached]
        if not upstream:
            return
        found = [name for name in stage.inputs if name not in self.shared and self._has_gradient(name)]
        known = [name for name in found if name in reached]
        grads = [Block("grad", name, interval) for name in (*upstream, *known)]
        yield Step(
            kind="transform_grad",
            number=number,
            interval=interval,
            reads=(*self._values(stage.inputs, interval), *grads),
            writes=tuple(Block("grad", name, interval) for name in found),
            temporary_bytes=self.rows[interval] * _kept_bytes(stage),
        )

    def _reach(self, number: int, reached: set[str]) -> None:
        """Note what has a gradient once a stage's backward has run."""
        stage = self.program.stages[number]
        if any(name in reached for name in stage.outputs):
            reached |= {name for name in stage.inputs if name not in self.shared and self._has_gradient(name)}

    def _arrive(self, number: int, gather: Gather, interval: int) -> Step:
        reads = [Block("grad", gather.result, interval)]
        if gather.edges.accumulator == "softmax":
            reads.append(Block("value", gather.result, interval))
        return Step(
            kind="arrive",
            number=number,
            interval=interval,
            reads=tuple(reads),
            writes=(Block("incoming", gather.result, interval),),
            temporary_bytes=self.rows[interval] * self._row_bytes(gather.result),
        )

    def _gather_grad(
        self, number: int, gather: Gather, part: int, function: EdgeFunction, row: int
    ) -> Iterator[Step]:
        at_dst = function.at == "dst"
        state = Block("state", gather.result, row, number=part + 1)
        of_edges = any(output.reduce == "edge" for output in function.outputs)
        of_rows = any(output.reduce != "edge" for output in function.outputs)
        extra = [Block("extra", gather.result, 0)] if gather.edges.accumulator in ("max", "min", "softmax") else []
        begun = False
        for other in self.intervals:
            src, dst = (other, row) if at_dst else (row, other)
            if (src, dst) not in self.hops[gather.hop].edges:
                continue
            named = {given.name for given in function.inputs}
            reads = [Block("edges", CSC if at_dst else CSR, src, dst, gather.hop)]
            reads += self._edge_values(gather, src, dst, named)
            reads.append(Block("incoming", gather.result, dst))
            reads += [Block("extra", gather.result, dst) for _ in extra]
            handed = Block("handed", gather.result, src, dst)
            if any(name.endswith("_at_edges") for name in named):
                reads.append(handed)
            writes = [handed] if of_edges else []
            if of_rows:
                writes.append(state)
                reads += [state] if begun else []
            yield Step(
                kind="gather_grad",
                number=number,
                interval=src,
                other=dst,
                part=part,
                reads=tuple(reads),
                writes=tuple(writes),
            )
            begun = of_rows

    def _finish_grad(
        self,
        number: int,
        gather: Gather,
        part: int,
        function: EdgeFunction,
        row: int,
        values: Sequence[str],
        known: set[str],
    ) -> Step:
        at_dst = function.at == "dst"
        others = ((other, row) if at_dst else (row, other) for other in self.intervals)
        begun = any(at in self.hops[gather.hop].edges for at in others)
        of_rows = any(output.reduce != "edge" for output in function.outputs)
        grads = [Block("grad", value, row) for value in values]
        reads = [Block("grad", value, row) for value in values if value in known]
        if begun and of_rows:
            reads.append(Block("state", gather.result, row, number=part + 1))
        return Step(
            kind="finish_grad",
            number=number,
            interval=row,
            part=part,
            reads=tuple(reads),
            writes=tuple(grads),
            temporary_bytes=sum(self.bytes_of(block) for block in grads),
        )

    def _values_of(self, gather: Gather, results: Sequence[str]) -> list[str]:
        """The values whose gradients a pass of the backward gives."""
        found = dict(zip(gather.edges.stage.inputs, gather.inputs, strict=True))
        values = [found[name] for name in results if name in found and found[name] not in self.shared]
        return list(dict.fromkeys(values))

    def _values(self, names: Sequence[str], interval: int) -> list[Block]:
        return [Block("value", name, interval) for name in names if name not in self.shared]

    def _edge_values(self, gather: Gather, src: int, dst: int, named: set[str] | None = None) -> list[Block]:
        """The blocks that a chunk's edges read."""
        work = gather.edges
        read = {given.name for given in work.function.inputs} if named is None and work.function else named or set()
        blocks = []
        for name, side, value in zip(work.stage.inputs, work.sides, gather.inputs, strict=True):
            if side in ("src", "dst") and name in read:
                blocks.append(Block("value", value, src if side == "src" else dst))
        return list(dict.fromkeys(blocks))

    def _has_gradient(self, name: str) -> bool:
        return self.program.forms[name].dtype.is_floating_point and (name != "x" or self.wanted_x)

    def _row_bytes(self, name: str) -> int:
        form = self.program.forms[name]
        return math.prod(form.shape) * form.dtype.itemsize

    def _function(self, gather: Gather, part: int = 0) -> EdgeFunction:
        """The forward's pass, or one of the backward's, counted from 1."""
        if part:
            assert gather.edges.backward is not None
            return gather.edges.backward.passes(self.wanted(gather))[part - 1].function
        assert gather.edges.function is not None
        return gather.edges.function

    def _result_bytes(self, gather: Gather, function: EdgeFunction) -> list[int]:
        """Bytes of a row of each of a pass's results."""
        ids = id_dtype(self.hops[gather.hop].num_edges)
        return [
            math.prod(result.shape) * (result.dtype or ids).itemsize if result.rows == "row" else 0
            for result in reduced_results(function)
        ]

    def _lse_bytes(self, gather: Gather) -> int:
        results = self._result_bytes(gather, self._function(gather))
        return results[1] if gather.edges.accumulator == "softmax" else 0

    def _handed_bytes(self, gather: Gather) -> int:
        assert gather.edges.backward is not None
        total = 0
        for step in gather.edges.backward.passes(self.wanted(gather)):
            for output in step.function.outputs:
                if output.reduce == "edge":
                    value = step.function.value(output.values[0])
                    total += math.prod(value.shape) * value.dtype.itemsize
        return total


def _node_bytes(node: fx.Node) -> int:
    value = node.meta.get("val")
    if not isinstance(value, Tensor) or value.ndim == 0 or not is_rows(value.shape[0]):
        return 0
    return math.prod(value.shape) // ROWS * value.dtype.itemsize


def _computed(stage: Stage) -> list[fx.Node]:
    return [node for node in stage.module.graph.nodes if node.op == "call_function"]


def _peak_bytes(stage: Stage) -> int:
    """Bytes per row that a stage takes beside its inputs and outputs, everything living until its last use."""
    (results,) = (node.args[0] for node in stage.module.graph.nodes if node.op == "output")
    outputs = set(results) if isinstance(results, (tuple, list)) else set()
    last = {argument: index for index, node in enumerate(_computed(stage)) for argument in node.all_input_nodes}
    alive: dict[fx.Node, int] = {}
    peak = 0
    for index, node in enumerate(_computed(stage)):
        alive[node] = 0 if node in outputs else _node_bytes(node)
        peak = max(peak, sum(alive.values()))
        alive = {each: size for each, size in alive.items() if last.get(each, -1) > index}
    return peak


def _kept_bytes(stage: Stage) -> int:
    """Bytes per row that running a stage again and differentiating it takes: all of its values, and their gradients'
    two largest at a time."""
    each = sorted((_node_bytes(node) for node in _computed(stage)), reverse=True)
    return sum(each) + 2 * sum(each[:1])
