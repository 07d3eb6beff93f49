"""Lower: translate the operators of an edge stage into the ops of one edge function.

The edge stage is traced again with composite operators taken apart, then translated node by node. Dimension 0 of every
tensor that is no parameter must be the rows. Another layout, or an operator without a translation, raises
:class:`sagann.compiler.lowering.NotFusedError`; the stage runs over edge tiles then.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.traceback import set_stack_trace

from sagann.compiler.composites import COMPOSITES, linear, most_lanes
from sagann.compiler.lowering import Lowering, NotFusedError, known
from sagann.compiler.lowering_rules import RULES, rounded_div
from sagann.compiler.operators import DROPOUT
from sagann.compiler.stages import OVERWRITING
from sagann.compiler.trace import TraceError, make_graph
from sagann.kernels import dense
from sagann.kernels.accumulators import Gathering
from sagann.kernels.edge.builder import arithmetic_dtype
from sagann.kernels.edge.function import EdgeFunction, Input, Side
from sagann.kernels.edge.kinds import feature_width, lanes
from sagann.kernels.row_dropout import dropout

# Functions that stages run, and the operators that are traced in their place.
_AS_TRACED: dict[Any, Any] = {
    dropout: DROPOUT,
    dense.linear: linear,
    **{overwriting: target for target, overwriting in OVERWRITING.items()},
}


def lower(stage: fx.GraphModule, inputs: Mapping[str, tuple[Side, Tensor]], gathering: Gathering) -> EdgeFunction:
    """Translate an edge stage, which computes the messages' values from its inputs: side and example of each, in order."""
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    with fake:
        examples = [torch.empty(like.shape, dtype=like.dtype, device=like.device) for _, like in inputs.values()]
    try:
        module = make_graph(fake, _Annotated(stage).run, *examples, decompositions=COMPOSITES)
    except TraceError as error:
        raise NotFusedError(str(error)) from error
    module.graph.eliminate_dead_code()
    device = next((like.device for _, like in inputs.values()), torch.device("cpu"))
    return _narrow(_translated(module, inputs, gathering), device)


def as_traced(target: Any) -> Any:
    """The operator in the place of a function that stages run; other targets as they are."""
    return _AS_TRACED.get(target, target)


def is_pointwise(target: Any) -> bool:
    """Whether a pointwise operator of a stage has a translation, for some operands at least."""
    target = as_traced(target)
    has_form = target in COMPOSITES or (target in RULES and RULES[target] is not rounded_div)
    return has_form and torch.Tag.pointwise in getattr(target, "tags", ())


class _Annotated(fx.Interpreter):
    """Runs a stage for a trace: new nodes get the user's lines, and functions of stages become operators again."""

    def run_node(self, n: fx.Node) -> Any:
        set_stack_trace([n.meta.get("line", "")])
        return super().run_node(n)

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        return super().call_function(as_traced(target), args, kwargs)


def _translated(
    module: fx.GraphModule, inputs: Mapping[str, tuple[Side, Tensor]], gathering: Gathering
) -> EdgeFunction:
    """Translate every node of a traced stage."""
    low, given = Lowering(), iter(inputs.items())
    for node in module.graph.nodes:
        if node.op == "placeholder":
            name, (side, like) = next(given)
            shape = tuple(like.shape if side == "param" else like.shape[1:])
            low.names[node] = low.b.input(Input(name=name, side=side, shape=shape, dtype=known(like.dtype)))
        elif node.op == "get_attr":
            low.names[node] = _constant(low, getattr(module, node.target))
        elif node.op == "output":
            values = [_row(low, value) for value in node.args[0]]
            for message in gathering.reduced:
                *score, _ = values[message.values]
                if score and low.b.dtype(score[0]) == torch.float64:
                    # Score and value are reduced in the value's type.
                    last = message.values.stop - 1
                    values[last] = low.b.cast(values[last], torch.float64)
            return low.b.build(gathering.outputs(values), "dst")
        elif node.op == "call_function":
            low.names[node] = _translate(low, node)
    raise AssertionError("a graph ends with its output")


def _translate(low: Lowering, node: fx.Node) -> str:
    """Translate an operator by its rule."""
    try:
        rule = RULES.get(node.target)
        if rule is None:
            raise NotFusedError(f"operator {node.target} has no fused form")
        name = rule(low, node, *node.args, **node.kwargs)
        if low.b.shape(name) != low.shape(node):
            forms = f"{list(low.b.shape(name))} where PyTorch gives {list(low.shape(node))}"
            raise NotFusedError(f"operator {node.target} has a fused form of other features: {forms}")
    except NotFusedError as error:
        line = node.meta.get("stack_trace")
        raise NotFusedError(f"{error} ({line})" if line else str(error)) from error
    return name


def _constant(low: Lowering, value: Tensor) -> str:
    """A constant tensor of one entry, as a value of the builder."""
    if value.numel() != 1:
        raise NotFusedError("a constant tensor of several entries is read on the edges")
    return low.b.full(value.item(), tuple(value.shape), arithmetic_dtype(value.dtype))


def _row(low: Lowering, node: Any) -> str:
    """Name of a value that the stage gives, which must have a row per edge."""
    if not isinstance(node, fx.Node):
        raise NotFusedError("apply_edge returns a constant")
    if not low.is_row(node):
        raise NotFusedError("apply_edge returns no row per edge")
    return low.names[node]


def _narrow(function: EdgeFunction, device: torch.device) -> EdgeFunction:
    """The function, if its rows are done tile by tile, or fit registers all at once."""
    most = most_lanes(device)
    if feature_width(function) is None and (widest := max(map(lanes, function.values), default=0)) > most:
        raise NotFusedError(
            f"a row on the edges has {widest:,} features, of which an operator reads others than its own; up to {most:,} can be fused"
        )
    return function
