"""The gathers that are timed: as an edge function, with its arrays, and the arrays that the yardstick takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from sagann.graph import Topology
from sagann.kernels.edge.builder import Builder
from sagann.kernels.edge.function import EdgeFunction, Input, Output

FLOAT = torch.float32


class Gather(NamedTuple):
    function: EdgeFunction
    arrays: dict[str, Tensor]
    yardstick: list[Tensor]
    "The yardstick's inputs, in its order."
    results: list[Tensor]
    "Of the form of the yardstick's results, in its order; the first is compared."


def _gather(
    reduce: Any,
    inputs: Mapping[str, tuple[Any, Tensor]],
    values: Callable[[Builder], Sequence[str]],
    yardstick: str,
    *results: Tensor,
) -> Gather:
    """A gather of inputs by name, each with its side; ``yardstick`` are the names of what the yardstick takes, a letter each."""
    builder = Builder(
        Input(name=name, side=side, shape=tuple(rows.shape[1:]), dtype=FLOAT)
        for name, (side, rows) in inputs.items()
    )
    function = builder.build([Output(reduce=reduce, values=tuple(values(builder)))], "dst")
    arrays = {name: rows for name, (_, rows) in inputs.items()}
    return Gather(function, arrays, [arrays[name] for name in yardstick], list(results))


def _form(*shape: int, dtype: torch.dtype = FLOAT) -> Tensor:
    return torch.empty(*shape, dtype=dtype, device="meta")


def sum_of(topology: Topology, features: int) -> Gather:
    """Sum of source rows."""
    x, out = torch.randn(topology.num_src, features), _form(topology.num_dst, features)
    return _gather("sum", {"x": ("src", x)}, lambda b: ["x"], "x", out)


def weighted_sum(topology: Topology, features: int) -> Gather:
    """Sum of source rows times the edge's weight."""
    x, out = torch.randn(topology.num_src, features), _form(topology.num_dst, features)
    inputs = {"x": ("src", x), "w": ("edge", torch.rand(topology.num_edges))}
    return _gather("sum", inputs, lambda b: [b.op("mul", "x", "w")], "wx", out)


def maximum(topology: Topology, features: int) -> Gather:
    """Maximum of source rows, its arguments kept."""
    x, out = torch.randn(topology.num_src, features), _form(topology.num_dst, features)
    edge = _form(topology.num_dst, features, dtype=torch.int64)
    return _gather("max", {"x": ("src", x)}, lambda b: ["x"], "x", out, edge)


def gated(topology: Topology, features: int) -> Gather:
    """Sum of sigmoid(a of the destination + b of the source) * x of the source."""
    x, b = torch.randn(topology.num_src, features), torch.randn(topology.num_src, features)
    a, out = torch.randn(topology.num_dst, features), _form(topology.num_dst, features)

    def values(make: Builder) -> list[str]:
        return [make.op("mul", make.op("sigmoid", make.op("add", "a", "b")), "x")]

    return _gather("sum", {"x": ("src", x), "b": ("src", b), "a": ("dst", a)}, values, "abx", out)


def softmax(topology: Topology, features: int) -> Gather:
    """Softmax over leaky_relu(a of the destination + b of the source), of x of the source."""
    x, b = torch.randn(topology.num_src, features), torch.randn(topology.num_src)
    a, out = torch.randn(topology.num_dst), _form(topology.num_dst, features)
    top, denominator = _form(topology.num_dst), _form(topology.num_dst)

    def values(make: Builder) -> list[str]:
        score = make.op("add", "a", "b")
        return [make.op("where", make.op("gt", score, 0.0), score, make.op("mul", score, 0.2)), "x"]

    inputs = {"x": ("src", x), "b": ("src", b), "a": ("dst", a)}
    return _gather("softmax", inputs, values, "abx", out, top, denominator)


GATHERS: dict[str, Callable[[Topology, int], Gather]] = {
    "sum": sum_of,
    "weighted_sum": weighted_sum,
    "max": maximum,
    "gated": gated,
    "softmax": softmax,
}
"Makers by the yardstick's name."


def topology_of(kind: str, num_vertices: int, num_edges: int) -> Topology:
    """A uniform graph, or one whose degrees fall off as a power law."""
    generator = torch.Generator().manual_seed(0)
    ends = torch.rand(2, num_edges, generator=generator)
    if kind == "power law":
        # Density of an id x falls as x^(-2/3): degrees follow a power law.
        ends = ends**3
    src, dst = (ends * num_vertices).long().clamp(max=num_vertices - 1)
    # Which vertices are the hubs says nothing about where they lie.
    order = torch.randperm(num_vertices, generator=generator)
    return Topology.from_coo(src=order[src], dst=order[dst], num_src=num_vertices)
