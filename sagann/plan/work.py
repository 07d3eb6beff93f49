"""Work: the operations and bytes of a step, which a machine's rates turn into seconds.

A linear map of sparse features is a sum over non-zeros, as a gather is one over edges: each reads a row of the weight.

References:
    Jia et al., ROC, MLSys 2020, Sec. 4.1 predicts run times from counts as well, by a linear model.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from torch import fx

from sagann.compiler.program import Stage
from sagann.kernels.dense import linear
from sagann.kernels.edge.function import EdgeFunction, Input, lanes
from sagann.plan.machine import Machine
from sagann.plan.schedule import Schedule
from sagann.plan.selection import OTHER_END
from sagann.plan.sizes import bytes_per_row
from sagann.plan.steps import Step

_EXPONENTIALS = frozenset(["exp", "expm1", "log", "log1p", "tanh", "sigmoid", "erf", "pow", "sin", "cos"])
# A product on edges takes this many times as long as the same operations in a large product.
_ON_EDGES = 2.0
# For every tensor that a pointwise operator reads or writes, its backward reads the gradient and an operand, and writes a
# gradient.
_BACKWARD_STREAMS = 1.5
# A loss on rows of the result reads and writes logarithms of probabilities and their gradient.
_LOSS_STREAMS = 6


@dataclass(frozen=True, kw_only=True, slots=True)
class Work:
    """Operations and bytes."""

    flops: float = 0.0
    "Floating-point operations of matrix products; a multiply-add counts as two."
    stream_bytes: float = 0.0
    "Bytes read and written in sequence."
    gather_bytes: float = 0.0
    "Bytes of rows that edges, or non-zeros, read at scattered places."
    gathered_from_bytes: float = 0.0
    "Bytes of the arrays from which these rows are read."
    exponentials: float = 0.0
    "Number of exponentials, and of functions that cost as much, on edges."

    def __add__(self, other: Work) -> Work:
        return Work(
            flops=self.flops + other.flops,
            stream_bytes=self.stream_bytes + other.stream_bytes,
            gather_bytes=self.gather_bytes + other.gather_bytes,
            gathered_from_bytes=max(self.gathered_from_bytes, other.gathered_from_bytes),
            exponentials=self.exponentials + other.exponentials,
        )

    def times(self, rows: float) -> Work:
        """The work of some rows, where this is the work of one."""
        return Work(
            flops=rows * self.flops,
            stream_bytes=rows * self.stream_bytes,
            gather_bytes=rows * self.gather_bytes,
            gathered_from_bytes=self.gathered_from_bytes,
            exponentials=rows * self.exponentials,
        )

    def seconds(self, machine: Machine) -> float:
        """Seconds that a machine takes."""
        cached = min(1.0, machine.cache_bytes / self.gathered_from_bytes) if self.gathered_from_bytes else 1.0
        gather_s = cached / machine.gather_cached_bytes + (1 - cached) / machine.gather_bytes
        return (
            machine.step_s
            + self.flops / machine.matmul_flops
            + self.stream_bytes / machine.stream_bytes
            + self.gather_bytes * gather_s
            + self.exponentials / machine.exp_per_s
        )


class StepWork:
    """The work of the steps of a schedule.

    ``nonzeros`` is the mean number of non-zero features of a vertex, where features are sparse; None where they are dense.
    """

    def __init__(self, schedule: Schedule, nonzeros: float | None = None) -> None:
        self._program = schedule.program
        self._schedule = schedule
        self._rows = schedule.sizes.rows
        self._stages = [_stage_work(stage, schedule, nonzeros) for stage in schedule.program.stages]

    def of(self, step: Step) -> Work:
        """The work of a step."""
        if step.kind in ("gather", "gather_grad"):
            return self._pass(step)
        if step.kind in ("transform", "transform_grad", "transform_loss"):
            return self._transform(step)
        # Other steps only read and write blocks; of undivided ones, an interval's rows.
        sizes = self._schedule.sizes
        rows = sum(sizes.rows_in(block, step.interval) for block in step.writes if block.is_assembled)
        others = (block for block in (*step.reads, *step.writes) if not block.is_assembled)
        return Work(stream_bytes=rows + sum(map(sizes.of, others)))

    def _transform(self, step: Step) -> Work:
        rows = self._rows[step.interval]
        forward, backward = (work.times(rows) for work in self._stages[step.number])
        if step.kind == "transform":
            return forward
        if step.kind == "transform_loss":
            loss_bytes = rows * _LOSS_STREAMS * self._schedule.sizes.row_bytes(self._program.output)
            return forward + backward + Work(stream_bytes=loss_bytes)
        return backward if (step.number, step.interval) in self._schedule.saves else forward + backward

    def _pass(self, step: Step) -> Work:
        gather = self._program.gather(step.number)
        function = self._schedule.gradients.function(gather, step.backward_pass)
        edges = self._schedule.hops[gather.hop].edges[step.interval, step.dst_interval]
        far, near = ("src", "dst") if function.at == "dst" else ("dst", "src")
        rows = {"src": self._rows[step.interval], "dst": self._rows[step.dst_interval]}
        chunk = step.reads[0]
        if chunk.name in OTHER_END:
            rows[far] = self._schedule.hops[gather.hop].num_picked(chunk)
        row_bytes = {
            side: _row_bytes(given for given in function.inputs if given.side == side) for side in (far, near)
        }
        at_edges = _row_bytes(given for given in function.inputs if given.side == "edge")
        at_edges += self._schedule.hops[gather.hop].id_bytes
        written = sum(
            math.prod(result.shape)
            * (8 if result.dtype is None else result.dtype.itemsize)
            * (edges if result.rows == "edge" else 2 * rows[near])
            for result in function.results
            if result.rows != "item"
        )
        return Work(
            flops=edges * _ON_EDGES * _product_flops(function),
            stream_bytes=edges * at_edges + rows[near] * row_bytes[near] + written,
            gather_bytes=edges * row_bytes[far],
            gathered_from_bytes=rows[far] * row_bytes[far],
            exponentials=edges * _exponentials(function),
        )


def _stage_work(stage: Stage, schedule: Schedule, nonzeros: float | None) -> tuple[Work, Work]:
    """The work of a stage and of its gradient, per row."""
    forward = backward = Work()
    wanted = schedule.gradients.nodes(stage)
    sparse: set[fx.Node] = set()
    for node in stage.module.graph.nodes:
        if node.op == "placeholder" and nonzeros is not None and str(node.target) == "x":
            sparse.add(node)
        if node.op != "call_function" or not bytes_per_row(node):
            continue
        given = node.all_input_nodes
        if node.target is linear:
            x, weight = given[:2]
            value = weight.meta["val"]
            if x in sparse:
                assert nonzeros is not None
                weight_bytes = value.numel() * value.element_size()
                once = Work(gather_bytes=nonzeros * bytes_per_row(node), gathered_from_bytes=weight_bytes)
            else:
                once = Work(flops=2.0 * value.numel())
            forward += once
            backward += once.times((x in wanted) + (weight in wanted))
        elif given and given[0] in sparse:
            # Dropout of the non-zeros, which are counted where a linear map reads them.
            sparse.add(node)
        else:
            stream_bytes = float(bytes_per_row(node) + sum(map(bytes_per_row, given)))
            forward += Work(stream_bytes=stream_bytes)
            backward += Work(stream_bytes=_BACKWARD_STREAMS * stream_bytes)
    return forward, backward


def _row_bytes(inputs: Iterable[Input]) -> int:
    return sum(lanes(given) * given.dtype.itemsize for given in inputs)


def _product_flops(function: EdgeFunction) -> int:
    """Operations per edge in linear maps: products wider than any row that the edge reads."""
    row = max((lanes(given) for given in function.inputs if given.side != "param"), default=0)
    return 2 * sum(lanes(op) for op in function.ops if op.op == "mul" and lanes(op) > row)


def _exponentials(function: EdgeFunction) -> int:
    """Exponentials per edge."""
    count = sum(lanes(op) for op in function.ops if op.op in _EXPONENTIALS)
    return count + sum(
        output.reduction.exponentials * lanes(function.value(output.values[0])) for output in function.outputs
    )
