"""Slices: a captured model in which each gather goes over a few features after the others, where its edges compute every feature by itself.

The stage before such a gather gives what the edges read in slices, values of their own. Each slice is gathered by itself, and the stage after the
gathers puts the results side by side. So a pass over the edges needs the rows of one slice at both ends, and the edges are walked once for each
slice. Every number is computed as without slices. A slice has some of the entries of the rows' first dimension: features, or heads.

References:
    None of the five systems does this. NeutronTP (VLDB 2024) slices features over workers.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Collection, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import fx
from torch.fx._lazy_graph_module import _LazyGraphModule

from sagann.compiler.model_program import Form, Gather, ModelProgram
from sagann.compiler.program import EdgeWork, Stage
from sagann.compiler.trace import ROWS
from sagann.compiler.vjp import Backward
from sagann.kernels.edge.function import BINARY, REDUCTIONS, UNARY, EdgeFunction, Op, Shape, verify

_aten = torch.ops.aten
_POINTWISE = UNARY | BINARY | {"where", "cast", "broadcast"}
FEATURES = 16
"Slices of single features are multiples of this, so that rows begin at a cache line."
_NARROWED: WeakKeyDictionary[EdgeFunction, dict[int, tuple[EdgeFunction, Backward]]] = WeakKeyDictionary()
"Functions of slices with their backwards, by function and number of entries: kernels are kept by function."


def sliced(program: ModelProgram, num_slices: int) -> ModelProgram:
    """The program with the gathers of the widest rows in so many slices, and others in slices about as wide; the same where there is none."""
    found = {number: _entries(link) for number, link in enumerate(program.links) if isinstance(link, Gather)}
    entries = {number: count for number, count in found.items() if count > 1}
    if num_slices == 1 or not entries:
        return program
    widths = {number: _row_bytes(program, program.links[number]) for number in entries}
    bounds = {
        number: _bounds(
            program.gather(number), count, math.ceil(num_slices * widths[number] / max(widths.values()))
        )
        for number, count in entries.items()
    }
    return _Slicing(program, {number: each for number, each in bounds.items() if len(each) > 2}).run()


def _entries(gather: Gather) -> int:
    """Number of entries of the first dimension of what is gathered, if any of them can be gathered by itself; else 0."""
    function, gathering = gather.edges.function, gather.edges.gathering
    if gather.constant or function is None or not (gathering.is_one and gathering.is_reduced) or function.random:
        return 0
    (output,) = function.outputs
    shapes = [function.value(name).shape for name in output.values]
    count = min((shape[0] for shape in shapes if shape), default=0)
    return count if all(shapes) and count > 1 and _sliced_values(function, count) is not None else 0


def _sliced_values(function: EdgeFunction, count: int) -> set[str] | None:
    """Names of the values of which each of ``count`` parts of the first dimension depends on the same parts alone; None if others are mixed.

    Edge data are in no slices, and rows of vertices in nothing but slices, so that their gradients are.
    """
    found: dict[str, bool] = dict.fromkeys(function.outputs[0].values, True)
    for op in reversed(function.ops):
        for arg in (each for each in op.args if isinstance(each, str)):
            is_sliced = found[op.name] and _reads_slices(op, function.value(arg).shape)
            if is_sliced is None or found.setdefault(arg, is_sliced) != is_sliced:
                return None
    for value in function.values:
        if found[value.name] and (not value.shape or value.shape[0] % count):
            return None
    if any(
        found[given.name] != (given.side in ("src", "dst")) or given.side == "param" for given in function.inputs
    ):
        return None
    return {name for name, is_sliced in found.items() if is_sliced}


def _reads_slices(op: Op, shape: Shape) -> bool | None:
    """Whether the slices of an op's result depend on those of an argument of some shape, or on all of it; None where they mix slices."""
    if op.op in _POINTWISE:
        return len(shape) == len(op.shape) and shape[:1] == op.shape[:1]
    if op.op == "reshape":
        # Parts of the first dimension are runs of entries in both forms.
        return bool(shape and op.shape) or None
    if op.op in ("slice", "cat"):
        return op.attrs["dim"] != 0 or None
    if op.op == "permute":
        return op.attrs["dims"][0] == 0 or None
    return (op.op in REDUCTIONS and 0 not in op.attrs["dims"]) or None


def _narrowed(edges: EdgeWork, width: int, count: int) -> EdgeWork:
    """The work on ``width`` of ``count`` entries."""
    function = edges.function
    assert function is not None
    known = _NARROWED.setdefault(function, {})
    if width not in known:
        names = _sliced_values(function, count)
        assert names is not None

        def narrow(value: Any) -> Any:
            if value.name not in names:
                return value
            return replace(value, shape=(value.shape[0] * width // count, *value.shape[1:]))

        narrowed = replace(
            function, inputs=tuple(map(narrow, function.inputs)), ops=tuple(map(narrow, function.ops))
        )
        verify(narrowed)
        known[width] = narrowed, Backward(narrowed)
    narrowed, backward = known[width]
    return replace(edges, function=narrowed, backward=None if edges.backward is None else backward)


def _row_bytes(program: ModelProgram, gather: Any) -> int:
    return max(
        math.prod(program.forms[value].shape) * program.forms[value].dtype.itemsize
        for value, side in zip(gather.inputs, gather.edges.sides, strict=True)
        if side in ("src", "dst")
    )


def _bounds(gather: Gather, count: int, num_slices: int) -> list[int]:
    """First entry of each slice, and the number of all entries."""
    assert gather.edges.function is not None
    width = math.ceil(count / num_slices)
    if len(gather.edges.function.value(gather.edges.function.outputs[0].values[-1]).shape) == 1:
        width = math.ceil(width / FEATURES) * FEATURES
    return [*range(0, count, width), count]


class _Slicing:
    """Cuts the gathers with the given numbers at the given bounds."""

    def __init__(self, program: ModelProgram, bounds: dict[int, list[int]]) -> None:
        self.program, self.bounds = program, bounds
        self.forms = dict(program.forms)
        self.stages = [_StageGraph(stage, self.forms) for stage in program.stages]

    def run(self) -> ModelProgram:
        links: list[Any] = []
        stages: list[_StageGraph | None] = []
        for number, link in enumerate(self.program.links):
            parts = self._sliced(number, link) if number in self.bounds else [link]
            stages += [self.stages[number], *[None] * (len(parts) - 1)]
            links += parts
        stages.append(self.stages[-1])
        read = {self.program.output}.union(*(each.inputs for each in self.stages))
        read.update(*(link.inputs if isinstance(link, Gather) else link.values for link in links))
        return replace(
            self.program,
            stages=tuple(_empty() if each is None else each.stage(read) for each in stages),
            links=tuple(links),
            forms=self.forms,
        )

    def _sliced(self, number: int, gather: Any) -> list[Gather]:
        """The gathers of the slices; the stages before and after give and take slices."""
        bounds, work = self.bounds[number], gather.edges
        names = {
            value: self._parts(number, value, bounds)
            for value, side in zip(gather.inputs, work.sides, strict=True)
            if side in ("src", "dst")
        }
        for value, parts in names.items():
            self.stages[number].split(value, parts)
        results = self._parts(number, gather.result, bounds)
        self.stages[number + 1].join(gather.result, results)
        return [
            replace(
                gather,
                edges=_narrowed(work, last - first, bounds[-1]),
                inputs=tuple(names[value][each] if value in names else value for value in gather.inputs),
                result=results[each],
            )
            for each, (first, last) in enumerate(pairwise(bounds))
        ]

    def _parts(self, number: int, name: str, bounds: Sequence[int]) -> list[str]:
        """Names of the slices of a value, whose forms are noted."""
        form = self.forms[name]
        found = []
        for each, (first, last) in enumerate(pairwise(bounds)):
            found.append(f"{name}_slice_{number}_{each}")
            shape = (form.shape[0] * (last - first) // bounds[-1], *form.shape[1:])
            self.forms[found[-1]] = Form(shape=shape, dtype=form.dtype)
        return found


class _StageGraph:
    """A copy of a stage's graph, which is being changed."""

    def __init__(self, stage: Stage, forms: dict[str, Form]) -> None:
        self._stage, self._forms = stage, forms
        self._graph = fx.Graph()
        copied: Any = self._graph.graph_copy(stage.module.graph, {})
        self._outputs: dict[str, fx.Node] = dict(zip(stage.outputs, copied or (), strict=True))
        placeholders = [node for node in self._graph.nodes if node.op == "placeholder"]
        # A stage with regions of rows is given the function that runs them first.
        self._given = {str(node.target): node for node in placeholders[len(placeholders) - len(stage.inputs) :]}
        self._joined: dict[str, fx.Node] = {}

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the values that the stage reads."""
        return tuple(self._given)

    def split(self, value: str, parts: Sequence[str]) -> None:
        """Give a value in slices, along its first dimension of features."""
        known = self._outputs | self._joined | self._given
        node = known.get(value) or self._give_in(value)
        sizes = [self._forms[name].shape[0] for name in parts]
        split = self._graph.call_function(_aten.split_with_sizes.default, (node, sizes, 1))
        for number, name in enumerate(parts):
            self._outputs[name] = self._graph.call_function(operator.getitem, (split, number))

    def join(self, value: str, parts: Sequence[str]) -> None:
        """Read a value in slices."""
        given = [self._give_in(name) for name in parts]
        with self._graph.inserting_before(self._first()):
            joined = self._graph.call_function(_aten.cat.default, (given, 1))
        joined.meta["val"] = self._like(value)
        if (whole := self._given.pop(value, None)) is not None:
            whole.replace_all_uses_with(joined)
            self._outputs = {name: joined if node is whole else node for name, node in self._outputs.items()}
            self._graph.erase_node(whole)
        self._joined[value] = joined

    def stage(self, read: Collection[str]) -> Stage:
        """The changed stage, which gives what is read of its values."""
        outputs = {name: node for name, node in (self._joined | self._outputs).items() if name in read}
        self._graph.output(tuple(outputs.values()))
        self._graph.eliminate_dead_code()
        module = _LazyGraphModule(self._stage.module, self._graph)
        return Stage(module=module, inputs=self.inputs, outputs=tuple(outputs), rows=self._stage.rows)

    def _give_in(self, value: str) -> fx.Node:
        """Read another value."""
        with self._graph.inserting_before(self._first()):
            node = self._given[value] = self._graph.placeholder(value)
        node.meta["val"] = self._like(value)
        return node

    def _first(self) -> fx.Node:
        """The first node that is no placeholder."""
        return next((node for node in self._graph.nodes if node.op != "placeholder"), self._graph._root)

    def _like(self, value: str) -> torch.Tensor:
        form = self._forms[value]
        return torch.empty((ROWS, *form.shape), dtype=form.dtype, device="meta")


def _empty() -> Stage:
    graph = fx.Graph()
    graph.output(())
    return Stage(module=fx.GraphModule({}, graph), inputs=(), outputs=())
