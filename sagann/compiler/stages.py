"""Stages: parts of a layer's graph that PyTorch runs, cut out as modules.

A stage computes some nodes of the graph from other nodes that are given. Numbers of rows in the trace become those of the
stage's inputs. Operators that exist in traces only become functions that run.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx._lazy_graph_module import _LazyGraphModule
from torch.utils import _pytree as pytree

from sagann.compiler.nodes import leading_to, operands_of
from sagann.compiler.operators import DROPOUT, LINEAR
from sagann.compiler.program import Stage
from sagann.compiler.trace import ROWS, TraceError, is_of_rows, is_rows
from sagann.kernels.dense import add_, linear, relu_
from sagann.kernels.row_dropout import dropout

_aten = torch.ops.aten


def cut(
    module: fx.GraphModule, wanted: Sequence[fx.Node], given: Iterable[fx.Node], *, in_place: bool = False
) -> Stage:
    """Cut out the nodes that compute ``wanted`` from ``given``. Inputs are those of ``given`` that are needed.

    With ``in_place``, operators may overwrite operands that nothing else reads.
    """
    return _Cut(module, set(given), in_place).run(wanted)


def fused_rows(run: Callable[..., Tensor], number: int, *arrays: Tensor) -> Tensor:
    """Run the stage's region of rows with that number."""
    return run(number, *arrays)


# A tensor that was contiguous in the trace may not be contiguous when the stage runs, so views become reshapes.
_REPLACED: dict[Any, Any] = {
    LINEAR: linear,
    DROPOUT: dropout,
    _aten.view.default: _aten.reshape.default,
    _aten._unsafe_view.default: _aten.reshape.default,
}


OVERWRITING: dict[Any, Callable[..., Tensor]] = {_aten.relu.default: relu_, _aten.add.Tensor: add_}
"By operator, the function that gives the same result in the memory of its first operand."


class _Cut:
    def __init__(self, module: fx.GraphModule, given: set[fx.Node], in_place: bool) -> None:
        self.module = module
        self.in_place = in_place
        self.given = given
        self.wanted: set[fx.Node] = set()
        self.graph = fx.Graph()
        self.copies: dict[fx.Node, Any] = {}
        self.rows: fx.Node | None = None
        self.sizes: dict[int, fx.Node] = {}

    def run(self, wanted: Sequence[fx.Node]) -> Stage:
        self.wanted = set(wanted)
        needed = leading_to(wanted, self.given)
        order = [node for node in self.module.graph.nodes if node in needed]
        inputs = [node for node in order if node in self.given]
        if any(map(self._reads_rows, order)) and not any(map(_is_node_of_rows, inputs)):
            # A given node whose number of rows is read.
            of_rows = (node for node in self.module.graph.nodes if node in self.given and _is_node_of_rows(node))
            inputs = [*itertools.islice(of_rows, 1), *inputs]
        for node in inputs:
            copy = self.graph.placeholder(node.name)
            copy.meta = dict(node.meta)
            self.copies[node] = copy
        for node in order:
            if node not in self.given:
                self.copies[node] = self._copy(node)
        self.graph.output(tuple(self.copies[node] for node in wanted))
        self.graph.eliminate_dead_code()
        return Stage(
            module=_LazyGraphModule(self.module, self.graph),
            inputs=tuple(node.name for node in inputs),
            outputs=tuple(node.name for node in wanted),
        )

    def _reads_rows(self, node: fx.Node) -> bool:
        """Whether an argument of a node that is copied is a number of rows."""
        return node not in self.given and any(map(is_rows, pytree.tree_leaves((_args(node), node.kwargs))))

    def _copy(self, node: fx.Node) -> Any:
        if node.op == "placeholder":
            raise TraceError(f"'{node.name}' is read where it is not known")
        if (merged := self._biased(node)) is not None:
            return merged
        args = fx.node.map_aggregate(_args(node), self._argument)
        kwargs = fx.node.map_aggregate(node.kwargs, self._argument)
        target = _REPLACED.get(node.target, node.target)
        if (operand := self._overwritten(node)) is not None:
            target = OVERWRITING[node.target]
            first = self.copies[operand]
            args = (first, *(each for each in args if each is not first))
        copy = self.graph.create_node(node.op, target, args, kwargs, node.name)
        copy.meta = dict(node.meta)
        return copy

    def _overwritten(self, node: fx.Node) -> fx.Node | None:
        """The operand that the result may overwrite: the stage computes it for this node alone, and no gradient reads it."""
        if not self.in_place or node.target not in OVERWRITING or node.kwargs:
            return None
        operands = [each for each in node.args if isinstance(each, fx.Node)]
        alike = len({each.meta["val"].dtype for each in operands}) == 1
        if not alike or len(operands) < len(node.args) or len(set(operands)) < len(operands):
            return None
        return next((each for each in operands if self._is_ours(each, node)), None)

    def _is_ours(self, operand: fx.Node, node: fx.Node) -> bool:
        made_here = operand not in self.given and operand.target in (LINEAR, _aten.mm.default, _aten.add.Tensor)
        for_node_alone = operand not in self.wanted and len(operand.users) == 1
        return made_here and for_node_alone and operand.meta["val"].shape == node.meta["val"].shape

    def _biased(self, node: fx.Node) -> fx.Node | None:
        """A linear map and its bias as one call."""
        terms = operands_of(node, _aten.add.Tensor)
        for mapped, bias in (terms, terms[::-1]) if terms is not None else ():
            weight = mapped.args[1] if mapped.target is LINEAR else None
            if weight is None or mapped in self.given or bias.meta["place"] != "param":
                continue
            assert isinstance(weight, fx.Node)
            bias_like, weight_like = bias.meta["val"], weight.meta["val"]
            if bias_like.shape == weight_like.shape[:1] and bias_like.dtype == weight_like.dtype:
                args = fx.node.map_aggregate((*mapped.args, bias), self._argument)
                merged = self.graph.call_function(linear, args)
                merged.meta = dict(node.meta)
                return merged
        return None

    def _argument(self, argument: Any) -> Any:
        """The copy of a node; a number of rows, or a multiple, becomes that of the first input with rows."""
        if isinstance(argument, fx.Node):
            return self.copies[argument]
        if not is_rows(argument):
            return argument
        if argument not in self.sizes:
            if self.rows is None:
                rows = [node for node in self.graph.nodes if node.op == "placeholder" and _is_node_of_rows(node)]
                if not rows:
                    raise TraceError("the number of rows is read where there are none")
                self.rows = self.graph.call_function(_aten.sym_size.int, (rows[0], 0))
            self.sizes[argument] = self.graph.call_function(operator.mul, (self.rows, argument // ROWS))
        return self.sizes[argument]


def _args(node: fx.Node) -> tuple[Any, ...]:
    """The arguments of a node. The number of rows of a view follows from its other sizes, so that nothing reads it."""
    if _REPLACED.get(node.target) is not _aten.reshape.default:
        return node.args
    viewed, sizes = node.args
    assert isinstance(sizes, list | tuple)
    others: list[Any] = [size for size in sizes if not is_rows(size)]
    if len(others) != len(sizes) - 1 or not all(size > 0 for size in others):
        return node.args
    return viewed, [-1 if is_rows(size) else size for size in sizes]


def _is_node_of_rows(node: fx.Node) -> bool:
    return is_of_rows(node.meta.get("val"))
