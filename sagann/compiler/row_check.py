"""Checks of streamed models: stages treat vertices independently, and their number is read as a size only.

Stages are checked operator by operator (:mod:`sagann.saga.row_runs`). A trace keeps the numbers that it was made with. Multiples of its number of
rows are sizes, which stages read again when they run; a root or an inverse of that number would stay constant. So two traces with different numbers
of rows must differ in sizes alone.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils import _pytree as pytree

from sagann.compiler.nodes import has_rows, name_of
from sagann.compiler.trace import ROWS, TraceError, is_rows
from sagann.errors import LayerError, in_one_line
from sagann.kernels.row_dropout import dropout
from sagann.saga.row_runs import NUM_ROWS, Run, Step, compare_runs, draws_alone, last_positive, tensors_in

# A sum in another order differs by less.
_TOLERANCE = 1e-3
_INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


def check_stage(module: fx.GraphModule, integers: Mapping[str, Tensor], where: str) -> None:
    """Refuse a stage that mixes vertices, or fails on made-up rows.

    ``integers`` are the model's own integer tensors, by name: made-up numbers could be out of range as ids or divisors.
    """
    for node in module.graph.nodes:
        # Masks of dropout are drawn row by row.
        if node.target is dropout and _rows_dim(node.meta["val"]) != 0:
            raise _mixes(name_of(node), line_of(node, where))
    try:
        _compare_runs(module, integers, where)
    # An operator may fail in any of these ways on numbers that it was not meant for.
    except (IndexError, RuntimeError, ValueError) as error:
        raise LayerError(
            f"a model that is streamed must take rows of any numbers: on made-up ones: {in_one_line(error)} "
            f"(in {where})",
            hint="Clamp what must lie in a range, as ids of nn.Embedding, or run the model in memory.",
        ) from error


def _mixes(name: str, line: str) -> LayerError:
    return LayerError(
        "a model that is streamed, or divided among workers, must treat vertices independently between its layers: "
        f"operator {name} mixes them, or depends on their number (in {line})",
        hint="Reduce over feature dimensions only; to normalise over vertices, use a torch.nn.BatchNorm1d.",
    )


def line_of(node: fx.Node, otherwise: str) -> str:
    """The user's line that a node comes from."""
    line: str = node.meta.get("line") or node.meta.get("stack_trace") or otherwise
    return line


def _compare_runs(module: fx.GraphModule, integers: Mapping[str, Tensor], where: str) -> None:
    given = [node for node in module.graph.nodes if node.op == "placeholder"]
    are_ids = any(map(is_integral, module.graph.nodes))
    # One generator for all inputs: two inputs of one shape must have different rows.
    generator = torch.Generator().manual_seed(0)
    inputs = [
        integers[node.target] if node.target in integers else _made_up(node.meta["val"], generator, are_ids=are_ids)
        for node in given
    ]
    dims = [_rows_dim(node.meta["val"]) for node in given]

    def execute(run: Run, given: list[Tensor]) -> None:
        _Interpreter(module, run, where).run(*given)

    devices = {value.device for value in inputs if value.is_cuda}
    with torch.no_grad(), torch.random.fork_rng(devices=list(devices)):
        _, difference = compare_runs(execute, inputs, dims, _TOLERANCE)
    if difference is not None:
        raise _mixes(difference[1].operator, difference[1].line)


def _made_up(like: Tensor, generator: torch.Generator, *, are_ids: bool) -> Tensor:
    """Random numbers in the form of ``like``, a value of the trace, with few rows. Rows that may be made into ids are near 0 and 1,
    which are ids of any table."""
    shape = [size // ROWS * NUM_ROWS if is_rows(size) else size for size in like.shape]
    if are_ids and _rows_dim(like) is not None:
        # No two rows are alike, whatever their ids.
        ids = torch.randint(0, 2, shape, generator=generator, device="cpu")
        values = ids + 0.4 * torch.rand(shape, generator=generator, device="cpu")
    else:
        values = torch.randn(shape, generator=generator, device="cpu") * 2
        values = values if _rows_dim(like) is None else last_positive(values)
    return values.to(like.device, like.dtype)


def is_integral(node: fx.Node) -> bool:
    """Whether a node is a tensor of integers."""
    value = node.meta.get("val")
    return isinstance(value, Tensor) and value.dtype in _INTEGERS


def draws(node: fx.Node) -> bool:
    """Whether a node of a stage draws random numbers."""
    return node.target is dropout or draws_alone(node.target)


def _rows_dim(like: object) -> int | None:
    """The dimension of a value of the trace that is the rows, or a multiple of them; None if there is none."""
    if not isinstance(like, Tensor):
        return None
    return next((dim for dim, size in enumerate(like.shape) if is_rows(size)), None)


class _Interpreter(fx.Interpreter):
    """Records every operator while a stage runs."""

    def __init__(self, module: fx.GraphModule, run: Run, where: str) -> None:
        super().__init__(module)
        self._run = run
        self._where = where

    def run_node(self, n: fx.Node) -> Any:
        result = super().run_node(n)
        if n.op == "call_function":
            # An operator with several results is compared by those that are read.
            source = n.all_input_nodes[0] if n.target is operator.getitem else n
            is_one = isinstance(n.meta.get("val"), Tensor)
            of_rows = is_one and any(map(has_rows, (n, *source.all_input_nodes)))
            step = Step(name_of(source), line_of(source, self._where), tensors_in(result), of_rows)
            self._run.add(step, draws=draws(n))
        return result


OTHER_ROWS = 987_654_323
"Number of rows in the second trace."
CHANGES = "it does something else when it is traced again, with another number of vertices"


def check_sizes(module: fx.GraphModule, other: fx.GraphModule) -> None:
    """Refuse a model whose two traces, with :data:`~sagann.compiler.trace.ROWS` and :data:`OTHER_ROWS`, differ in more than sizes."""
    nodes = list(zip(module.graph.nodes, other.graph.nodes, strict=False))
    other_of = dict(nodes)
    of_one_kind = all(_kind(node) == _kind(again) for node, again in nodes)
    if len(module.graph.nodes) != len(other.graph.nodes) or not of_one_kind:
        raise TraceError(CHANGES)
    for node, again in nodes:
        read, read_again = _read(module, node), _read(other, again)
        if len(read) == len(read_again) and all(
            _is_same(a, b, other_of) for a, b in zip(read, read_again, strict=True)
        ):
            continue
        line = node.meta.get("stack_trace")
        raise TraceError(
            f"operator {name_of(node)} reads a number that depends on the number of vertices"
            + (f" ({line})" if line else "")
        )


def _kind(node: fx.Node) -> tuple[object, ...]:
    return (node.op, node.target) if node.op == "call_function" else (node.op,)


def _read(module: fx.GraphModule, node: fx.Node) -> list[Any]:
    """A node's arguments; or its value, if the node is a constant."""
    if node.op == "get_attr":
        return [getattr(module, str(node.target))]
    return pytree.tree_leaves((node.args, node.kwargs))


def _is_same(value: Any, again: Any, other_of: Mapping[fx.Node, fx.Node]) -> bool:
    if isinstance(value, fx.Node):
        return other_of[value] is again
    if is_rows(value):
        return bool(again == value // ROWS * OTHER_ROWS)
    if isinstance(value, Tensor):
        alike = (value == again) | ((value != value) & (again != again))
        return value.shape == again.shape and bool(alike.all())
    if isinstance(value, float):
        return value == again or (math.isnan(value) and math.isnan(again))
    return not isinstance(value, (bool, int, complex)) or bool(value == again)
