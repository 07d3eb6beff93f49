"""Ways to run a layer over the edges of a graph, each of which cuts them in its own way, and what they are held to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from sagann.graph import Topology
from sagann.nn import GNN
from sagann.plan.intervals import equal_vertices
from sagann.runtime.in_memory.engine import CompiledEngine
from sagann.runtime.streaming.streamed import StreamedModel
from sagann.saga import Edge, Engine, NaiveEngine, using_engine
from tests.tolerances import largest

Run = Callable[[Topology, Tensor, nn.Module], Tensor]


def by(engine: Engine) -> Run:
    def run(topology: Topology, x: Tensor, layer: nn.Module) -> Tensor:
        with using_engine(engine):
            return layer(topology, x)

    return run


def in_memory(**options: Any) -> Run:
    return by(CompiledEngine(**options))


def in_tiles(tile_edges: int) -> Run:
    """A layer whose messages are :func:`not_fused` where its attribute ``tiled`` is true."""

    def run(topology: Topology, x: Tensor, layer: nn.Module) -> Tensor:
        layer.tiled, engine = True, CompiledEngine(tile_edges=tile_edges)
        out = by(engine)(topology, x, layer)
        (program,) = engine.programs_of(layer)
        assert program.edges.function is None
        return out

    return run


def streamed(count: int, dialect: str = "auto") -> Run:
    def run(topology: Topology, x: Tensor, layer: nn.Module) -> Tensor:
        return StreamedModel(GNN([layer]), [topology], equal_vertices(len(x), count), dialect=dialect)(x)

    return run


as_written = by(NaiveEngine())


def not_fused(rows: Tensor, edge: Edge) -> Tensor:
    """The same rows of an edge, by operators that have no fused form, and of both ends, so that they stay on the edges."""
    rows = rows + 0 * edge.dst.detach()[:, : rows.shape[1]]
    return rows.cumsum(-1).diff(prepend=0 * rows[:, :1])


def _deviation(rows: Tensor) -> Tensor:
    found = rows.var(0, correction=0).clamp(min=1e-5).sqrt()
    return found.masked_fill(found <= 1e-5**0.5, 0)


OF_ROWS: dict[str, Callable[[Tensor], Tensor]] = {
    "sum": lambda rows: rows.sum(0),
    "mean": lambda rows: rows.mean(0),
    "max": lambda rows: rows.max(0).values,
    "min": lambda rows: rows.min(0).values,
    "var": lambda rows: rows.var(0, correction=0),
    "std": _deviation,
    "mul": lambda rows: rows.prod(0),
}
"What the rows of a vertex's in-edges give."
EMPTY = {"mul": 1.0}
"What no row gives, where it is not 0."


def assert_right(
    make: Callable[[], nn.Module],
    expected: Callable[[Topology, Tensor], Tensor],
    topology: Topology,
    x: Tensor,
    runs: Sequence[Run],
    tolerance: float,
) -> None:
    """Each run of a new layer has the values and gradients of a function, NaN included. Those of half precision are compared in float32."""
    wanted = (x.float() if x.dtype in (torch.float16, torch.bfloat16) else x.clone()).requires_grad_()
    result = expected(topology, wanted)
    upstream = torch.randn(result.shape, generator=torch.Generator().manual_seed(1)).to(x.dtype)
    (gradient,) = torch.autograd.grad(
        result, wanted, upstream.to(wanted.dtype), materialize_grads=True, allow_unused=True
    )
    for run in runs:
        given = x.clone().requires_grad_()
        out = run(topology, given, make())
        (found,) = torch.autograd.grad(out, given, upstream)
        for ours, theirs in ((out, result), (found, gradient)):
            # A hub's sums are of many terms.
            atol = tolerance * max(1.0, largest(theirs))
            torch.testing.assert_close(ours.to(theirs.dtype), theirs, rtol=tolerance, atol=atol, equal_nan=True)
