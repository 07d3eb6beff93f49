"""Pooling by graph: the rows of each graph's vertices become one row for the graph.

That is a gather like any other: every vertex sends its row along one edge to its graph. So the kernels of layers run it, forward and
backward.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from sagann.errors import InputError, LayerError, require_type
from sagann.graph import Topology, id_dtype
from sagann.graph.checks import check_offsets, wrong_form
from sagann.saga import SagaLayer
from sagann.saga.accumulator import check_accumulator

_WHERE = "pool"


def pool(rows: Tensor, graph_ptr: Tensor, how: str | tuple[str, ...] = "mean") -> Tensor:
    """Gather the rows of each graph's vertices into one row for the graph, differentiably.

    Equal to PyG's ``global_add_pool``, ``global_mean_pool`` and ``global_max_pool``, but that of equal maxima the first one gets the
    gradient, as in a layer.

    Args:
        rows: floating point [num_vertices, F].
        graph_ptr: int64 [num_graphs + 1], on the device of ``rows``: graph g has the rows ``graph_ptr[g]`` to ``graph_ptr[g + 1] - 1``.
        how: an accumulator that reduces messages of one value: 'sum', 'mean', 'max', 'min', 'var', 'std' or 'mul'. With a tuple of
            several, their results stand side by side.
    Returns:
        [num_graphs, F], or F times the number of accumulators. The row of a graph without vertices is that of a vertex without in-edges:
        0, and 1 for 'mul'.
    Raises:
        InputError: the offsets do not fit the rows.
        LayerError: ``how`` is no such accumulator.
    Example:
        >>> pool(torch.tensor([[1.0], [3.0], [5.0]]), torch.tensor([0, 2, 3]), "mean")
        tensor([[2.],
                [5.]])
    """
    check_pool(how, where=f"{_WHERE}, how")
    _check(rows, graph_ptr)
    num_rows, num_graphs = len(rows), len(graph_ptr) - 1
    if num_graphs > num_rows:
        # The destinations of a topology are the first of its sources, so graphs without vertices need sources that no edge reads.
        rows = torch.cat([rows, rows.new_zeros(num_graphs - num_rows, *rows.shape[1:])])
    vertices = torch.arange(num_rows, dtype=id_dtype(len(rows)), device=rows.device)
    topology = Topology(indptr=graph_ptr, indices=vertices, num_src=len(rows), validate=False)
    pooled: Tensor = _layer(how)(topology, rows)
    return pooled


class _Pooling(SagaLayer):
    """A layer without parameters, which gathers its input's rows."""

    def __init__(self, how: str | tuple[str, ...]) -> None:
        super().__init__()
        self.accumulator = how


# The layer is no part of a model: a model that pools has no further hop.
_layer = cache(_Pooling)


def check_pool(how: str | tuple[str, ...], *, where: str) -> None:
    """Refuse what is no accumulator that can pool; ``where`` is the argument, for errors."""
    require_type(how, (str, tuple), where=where, hint="Name an accumulator, or several in a tuple.")
    if how in ("softmax", "concat"):
        raise LayerError(
            f"an accumulator that cannot pool: '{how}' does not reduce one value of each vertex (in {where})",
            hint="Choose sum, mean, max, min, var, std or mul; weight rows by a score of each before a sum.",
        )
    check_accumulator(how, None, where)


def _check(rows: Tensor, graph_ptr: Tensor) -> None:
    for name, tensor in (("rows", rows), ("graph_ptr", graph_ptr)):
        require_type(tensor, Tensor, where=f"{_WHERE}, {name}", hint="Pass pool(rows, batch.graph_ptr, 'mean').")
    if rows.ndim < 2 or rows.layout != torch.strided:
        hint = "Pass a row for each vertex: rows.unsqueeze(1) for a number each."
        raise wrong_form(rows, "a dense tensor [num_vertices, F]", where=f"{_WHERE}, rows", hint=hint)
    where = f"{_WHERE}, graph_ptr"
    if graph_ptr.dtype != torch.int64 or graph_ptr.ndim != 1 or len(graph_ptr) == 0:
        hint = "Pass batch.graph_ptr. Of a graph number for each vertex, sorted, graph_ptr is the cumulative sum of the counts, after a 0."
        raise wrong_form(graph_ptr, "torch.int64 [num_graphs + 1]", where=where, hint=hint)
    if graph_ptr.device != rows.device:
        raise InputError(
            f"rows and offsets are on different devices: {rows.device} and {graph_ptr.device} (in {_WHERE})",
            hint="Move both with .to(device).",
        )
    check_offsets(graph_ptr, len(rows), "graph offsets", where=where)
