"""Lower: translate the operators of an edge stage into the ops of one edge function.

The edge stage is traced again with composite operators taken apart, then translated node by node. Dimension 0 of every
tensor that is no parameter must be the rows. Another layout, or an operator without a translation, raises
:class:`NotFusedError`; the stage runs over edge tiles then.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.traceback import set_stack_trace

from sagann.compiler.composites import COMPOSITES, linear, most_entries, most_lanes
from sagann.compiler.operators import DROPOUT, TYPED_LINEAR
from sagann.compiler.stages import OVERWRITING
from sagann.compiler.trace import ROWS, TraceError, is_rows, make_graph
from sagann.kernels import dense
from sagann.kernels.accumulators import Gathering
from sagann.kernels.edge.builder import Builder, arithmetic_dtype
from sagann.kernels.edge.function import BINARY, COMPARISONS, UNARY, Arg, EdgeFunction, Input, Shape, Side
from sagann.kernels.edge.kinds import KINDS, feature_width, lanes
from sagann.kernels.naive import HALF
from sagann.kernels.row_dropout import dropout

_aten = torch.ops.aten
# Functions that stages run, and the operators that are traced in their place.
_AS_TRACED: dict[Any, Any] = {
    dropout: DROPOUT,
    dense.linear: linear,
    **{overwriting: target for target, overwriting in OVERWRITING.items()},
}
# Ops that all dialects compute alike on integers; other ops are for floating numbers.
_ON_INTEGERS = COMPARISONS | {"add", "sub", "mul", "neg", "sum", "detach"}
_LOGICAL = frozenset(["and", "or", "not"])


class NotFusedError(Exception):
    """An operator on the edges has no fused form; the message names the operator and the user's line."""


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
    return _Lowering(module, inputs).run(gathering)


def as_traced(target: Any) -> Any:
    """The operator in the place of a function that stages run; other targets as they are."""
    return _AS_TRACED.get(target, target)


def is_pointwise(target: Any) -> bool:
    """Whether a pointwise operator of a stage has a translation, for some operands at least."""
    target = as_traced(target)
    has_form = target in COMPOSITES or (target in _RULES and _RULES[target] is not _rounded_div)
    return has_form and torch.Tag.pointwise in getattr(target, "tags", ())


class _Annotated(fx.Interpreter):
    """Runs a stage for a trace: new nodes get the user's lines, and functions of stages become operators again."""

    def run_node(self, n: fx.Node) -> Any:
        set_stack_trace([n.meta.get("line", "")])
        return super().run_node(n)

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        return super().call_function(as_traced(target), args, kwargs)


class _Lowering:
    """Translates a traced stage into the ops of a builder."""

    def __init__(self, module: fx.GraphModule, inputs: Mapping[str, tuple[Side, Tensor]]) -> None:
        self.module = module
        self.inputs = inputs
        self.b = Builder()
        self.names: dict[fx.Node, str] = {}
        self.salt = 0
        self.device = next((like.device for _, like in inputs.values()), torch.device("cpu"))

    def run(self, gathering: Gathering) -> EdgeFunction:
        """Translate every node."""
        given = iter(self.inputs.items())
        for node in self.module.graph.nodes:
            if node.op == "placeholder":
                name, (side, like) = next(given)
                shape = tuple(like.shape if side == "param" else like.shape[1:])
                _known(like.dtype)
                self.names[node] = self.b.input(Input(name=name, side=side, shape=shape, dtype=like.dtype))
            elif node.op == "get_attr":
                self.names[node] = self.constant(getattr(self.module, node.target))
            elif node.op == "output":
                values = [self.row(value) for value in node.args[0]]
                for message in gathering.reduced:
                    *score, _ = values[message.values]
                    if score and self.b.dtype(score[0]) == torch.float64:
                        # Score and value are reduced in the value's type.
                        last = message.values.stop - 1
                        values[last] = self.b.cast(values[last], torch.float64)
                return _narrow(self.b.build(gathering.outputs(values), "dst"), self.device)
            elif node.op == "call_function":
                self.names[node] = self.translate(node)
        raise AssertionError("a graph ends with its output")

    def translate(self, node: fx.Node) -> str:
        try:
            rule = _RULES.get(node.target)
            if rule is None:
                raise NotFusedError(f"operator {node.target} has no fused form")
            name = rule(self, node, *node.args, **node.kwargs)
            if self.b.shape(name) != self.shape(node):
                forms = f"{list(self.b.shape(name))} where PyTorch gives {list(self.shape(node))}"
                raise NotFusedError(f"operator {node.target} has a fused form of other features: {forms}")
        except NotFusedError as error:
            line = node.meta.get("stack_trace")
            raise NotFusedError(f"{error} ({line})" if line else str(error)) from error
        return name

    def constant(self, value: Tensor) -> str:
        if value.numel() != 1:
            raise NotFusedError("a constant tensor of several entries is read on the edges")
        return self.b.full(value.item(), tuple(value.shape), arithmetic_dtype(value.dtype))

    def is_row(self, value: Any) -> bool:
        """Whether the value has a row per edge. Fails if the rows are another dimension than the first."""
        if not isinstance(value, fx.Node):
            return False
        shape = value.meta["val"].shape
        if any(is_rows(size) for size in shape[1:]) or (shape and is_rows(shape[0]) and shape[0] != ROWS):
            raise _moves_rows(value)
        return bool(shape) and shape[0] == ROWS

    def shape(self, node: fx.Node) -> Shape:
        """The node's feature shape; the whole shape if the node has no rows."""
        shape = node.meta["val"].shape
        return tuple(shape[1:] if self.is_row(node) else shape)

    def row(self, node: Any) -> str:
        if not isinstance(node, fx.Node):
            raise NotFusedError("apply_edge returns a constant")
        if not self.is_row(node):
            raise NotFusedError("apply_edge returns no row per edge")
        return self.names[node]

    def dim(self, node: fx.Node, dim: int) -> int:
        """A dimension of the node's tensor, counted among its feature dimensions."""
        ndim, rows = node.meta["val"].ndim, self.is_row(node)
        dim = dim % max(ndim, 1)
        if rows and dim == 0:
            raise _along_rows()
        return dim - 1 if rows else dim

    def arg(self, value: Any, node: fx.Node) -> Arg:
        """An operand of a pointwise operator whose result is ``node``."""
        if not isinstance(value, fx.Node):
            if not isinstance(value, (int, float, bool)):
                raise NotFusedError(f"operator {node.target} takes {value!r}")
            return value
        name = self.names[value]
        if (splat := self.b.splat(name)) is not None:
            return splat
        name = self.beside_rows(value, node)
        if self.is_row(value) and node.meta["val"].ndim != value.meta["val"].ndim:
            raise _moves_rows(node)
        return name

    def beside_rows(self, value: fx.Node, node: fx.Node) -> str:
        """A value as an operand of ``node``: a parameter that is broadcast along the rows loses that dimension."""
        name = self.names[value]
        if self.is_row(node) and not self.is_row(value) and len(self.b.shape(name)) == node.meta["val"].ndim:
            return self.b.reshape(name, self.b.shape(name)[1:])
        return name

    def pointwise(self, op: str, node: fx.Node, *values: Any) -> str:
        """An op on broadcast operands. Operands that are constants throughout are folded into the op."""
        args = [self.arg(value, node) for value in values]
        dtype, shape = self.dtype(node), self.shape(node)
        if dtype is torch.bool:
            op = {"add": "or", "mul": "and"}.get(op, op)
        self.check_kind(op, node)
        common = dtype
        if op in _LOGICAL:
            args = [arg if isinstance(arg, str) else bool(arg) for arg in args]
        elif op in COMPARISONS:
            common, args = self.compared(node, values, args)
        last = args[-1]
        if not isinstance(last, str) and not any(isinstance(arg, str) for arg in args):
            args[-1] = self.b.full(last, shape, common)
        if op not in _LOGICAL:
            args = self.alike(args, common)
        return self.b.op("broadcast", self.b.op(op, *args, dtype=dtype), shape=shape)

    def compared(self, node: fx.Node, values: Sequence[Any], args: list[Arg]) -> tuple[torch.dtype, list[Arg]]:
        """The type in which PyTorch compares the operands, and the operands with numbers rounded to that type."""
        operands = [each.meta["val"] if isinstance(each, fx.Node) else each for each in values]
        common = torch.result_type(*operands)
        if common in HALF:
            read = [each.dtype for each, arg in zip(operands, args, strict=True) if isinstance(arg, str)]
            if not {common, torch.bool}.issuperset(read):
                raise NotFusedError(f"operator {node.target} rounds what it compares to {common}")
            args = [
                arg if isinstance(arg, str) else torch.tensor(arg, dtype=common, device="cpu").item()
                for arg in args
            ]
        return arithmetic_dtype(_known(common)), args

    def alike(self, args: list[Arg], dtype: torch.dtype) -> list[Arg]:
        """The operands, converted to one type."""
        return [self.b.cast(arg, dtype) if isinstance(arg, str) else arg for arg in args]

    def dtype(self, node: fx.Node) -> torch.dtype:
        return arithmetic_dtype(_known(node.meta["val"].dtype))

    def check_kind(self, op: str, node: fx.Node) -> None:
        if not self.dtype(node).is_floating_point and op not in _ON_INTEGERS:
            raise NotFusedError(f"operator {node.target} on integers has no fused form")


def _narrow(function: EdgeFunction, device: torch.device) -> EdgeFunction:
    """The function, if its rows are done tile by tile, or fit registers all at once."""
    most = most_lanes(device)
    if feature_width(function) is None and (widest := max(map(lanes, function.values), default=0)) > most:
        raise NotFusedError(
            f"a row on the edges has {widest:,} features, of which an operator reads others than its own; up to {most:,} can be fused"
        )
    return function


def _moves_rows(node: fx.Node) -> NotFusedError:
    return NotFusedError(f"operator {node.target} moves the dimension of the rows")


def _along_rows() -> NotFusedError:
    return NotFusedError("an operator works along the dimension of the rows")


def _known(dtype: torch.dtype) -> torch.dtype:
    """The type, if values on the edges may have it. Narrow integers are refused: their sums wrap around."""
    if dtype not in KINDS:
        raise NotFusedError(f"values of type {dtype} have no fused form; convert them to int64 or a floating type")
    return dtype


def _unary(op: str) -> Callable[..., str]:
    return lambda low, node, x: low.pointwise(op, node, x)


def _binary(op: str) -> Callable[..., str]:
    def rule(low: _Lowering, node: fx.Node, x: Any, y: Any, alpha: float = 1) -> str:
        if alpha != 1:
            dtype = low.dtype(node)
            first, scaled = low.alike([low.arg(x, node), low.arg(y, node)], dtype)
            scaled = low.b.op("mul", scaled, alpha, dtype=dtype) if isinstance(scaled, str) else scaled * alpha
            if not isinstance(first, str) and not isinstance(scaled, str):
                scaled = low.b.full(scaled, (), dtype)
            return low.b.op("broadcast", low.b.op(op, first, scaled, dtype=dtype), shape=low.shape(node))
        return low.pointwise(op, node, x, y)

    return rule


def _logical(op: str) -> Callable[..., str]:
    def rule(low: _Lowering, node: fx.Node, *values: Any) -> str:
        if node.meta["val"].dtype != torch.bool:
            raise NotFusedError(f"operator {node.target} on integers has no fused form")
        return low.pointwise(op, node, *values)

    return rule


def _rounded_div(low: _Lowering, node: fx.Node, x: Any, y: Any, *, rounding_mode: str | None = None) -> str:
    quotient = low.pointwise("div", node, x, y)
    if rounding_mode is not None:
        # PyTorch corrects the rounded quotient by the remainder.
        raise NotFusedError(f"operator {node.target} rounded by '{rounding_mode}' has no fused form")
    return quotient


def _where(low: _Lowering, node: fx.Node, condition: fx.Node, x: Any, y: Any) -> str:
    args = [low.arg(value, node) for value in (condition, x, y)]
    dtype, shape = low.dtype(node), low.shape(node)
    if not isinstance(args[0], str):
        chosen = args[1] if args[0] else args[2]
        chosen = chosen if isinstance(chosen, str) else low.b.full(chosen, shape, dtype)
        return low.b.op("broadcast", chosen, shape=shape)
    for place in (1, 2):
        chosen = args[place]
        args[place] = low.b.cast(chosen, dtype) if isinstance(chosen, str) else low.b.full(chosen, (), dtype)
    return low.b.op("broadcast", low.b.op("where", *args, dtype=dtype), shape=shape)


def _mm(low: _Lowering, node: fx.Node, x: fx.Node, matrix: fx.Node) -> str:
    if low.is_row(x) and not low.is_row(matrix):
        value = matrix.meta["val"]
        rows, columns = value.shape
        raise NotFusedError(
            f"a linear map from {rows} to {columns} features on the edges has {rows * columns} entries; "
            f"up to {most_entries(value.device)} are fused"
        )
    raise NotFusedError(f"operator {node.target} has no fused form")


def _typed_map(*_: Any) -> str:
    raise NotFusedError(
        "a linear map picked by edge type stays on the edges: only the first of a layer leaves them, by edge data as it is, in "
        "a streamed model where its results are summed or averaged"
    )


def _cast(low: _Lowering, node: fx.Node, x: fx.Node, *args: Any, **kwargs: Any) -> str:
    return low.b.cast(low.names[x], low.dtype(node))


def _same(low: _Lowering, node: fx.Node, x: fx.Node, *args: Any, **kwargs: Any) -> str:
    return low.names[x]


def _reshape(low: _Lowering, node: fx.Node, x: fx.Node, *args: Any) -> str:
    # The shape of the result tells which of a parameter's dimensions are meant.
    if low.is_row(x) != low.is_row(node):
        raise _moves_rows(node)
    return low.b.reshape(low.names[x], low.shape(node))


def _expand(low: _Lowering, node: fx.Node, x: fx.Node, sizes: Any, *, implicit: bool = False) -> str:
    return low.b.op("broadcast", low.beside_rows(x, node), shape=low.shape(node))


def _permute(low: _Lowering, node: fx.Node, x: fx.Node, dims: Sequence[int]) -> str:
    ndim = x.meta["val"].ndim
    order = [dim % ndim for dim in dims]
    if low.is_row(x):
        if order[0] != 0:
            raise _moves_rows(node)
        order = [dim - 1 for dim in order[1:]]
    return low.b.op("permute", low.names[x], dims=tuple(order))


def _transpose(low: _Lowering, node: fx.Node, x: fx.Node, first: int = 0, second: int = 1) -> str:
    order = list(range(x.meta["val"].ndim))
    if len(order) < 2:
        return low.names[x]
    order[first], order[second] = order[second], order[first]
    return _permute(low, node, x, order)


def _slice(
    low: _Lowering, node: fx.Node, x: fx.Node, dim: int = 0, start: Any = None, end: Any = None, step: int = 1
) -> str:
    if low.is_row(x) and dim % x.meta["val"].ndim == 0:
        if start in (None, 0) and step == 1 and node.meta["val"].shape[0] == x.meta["val"].shape[0]:
            return low.names[x]
        raise _along_rows()
    dim = low.dim(x, dim)
    size = low.b.shape(low.names[x])[dim]
    first = range(size)[slice(start, end, step)]
    return low.b.op(
        "slice", low.names[x], shape=low.shape(node), dim=dim, start=first.start if len(first) else 0, step=step
    )


def _select(low: _Lowering, node: fx.Node, x: fx.Node, dim: int, index: int) -> str:
    dim = low.dim(x, dim)
    shape = low.b.shape(low.names[x])
    kept = (*shape[:dim], 1, *shape[dim + 1 :])
    taken = low.b.op("slice", low.names[x], shape=kept, dim=dim, start=index % shape[dim], step=1)
    return low.b.reshape(taken, low.shape(node))


def _cat(low: _Lowering, node: fx.Node, parts: Sequence[fx.Node], dim: int = 0) -> str:
    if any(low.is_row(part) != low.is_row(node) for part in parts):
        raise _moves_rows(node)
    dim, dtype = low.dim(node, dim), low.dtype(node)
    names = [low.b.cast(low.names[part], dtype) for part in parts if part.meta["val"].ndim == node.meta["val"].ndim]
    names = [name for name in names if low.b.shape(name)[dim]] or names[:1]
    return low.b.op("cat", *names, dim=dim, dtype=dtype)


def _reduction(op: str) -> Callable[..., str]:
    def rule(
        low: _Lowering, node: fx.Node, x: fx.Node, dims: Any = None, keepdim: bool = False, *, dtype: Any = None
    ) -> str:
        dims = [dims] if isinstance(dims, int) else dims
        if not dims:
            if low.is_row(x):
                raise _along_rows()
            dims = range(x.meta["val"].ndim)
        low.check_kind(op, node)
        name = low.b.cast(low.names[x], low.dtype(node))
        name = low.b.op(op, name, dims=tuple(sorted(low.dim(x, dim) for dim in dims)))
        return low.b.reshape(name, low.shape(node)) if keepdim else name

    return rule


def _full(low: _Lowering, node: fx.Node, *size_and_value: Any, **kwargs: Any) -> str:
    # Constants are folded into their readers, so they are rounded to the node's type here.
    value = torch.full((), size_and_value[-1], dtype=node.meta["val"].dtype, device="cpu").item()
    return low.b.full(value, low.shape(node), low.dtype(node))


def _dropout(low: _Lowering, node: fx.Node, x: fx.Node, p: float, number: int = 0) -> str:
    # A number tells what several functions of one layer draw alike.
    low.salt = number or low.salt + 1
    drawn = low.b.op("random", shape=low.shape(node), dtype=low.dtype(node), p=p, salt=low.salt)
    splat = low.b.splat(low.names[x])
    return low.b.op("mul", low.names[x] if splat is None else splat, drawn)


VIEWS: dict[Any, Callable[..., str]] = {
    _aten.alias.default: _same,
    **dict.fromkeys((_aten.view.default, _aten._unsafe_view.default, _aten.reshape.default), _reshape),
    **dict.fromkeys(
        (_aten.squeeze.default, _aten.squeeze.dim, _aten.squeeze.dims, _aten.unsqueeze.default), _reshape
    ),
    _aten.expand.default: _expand,
    _aten.permute.default: _permute,
    **dict.fromkeys((_aten.transpose.int, _aten.t.default), _transpose),
    _aten.slice.Tensor: _slice,
    _aten.select.int: _select,
}
"Operators that move no data, and their rules."
# Of a tensor and another tensor or a number, under the same name in PyTorch.
_WITH_NUMBERS = BINARY - {"and", "or", "maximum", "minimum"}

_RULES: dict[Any, Callable[..., str]] = {
    **{getattr(_aten, name).default: _unary(name) for name in sorted(UNARY - {"not"})},
    **{
        getattr(getattr(_aten, name), kind): _binary(name)
        for name in sorted(_WITH_NUMBERS)
        for kind in ("Tensor", "Scalar")
        if hasattr(getattr(_aten, name), kind)
    },
    _aten.pow.Tensor_Scalar: _binary("pow"),
    _aten.pow.Tensor_Tensor: _binary("pow"),
    _aten.div.Tensor_mode: _rounded_div,
    _aten.div.Scalar_mode: _rounded_div,
    _aten.maximum.default: _binary("maximum"),
    _aten.minimum.default: _binary("minimum"),
    _aten.logical_and.default: _binary("and"),
    _aten.logical_or.default: _binary("or"),
    _aten.logical_not.default: _unary("not"),
    _aten.bitwise_and.Tensor: _logical("and"),
    _aten.bitwise_or.Tensor: _logical("or"),
    _aten.bitwise_not.default: _logical("not"),
    _aten.mm.default: _mm,
    TYPED_LINEAR: _typed_map,
    **{getattr(_aten.where, kind): _where for kind in ("self", "Scalar", "ScalarSelf", "ScalarOther")},
    _aten._to_copy.default: _cast,
    _aten.clone.default: _same,
    _aten.lift_fresh_copy.default: _same,
    **VIEWS,
    _aten.cat.default: _cat,
    _aten.sum.dim_IntList: _reduction("sum"),
    _aten.amax.default: _reduction("amax"),
    _aten.amin.default: _reduction("amin"),
    _aten.full.default: _full,
    _aten.scalar_tensor.default: _full,
    DROPOUT: _dropout,
}
