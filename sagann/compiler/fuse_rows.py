"""Fuse rows: a region of pointwise operators and of reductions within rows becomes one pass over the vertices.

PyTorch reads and writes whole tensors for each operator; a GRU's gates are a dozen operators. A region is lowered like the
edges, over a graph in which every vertex has one edge, to itself. The backward is derived in the same way and computes the
intermediate values again, so only the region's inputs are kept.

References:
    Ours; Ma et al., NGra, 2018, Sec. 3.2 and NeuGraph, 2019, Sec. 3.4 fuse ApplyEdge only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor, fx
from torch.fx._lazy_graph_module import _LazyGraphModule

from sagann.compiler.lower import as_traced, is_pointwise, lower
from sagann.compiler.lowering import VIEWS, NotFusedError
from sagann.compiler.nodes import has_rows, name_of, row_bytes
from sagann.compiler.program import EdgeWork, Note, Stage
from sagann.compiler.stages import fused_rows
from sagann.compiler.trace import is_of_rows
from sagann.compiler.vjp import Backward
from sagann.kernels.accumulators import SUM, Gathering

if TYPE_CHECKING:
    from sagann.kernels.edge.function import Side

_aten = torch.ops.aten
_REDUCTIONS = frozenset([_aten.sum.dim_IntList, _aten.mean.dim, _aten.amax.default, _aten.amin.default])
# The backward computes a region again and reads its inputs again, so the forward must save at least this factor of bytes.
_SAVED = 2


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
        backward=Backward(function),
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
