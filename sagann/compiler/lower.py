"""Lower: translate the operators of an edge stage, or of a region of a stage on vertices, into the ops of one edge function.

The stage runs on fake tensors. A mode sees every operator below autograd, takes composite operators apart, and translates
the others one by one. Dimension 0 of every tensor that is no parameter must be the rows. Another layout, or an operator
without a translation, raises :class:`sagann.compiler.lowering.NotFusedError`; the stage runs over edge tiles then.

A region of pointwise operators and of reductions within rows becomes one pass over the vertices (:func:`fuse_rows`). PyTorch reads and writes
whole tensors for each operator; a GRU's gates are a dozen operators. A region is lowered like the edges, over a graph in which every vertex has
one edge, to itself. The backward is derived in the same way and computes the intermediate values again, so only the region's inputs are kept.

References:
    Ours; Ma et al., NGra, 2018, Sec. 3.2 and NeuGraph, 2019, Sec. 3.4 fuse ApplyEdge only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, fx
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily
from torch.fx._lazy_graph_module import _LazyGraphModule
from torch.utils._python_dispatch import TorchDispatchMode

from sagann.compiler.composites import COMPOSITES, linear, most_lanes
from sagann.compiler.lowering import RULES, VIEWS, Lowering, NotFusedError, known, rounded_div
from sagann.compiler.nodes import has_rows, name_of, row_bytes
from sagann.compiler.operators import DROPOUT
from sagann.compiler.program import EdgeWork, Note, Stage
from sagann.compiler.stages import OVERWRITING, fused_rows
from sagann.compiler.trace import PLAINER, is_of_rows, without_log
from sagann.errors import in_one_line
from sagann.kernels import dense
from sagann.kernels.accumulators import SUM, Gathering
from sagann.kernels.edge.function import EdgeFunction, Input, Side, lanes
from sagann.kernels.row_dropout import dropout

_aten = torch.ops.aten
_REDUCTIONS = frozenset([_aten.sum.dim_IntList, _aten.mean.dim, _aten.amax.default, _aten.amin.default])
# The backward computes a region again and reads its inputs again, so the forward must save at least this factor of bytes.
_SAVED = 2
# Functions that stages run, and the operators that are traced in their place.
_AS_TRACED: dict[Any, Any] = {
    dropout: DROPOUT,
    dense.linear: linear,
    **{overwriting: target for target, overwriting in OVERWRITING.items()},
}
_FORMS: dict[Any, Any] = {**PLAINER, **COMPOSITES}
"Operators that are taken apart."
_GIVE_NO_TENSOR = (torch.ops.prim.device.default, torch.ops.aten.sym_size.int)


def lower(stage: fx.GraphModule, inputs: Mapping[str, tuple[Side, Tensor]], gathering: Gathering) -> EdgeFunction:
    """Translate an edge stage, which computes the messages' values from its inputs: side and example of each, in order."""
    low, examples = Lowering(), []
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    for name, (side, like) in inputs.items():
        with fake:
            examples.append(torch.empty(like.shape, dtype=like.dtype, device=like.device))
        shape = tuple(like.shape if side == "param" else like.shape[1:])
        low.set_name(examples[-1], low.b.input(Input(name=name, side=side, shape=shape, dtype=known(like.dtype))))
    mode = _Translation(low)
    try:
        with fake, torch.no_grad(), without_log(), mode:
            results = _Operators(stage, mode).run(*examples)
    except NotFusedError:
        raise
    except Exception as error:
        if error is mode.own_error:
            raise
        raise NotFusedError(f"it cannot be traced: {in_one_line(error)}") from error
    values = [_row(low, value) for value in results]
    for message in gathering.reduced:
        *score, _ = values[message.values]
        if score and low.b.dtype(score[0]) == torch.float64:
            # Score and value are reduced in the value's type.
            last = message.values.stop - 1
            values[last] = low.b.cast(values[last], torch.float64)
    device = next((like.device for _, like in inputs.values()), torch.device("cpu"))
    return _narrow(low.b.build(gathering.outputs(values), "dst"), device)


def as_traced(target: Any) -> Any:
    """The operator in the place of a function that stages run; other targets as they are."""
    return _AS_TRACED.get(target, target)


def is_pointwise(target: Any) -> bool:
    """Whether a pointwise operator of a stage has a translation, for some operands at least."""
    target = as_traced(target)
    has_form = target in COMPOSITES or (target in RULES and RULES[target] is not rounded_div)
    return has_form and torch.Tag.pointwise in getattr(target, "tags", ())


class _Translation(TorchDispatchMode):
    """Translates every operator that runs below it."""

    def __init__(self, low: Lowering) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.low = low
        self.line = ""
        "The user's line, for messages."
        self.own_error: Exception | None = None
        "What a translation raised that is no refusal."

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in _GIVE_NO_TENSOR:
            return func(*args, **kwargs)
        for form in (_FORMS.get(func), func.decompose):
            if form is not None:
                with self:
                    found = form(*args, **kwargs)
                if found is not NotImplemented:
                    return found
        out = func(*args, **kwargs)
        # Rules compute with numbers.
        with unset_fake_temporarily():
            try:
                self.low.set_name(out, self._translated(func, out, args, kwargs))
            except NotFusedError:
                raise
            except Exception as error:
                self.own_error = error
                raise
        return out

    def _translated(self, func: Any, out: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        low = self.low
        low.target = func
        try:
            if func not in RULES:
                raise NotFusedError(f"operator {func} has no fused form")
            name = RULES[func](low, out, *args, **kwargs)
            if low.b.shape(name) != low.shape(out):
                forms = f"{list(low.b.shape(name))} where PyTorch gives {list(low.shape(out))}"
                raise NotFusedError(f"operator {func} has a fused form of other features: {forms}")
        except NotFusedError as error:
            raise NotFusedError(f"{error} ({self.line})" if self.line else str(error)) from error
        return name


class _Operators(fx.Interpreter):
    """Runs a stage, of which functions become operators again."""

    def __init__(self, stage: fx.GraphModule, mode: _Translation) -> None:
        super().__init__(stage)
        self.mode = mode
        # Errors have the user's line already.
        self.extra_traceback = False

    def run_node(self, n: fx.Node) -> Any:
        self.mode.line = n.meta.get("line", "")
        return super().run_node(n)

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        return super().call_function(as_traced(target), args, kwargs)


def _row(low: Lowering, value: Any) -> str:
    """Name of a value that the stage gives, which must have a row per edge."""
    if not isinstance(value, Tensor):
        raise NotFusedError("apply_edge returns a constant")
    if not low.is_row(value):
        raise NotFusedError("apply_edge returns no row per edge")
    return low.name(value)


def _narrow(function: EdgeFunction, device: torch.device) -> EdgeFunction:
    """The function, if its rows are done tile by tile, or fit registers all at once."""
    most = most_lanes(device)
    if function.feature_width is None and (widest := max(map(lanes, function.values), default=0)) > most:
        raise NotFusedError(
            f"a row on the edges has {widest:,} features, of which an operator reads others than its own; up to {most:,} can be fused"
        )
    return function


def fuse_rows(stage: Stage) -> tuple[Stage, list[Note]]:
    """The stage with one call for each region, and what was done. Changes the stage's module."""
    graph = stage.module.graph
    works: list[EdgeWork] = []
    notes, gone = [], set[fx.Node]()
    with graph.inserting_before(next(iter(graph.nodes))):
        run_rows = graph.placeholder("run_rows")
    for root in reversed(list(graph.nodes)):
        if root in gone or not _is_within_rows(root) or not root.meta["val"].is_floating_point():
            continue
        if (found := _region(root, graph)) is None:
            continue
        region, inputs = found
        work = _work(stage.module, region, inputs)
        if work is None:
            continue
        with graph.inserting_before(root):
            fused = graph.call_function(fused_rows, (run_rows, len(works), *inputs))
        fused.meta = dict(root.meta)
        root.replace_all_uses_with(fused)
        for node in reversed(region):
            graph.erase_node(node)
        gone.update(region)
        works.append(work)
        names = ", ".join(name_of(node) for node in region if node.target not in VIEWS)
        text = f"{names}, in one pass over the vertices"
        notes.append(Note(kind="fused", text=text, line=root.meta.get("line", "")))
    if not works:
        graph.erase_node(run_rows)
        return stage, []
    stage.module.recompile()
    return replace(stage, rows=tuple(works)), notes


def _region(root: fx.Node, graph: fx.Graph) -> tuple[list[fx.Node], list[fx.Node]] | None:
    """The nodes that only ``root`` needs, and the nodes that they read; None if a pass does not pay."""
    inside = {root}
    for node in reversed(list(graph.nodes)):
        may_join = _is_within_rows(node) or (node.target in VIEWS and _of_tensors(node))
        if may_join and node.users and inside.issuperset(node.users):
            inside.add(node)
    region = [node for node in graph.nodes if node in inside]
    inputs = list(dict.fromkeys(each for node in region for each in node.all_input_nodes if each not in inside))
    separate = sum(_moved_bytes(node) for node in region if node.target not in VIEWS)
    together = row_bytes(root) + sum(row_bytes(node) for node in inputs if _has_rows(node))
    return (region, inputs) if separate >= _SAVED * together else None


def _moved_bytes(node: fx.Node) -> int:
    return row_bytes(node) + sum(row_bytes(each) for each in node.all_input_nodes if _has_rows(each))


def _work(module: fx.GraphModule, region: Sequence[fx.Node], inputs: Sequence[fx.Node]) -> EdgeWork | None:
    """The region as work on an edge from each vertex to itself; None if the region has no fused form."""
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for node in inputs:
        copies[node] = graph.placeholder(node.name)
        copies[node].meta = dict(node.meta)
    for node in region:
        copies[node] = graph.node_copy(node, copies.__getitem__)
        copies[node].target = as_traced(node.target)
    graph.output((copies[region[-1]],))
    alone = _LazyGraphModule(module, graph)
    names = tuple(node.name for node in inputs)
    sides: tuple[Side, ...] = tuple("dst" if _has_rows(node) else "param" for node in inputs)
    if "dst" not in sides:
        return None
    examples = {name: (side, node.meta["val"]) for name, side, node in zip(names, sides, inputs, strict=True)}
    work = Gathering(messages=((SUM,),))
    try:
        function = lower(alone, examples, work)
    except NotFusedError:
        return None
    return EdgeWork(
        stage=Stage(module=alone, inputs=names, outputs=(region[-1].name,)),
        sides=sides,
        gathering=work,
        dtype=region[-1].meta["val"].dtype,
        function=function,
    )


def _is_within_rows(node: fx.Node) -> bool:
    """Whether the node is pointwise, or reduces features of each row."""
    if node.target in _REDUCTIONS:
        (operand,) = node.all_input_nodes
        return _of_tensors(node) and _has_rows(operand) and operand.meta["val"].is_floating_point()
    return is_pointwise(node.target) and _of_tensors(node)


def _of_tensors(node: fx.Node) -> bool:
    """Whether the node has rows, and reads rows, parameters and constants alone."""
    return _has_rows(node) and all(
        _has_rows(each) or (isinstance(each.meta.get("val"), Tensor) and not has_rows(each))
        for each in node.all_input_nodes
    )


def _has_rows(node: fx.Node) -> bool:
    """Whether the node has a row per vertex, of a type that passes compute in without conversion."""
    value = node.meta.get("val")
    return is_of_rows(value) and value.dtype in (torch.float32, torch.float64, torch.bool)
