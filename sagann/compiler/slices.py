"""Slices: a gather of wide rows as several gathers of narrow ones, where the edges treat every lane of a row by itself.

A pass that keeps one end's rows in memory and walks the edges once for each slice reads every row once. Of a captured model, values that such
gathers read or give are cut into slices of lanes, each a value of its own: the stage that makes a value gives its slices, and stages that read
it put these together. So all that follows deals with more, narrower values and gathers, and with nothing new.

Invariants: rows are cut only where the trace shows that no operator on the edges, forward or backward, moves or adds up lanes
(:attr:`sagann.kernels.edge.function.EdgeFunction.feature_width`), and draws no random numbers; every slice has the bits of its lanes in the
whole gather.

References:
    NeutronTP, VLDB 2024, slices features over workers; here a device walks the slices one after the other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from operator import getitem
from typing import Any

import torch
from torch import Tensor, fx

from sagann.compiler.model_program import BatchMeans, Form, Gather, ModelProgram
from sagann.compiler.program import EdgeWork, Stage
from sagann.compiler.trace import ROWS
from sagann.compiler.vjp import BackwardPass
from sagann.kernels.edge.function import REDUCTIONS, EdgeFunction, Input, Op, lanes

Passes = Callable[[Gather], Sequence[BackwardPass]]
"Gives the passes of a gather's backward."
_aten = torch.ops.aten
# Lanes of a cache line, of single precision. Narrower slices would read as many lines.
_LANES_OF_A_LINE = 16
# Ops that leave a row's lanes as they are, where all values have the same number of lanes or one.
_SAME_LANES = frozenset(["reshape", "permute", "slice", "cat"]) | REDUCTIONS


def widest_rows(program: ModelProgram, passes: Passes) -> int:
    """The most lanes of any rows that a gather reads and that may be cut; 0 if none may be."""
    return max((_lanes_of(gather, passes) for gather in program.gathers), default=0)


def slice_lanes(num_lanes: int, count: int) -> int:
    """Lanes of each of about ``count`` slices.

    Example:
        >>> slice_lanes(602, 8), slice_lanes(20, 2)
        (80, 16)
    """
    return math.ceil(num_lanes / (count * _LANES_OF_A_LINE)) * _LANES_OF_A_LINE


def sliced(program: ModelProgram, passes: Passes, most_lanes: int) -> ModelProgram:
    """The program with gathers of slices of at most so many lanes, where rows are wider and may be cut."""
    cut = _CutLanes(program, passes, most_lanes)
    return cut.run() if cut.gathers else program


def _lanes_of(gather: Gather, passes: Passes) -> int:
    """The lanes of a gather's rows; 0 if they may not be cut."""
    function, edges = gather.edges.function, gather.edges
    if function is None or gather.constant or edges.random or not edges.gathering.is_one:
        return 0
    width = function.feature_width
    is_shared = any(lanes(given) > 1 for given in function.inputs if given.side in ("edge", "param"))
    if width is None or is_shared or any(each.function.feature_width != width for each in passes(gather)):
        return 0
    return width


class _CutLanes:
    def __init__(self, program: ModelProgram, passes: Passes, most_lanes: int) -> None:
        self.program = program
        self.widths: dict[str, list[int]] = {}
        "By name of a value that is cut, the lanes of its slices."
        self.gathers: dict[int, list[int]] = {}
        "By number of a link that is cut, likewise."
        for number, link in enumerate(program.links):
            width = _lanes_of(link, passes) if isinstance(link, Gather) else 0
            if isinstance(link, Gather) and width > most_lanes:
                count = math.ceil(width / most_lanes)
                self.gathers[number] = [min(most_lanes, width - most_lanes * each) for each in range(count)]
                wide = [name for name in self._rows_of(link) if self._lanes(name) > 1]
                self.widths |= dict.fromkeys([*wide, link.result], self.gathers[number])
        others = [link for number, link in enumerate(program.links) if number not in self.gathers]
        self.whole = {program.output, "x"}
        "Names of values that lie whole as well, or instead: others than stages read them."
        for link in others:
            self.whole |= set(link.values) if isinstance(link, BatchMeans) else set(link.inputs)
            self.whole.add(link.result)

    def _rows_of(self, gather: Gather) -> list[str]:
        return [
            name
            for name, side in zip(gather.inputs, gather.edges.sides, strict=True)
            if side in ("src", "dst") and name in self.program.forms
        ]

    def _lanes(self, name: str) -> int:
        return math.prod(self.program.forms[name].shape)

    def run(self) -> ModelProgram:
        program = self.program
        drafts = list(map(_Draft, program.stages))
        made_by = {link.result: number for number, link in enumerate(program.links)}
        for number, draft in enumerate(drafts):
            for name in list(draft.inputs):
                is_gathered_here = number - 1 in self.gathers and made_by.get(name) == number - 1
                if name in self.widths and (is_gathered_here or name not in self.whole):
                    draft.join(name, program.forms[name], self.widths[name])
        for name, widths in self.widths.items():
            form, gathered = program.forms[name], made_by.get(name, -1)
            makers = [draft for draft, stage in zip(drafts, program.stages, strict=True) if name in stage.outputs]
            if makers:
                makers[0].split(name, form, widths, keeps=name in self.whole)
            elif gathered not in self.gathers:
                # Features, and rows that were gathered whole: the stage before the first gather of their slices copies these.
                readers = (number for number in self.gathers if name in program.gather(number).inputs)
                drafts[min(readers)].split(name, form, widths, keeps=False)
            elif name in self.whole:
                drafts[gathered + 1].give_whole(name, form, widths)
        stages, links = [drafts[0].stage()], list[Gather | BatchMeans]()
        for number, link in enumerate(program.links):
            parts = self._parts(program.gather(number), self.gathers[number]) if number in self.gathers else [link]
            links += parts
            stages += [_nothing()] * (len(parts) - 1) + [drafts[number + 1].stage()]
        return replace(program, stages=tuple(stages), links=tuple(links), forms=self._forms())

    def _parts(self, gather: Gather, widths: Sequence[int]) -> list[Gather | BatchMeans]:
        """One gather for each slice; slices of equal width share their kernels."""
        edges = {width: _narrowed(gather.edges, width) for width in set(widths)}
        return [
            replace(
                gather,
                edges=edges[width],
                inputs=tuple(_slice(name, part) if name in self.widths else name for name in gather.inputs),
                result=_slice(gather.result, part),
            )
            for part, width in enumerate(widths)
        ]

    def _forms(self) -> Mapping[str, Form]:
        found = {}
        for name, form in self.program.forms.items():
            if name not in self.widths or name in self.whole:
                found[name] = form
            for part, width in enumerate(self.widths.get(name, [])):
                found[_slice(name, part)] = Form(shape=(width,), dtype=form.dtype)
        return found


class _Draft:
    """A stage that is being changed."""

    def __init__(self, stage: Stage) -> None:
        self._stage, self.graph = stage, fx.Graph()
        results: Any = self.graph.graph_copy(stage.module.graph, {})
        given = [node for node in self.graph.nodes if node.op == "placeholder"]
        # A stage with regions of rows is given the function that runs them first.
        self._functions = given[: len(given) - len(stage.inputs)]
        self.inputs = dict(zip(stage.inputs, given[len(self._functions) :], strict=True))
        self.outputs: dict[str, fx.Node] = dict(zip(stage.outputs, results, strict=True))
        self._joined: dict[str, fx.Node] = {}

    def join(self, name: str, form: Form, widths: Sequence[int]) -> None:
        """Read a value as its slices."""
        parts = [self._read(_slice(name, part), (width,), form) for part, width in enumerate(widths)]
        first = [node for node in self.graph.nodes if node.op != "placeholder"][:1]
        with self.graph.inserting_before(first[0]) if first else nullcontext():
            rows = self._call(_aten.cat.default, (parts, 1), _rows((sum(widths),), form))
            if len(form.shape) != 1:
                rows = self._call(_aten.reshape.default, (rows, [-1, *form.shape]), _rows(form.shape, form))
        self._joined[name] = rows
        if (old := self.inputs.pop(name, None)) is not None:
            old.replace_all_uses_with(rows)
            self.outputs = {each: rows if node is old else node for each, node in self.outputs.items()}
            self.graph.erase_node(old)

    def give_whole(self, name: str, form: Form, widths: Sequence[int]) -> None:
        """Give a value whose slices were gathered."""
        if name not in self._joined:
            self.join(name, form, widths)
        self.outputs[name] = self._joined[name]

    def split(self, name: str, form: Form, widths: Sequence[int], *, keeps: bool) -> None:
        """Give the slices of a value, which the stage makes or reads."""
        made = self.outputs.get(name) if keeps else self.outputs.pop(name, None)
        rows = self._read(name, form.shape, form) if made is None else made
        if len(form.shape) != 1:
            rows = self._call(_aten.reshape.default, (rows, [-1, sum(widths)]), _rows((sum(widths),), form))
        # Copies, so that no slice is a part of a block that is dropped.
        parts = self._call(_aten.split_with_sizes_copy.default, (rows, list(widths), 1), None)
        for part, width in enumerate(widths):
            self.outputs[_slice(name, part)] = self._call(getitem, (parts, part), _rows((width,), form))

    def _read(self, name: str, shape: Sequence[int], form: Form) -> fx.Node:
        if name not in self.inputs:
            given = [node for node in self.graph.nodes if node.op == "placeholder"]
            nodes = list(self.graph.nodes)
            place = self.graph.inserting_after(given[-1]) if given else nullcontext()
            place = self.graph.inserting_before(nodes[0]) if nodes and not given else place
            with place:
                node = self.inputs[name] = self.graph.placeholder(name)
            node.meta["val"] = _rows(shape, form)
        return self.inputs[name]

    def _call(self, target: Callable[..., object], args: Any, value: Tensor | None) -> fx.Node:
        node = self.graph.call_function(target, args)
        if value is not None:
            node.meta["val"] = value
        return node

    def stage(self) -> Stage:
        """The changed stage."""
        self.graph.output(tuple(self.outputs.values()))
        given = [str(node.target) for node in self.graph.nodes if node.op == "placeholder"]
        return replace(
            self._stage,
            module=fx.GraphModule(self._stage.module, self.graph),
            inputs=tuple(given[len(self._functions) :]),
            outputs=tuple(self.outputs),
        )


def _nothing() -> Stage:
    """A stage between two slices."""
    graph = fx.Graph()
    graph.output(())
    return Stage(module=fx.GraphModule({}, graph), inputs=(), outputs=())


def _slice(name: str, part: int) -> str:
    return f"{name}_slice_{part}"


def _rows(shape: Sequence[int], form: Form) -> Tensor:
    return torch.empty((ROWS, *shape), dtype=form.dtype, device="meta")


def _narrowed(edges: EdgeWork, width: int) -> EdgeWork:
    """The work on the edges for rows of this width."""
    assert edges.function is not None
    return replace(edges, function=_narrowed_function(edges.function, width), derived={})


def _narrowed_function(function: EdgeFunction, width: int) -> EdgeFunction:
    def shape(value: Input | Op) -> tuple[int, ...]:
        return (width,) if lanes(value) > 1 else ()

    same: dict[str, str] = {}
    shapes = {given.name: shape(given) for given in function.inputs}
    ops = []
    for op in function.ops:
        args = tuple(same.get(arg, arg) if isinstance(arg, str) else arg for arg in op.args)
        if op.op in _SAME_LANES or (op.op == "broadcast" and shapes[str(args[0])] == shape(op)):
            same[op.name] = str(args[0])
            continue
        shapes[op.name] = shape(op)
        ops.append(replace(op, args=args, shape=shape(op)))
    outputs = tuple(
        replace(output, values=tuple(same.get(value, value) for value in output.values))
        for output in function.outputs
    )
    inputs = tuple(replace(given, shape=shape(given)) for given in function.inputs)
    return EdgeFunction(inputs=inputs, ops=tuple(ops), outputs=outputs, at=function.at)
