"""Stage sizes: bytes per row of what a stage of vertices computes, keeps for its gradient, and holds at a time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor, fx

from sagann.compiler.program import Stage
from sagann.compiler.trace import ROWS, is_rows
from sagann.kernels.dense import NUM_PARTS, add_, linear, relu_
from sagann.kernels.row_dropout import dropout
from sagann.plan.gradients import Gradients

# Operators by what their gradient reads. The result of these is a view of an operand,
_ALIASES = frozenset(
    ["view", "reshape", "unsqueeze", "squeeze", "expand", "slice", "permute", "select", "t", "detach"]
)
# the gradient of these reads the result alone,
_FROM_RESULT = frozenset(["relu", "sigmoid", "tanh", "exp", "sqrt", "_softmax"])
# and the gradient of these reads nothing. Other gradients are taken to read all operands and the result.
_FROM_NOTHING = frozenset(["add", "sub", "neg", "cat", "sum"])


@dataclass(frozen=True, kw_only=True, slots=True)
class StageSize:
    """Bytes per row of a stage's values, and bytes of its largest weight."""

    computed: int
    "Bytes per row of all values that the stage computes."
    kept: tuple[int, ...]
    "Bytes per row of each of these values that the gradient reads."
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
        return cls(
            computed=sum(each),
            kept=tuple(_kept(stage, gradients)),
            largest=max(each, default=0),
            flops=sum(2 * weight.numel() for weight in weights),
            peak=_peak_bytes(stage, computed),
            weight=NUM_PARTS * max((weight.numel() * weight.element_size() for weight in weights), default=0),
        )


def _kept(stage: Stage, gradients: Gradients) -> list[int]:
    """Most bytes per row of each tensor that a stage computes and its gradient reads."""
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
            reads_nothing = name in _FROM_NOTHING or node.target in (add_, dropout)
            read = [] if reads_nothing else [*node.all_input_nodes, node]
        for each in read:
            assert isinstance(each, fx.Node)
            root = alias.get(each, each)
            found.setdefault(root, bytes_per_row(root))
    return [*filter(None, found.values())]


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
