"""The gathers that are timed: as an edge function, with its arrays, and the arrays that the yardstick takes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from sagann.graph import Topology
from sagann.kernels.edge.function import EdgeFunction, Input, Op, Output

FLOAT = torch.float32


@dataclass(frozen=True, kw_only=True, slots=True)
class Gather:
    function: EdgeFunction
    arrays: dict[str, Tensor]
    yardstick: list[Tensor]
    "The yardstick's inputs, in its order."
    results: list[Tensor]
    "Of the form of the yardstick's results, in its order; the first is compared."


def _input(name: str, side: str, *shape: int) -> Input:
    return Input(name=name, side=side, shape=shape, dtype=FLOAT)  # type: ignore[arg-type]


def _op(name: str, op: str, args: tuple, *shape: int, dtype: torch.dtype = FLOAT) -> Op:
    return Op(name=name, op=op, args=args, shape=shape, dtype=dtype)


def _form(*shape: int, dtype: torch.dtype = FLOAT) -> Tensor:
    return torch.empty(*shape, dtype=dtype, device="meta")


def _function(inputs: list[Input], ops: list[Op], reduce: str, *values: str) -> EdgeFunction:
    output = Output(reduce=reduce, values=values)  # type: ignore[arg-type]
    return EdgeFunction(inputs=tuple(inputs), ops=tuple(ops), outputs=(output,), at="dst")


def sum_of(topology: Topology, features: int) -> Gather:
    """Sum of source rows."""
    x, out = torch.randn(topology.num_src, features), _form(topology.num_dst, features)
    function = _function([_input("x", "src", features)], [], "sum", "x")
    return Gather(function=function, arrays={"x": x}, yardstick=[x], results=[out])


def weighted_sum(topology: Topology, features: int) -> Gather:
    """Sum of source rows times the edge's weight."""
    x, out = torch.randn(topology.num_src, features), _form(topology.num_dst, features)
    weight = torch.rand(topology.num_edges)
    inputs = [_input("x", "src", features), _input("w", "edge")]
    function = _function(inputs, [_op("m", "mul", ("x", "w"), features)], "sum", "m")
    return Gather(function=function, arrays={"x": x, "w": weight}, yardstick=[weight, x], results=[out])


def maximum(topology: Topology, features: int) -> Gather:
    """Maximum of source rows, its arguments kept."""
    x, out = torch.randn(topology.num_src, features), _form(topology.num_dst, features)
    edge = _form(topology.num_dst, features, dtype=torch.int64)
    function = _function([_input("x", "src", features)], [], "max", "x")
    return Gather(function=function, arrays={"x": x}, yardstick=[x], results=[out, edge])


def gated(topology: Topology, features: int) -> Gather:
    """Sum of sigmoid(a of the destination + b of the source) * x of the source."""
    x, b = torch.randn(topology.num_src, features), torch.randn(topology.num_src, features)
    a, out = torch.randn(topology.num_dst, features), _form(topology.num_dst, features)
    inputs = [_input("x", "src", features), _input("b", "src", features), _input("a", "dst", features)]
    ops = [
        _op("s", "add", ("a", "b"), features),
        _op("g", "sigmoid", ("s",), features),
        _op("m", "mul", ("g", "x"), features),
    ]
    function = _function(inputs, ops, "sum", "m")
    return Gather(function=function, arrays={"x": x, "a": a, "b": b}, yardstick=[a, b, x], results=[out])


def softmax(topology: Topology, features: int) -> Gather:
    """Softmax over leaky_relu(a of the destination + b of the source), of x of the source."""
    x, b = torch.randn(topology.num_src, features), torch.randn(topology.num_src)
    a, out = torch.randn(topology.num_dst), _form(topology.num_dst, features)
    top, denominator = _form(topology.num_dst), _form(topology.num_dst)
    inputs = [_input("x", "src", features), _input("b", "src"), _input("a", "dst")]
    ops = [
        _op("s", "add", ("a", "b")),
        _op("n", "mul", ("s", 0.2)),
        _op("p", "gt", ("s", 0.0), dtype=torch.bool),
        _op("l", "where", ("p", "s", "n")),
    ]
    function = _function(inputs, ops, "softmax", "l", "x")
    arrays = {"x": x, "a": a, "b": b}
    return Gather(function=function, arrays=arrays, yardstick=[a, b, x], results=[out, top, denominator])


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
