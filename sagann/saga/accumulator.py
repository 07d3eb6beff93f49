"""Accumulators: how Gather reduces the rows of a destination's in-edges.

User-defined accumulators are not accepted: their derivative would have to run through the irregular
structure of the graph, which no compiler could fuse or stream (NGra, Sec. 2.2).
"""

from __future__ import annotations

from torch import Tensor

from sagann.errors import LayerError
from sagann.graph.topology import Topology
from sagann.kernels.accumulators import ACCUMULATORS, gathering


def check_accumulator(accumulator: object, max_degree: int | None, where: str) -> None:
    """Refuse what is not an accumulator, or a tuple of some that can be combined.

    Raises:
        LayerError: an accumulator is unknown or a function, or cannot be one of several, or concat lacks its ``max_degree``.
    """
    names = accumulator if isinstance(accumulator, tuple) and accumulator else (accumulator,)
    for name in names:
        if not isinstance(name, str) or name not in ACCUMULATORS:
            shown = repr(name) if isinstance(name, str) else f"a {type(name).__name__}"
            raise LayerError(
                "unknown accumulator",
                value=f"{shown}, expected one of {', '.join(ACCUMULATORS)}, or a tuple of several",
                where=where,
                fix="Choose one of these; user-defined accumulators are not accepted, because their derivative "
                "through the graph could be neither fused nor streamed. Put your own function in apply_edge.",
            )
    form = gathering(names)
    alone = [
        each.name for each in form.accumulators if each.reduction.num_values > 1 or each.reduction.rows != "row"
    ]
    if not form.is_one and (alone or len(set(names)) < len(names)):
        raise LayerError(
            "accumulators that cannot be combined",
            value=f"{', '.join(alone)} among {len(names)}" if alone else f"{', '.join(names)}, one of them twice",
            where=where,
            fix="Combine different accumulators that take one message, or use another layer for the others.",
        )
    if form.is_sized and (not isinstance(max_degree, int) or max_degree < 1):
        raise LayerError(
            f"the {accumulator} accumulator needs a stated width",
            value=f"max_degree = {max_degree!r}, expected a positive int",
            where=where,
            fix="Set max_degree to the largest in-degree.",
        )


def accumulate(
    topology: Topology, accumulator: str | tuple[str, ...], output: object, max_degree: int | None, where: str
) -> Tensor:
    """Gather ApplyEdge's ``output`` at the destinations.

    Args:
        topology: the edges.
        accumulator: the name of one, or of several.
        output: what ApplyEdge returned: a tensor [num_edges, ...], or (score, value) for softmax.
        max_degree: the width of concat.
        where: the layer, for messages.
    Returns:
        [num_dst, ...].
    Raises:
        LayerError: ``output`` has not the form that the accumulator takes.
    """
    form = gathering(accumulator, max_degree or 0)
    if form.num_values == 2:
        return form.gather(topology, _score_and_value(output, topology.num_edges, where))
    rows = _edge_rows(output, topology.num_edges, where)
    if not form.is_one and rows.ndim < 2:
        raise LayerError(
            "several accumulators need rows of features",
            value=f"{_form(rows)}, expected [{topology.num_edges}, ..., F]",
            where=where,
            fix="Return a tensor with a dimension of features, along which the results are concatenated.",
        )
    return form.gather(topology, [rows])


def _edge_rows(output: object, num_edges: int, where: str) -> Tensor:
    if isinstance(output, Tensor) and output.ndim >= 1 and output.shape[0] == num_edges:
        return output
    raise LayerError(
        "apply_edge must return one row per edge",
        value=f"{_form(output)}, expected a tensor [{num_edges}, ...]",
        where=where,
        fix="Return a tensor whose dimension 0 is the edges; (score, value) pairs need accumulator = 'softmax'.",
    )


def _score_and_value(output: object, num_edges: int, where: str) -> tuple[Tensor, Tensor]:
    if isinstance(output, tuple) and len(output) == 2:
        score, value = output
        if isinstance(score, Tensor) and isinstance(value, Tensor) and score.ndim >= 1:
            begins_alike = score.ndim < value.ndim and score.shape == value.shape[: score.ndim]
            if begins_alike and score.shape[0] == num_edges:
                return score, value
        output = f"({_form(score)}, {_form(value)})"
    raise LayerError(
        "apply_edge must return (score, value) for the softmax accumulator",
        value=f"{_form(output)}, expected score [{num_edges}] with value [{num_edges}, F], "
        f"or score [{num_edges}, H] with value [{num_edges}, H, D]",
        where=where,
        fix="Return a tuple of two tensors of these shapes.",
    )


def _form(value: object) -> str:
    if isinstance(value, Tensor):
        return f"a tensor {list(value.shape)}"
    return value if isinstance(value, str) else f"a {type(value).__name__}"
