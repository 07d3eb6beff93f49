"""Engines: who runs a layer's four stages.

:class:`SagaLayer` checks its input and hands over to the current engine. The default one compiles layers; it is
registered by name in ``sagann/__init__.py``, and imported when the first layer runs. :class:`NaiveEngine`
materialises every edge in plain PyTorch: the definition that every other engine is held to.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from torch import Tensor

from sagann.graph.topology import Topology
from sagann.kernels.feature_rows import FeatureRows
from sagann.kernels.scatter import naive
from sagann.registry import DEFAULTS
from sagann.saga.accumulator import accumulate
from sagann.saga.edge import Edge

if TYPE_CHECKING:
    from sagann.saga.layer import SagaLayer


class Engine(Protocol):
    """Runs layers on checked input."""

    def run(self, layer: SagaLayer, topology: Topology, x: Tensor | FeatureRows, data: Tensor | None) -> Tensor:
        """Scatter, ApplyEdge, Gather, ApplyVertex.

        Args:
            layer: whose accumulator has been checked; its functions are the engine's to check.
            topology: the edges.
            x: [num_src, F]; the destinations are its first rows.
            data: the edge data that the layer reads, [num_edges, ...], or None.
        Returns:
            [num_dst, F'], differentiable.
        """
        ...


@runtime_checkable
class MapsFeatures(Protocol):
    """An engine that can have linear maps read features as they lie."""

    def maps_features(self, layer: SagaLayer, x: FeatureRows, data: Tensor | None) -> bool:
        """Whether linear maps are all that reads these features in the layer, so that they may stay sparse."""
        ...


class NaiveEngine:
    """One row per edge is materialised, and autograd sees every operator."""

    def run(self, layer: SagaLayer, topology: Topology, x: Tensor | FeatureRows, data: Tensor | None) -> Tensor:
        """Run the stages as they are written."""
        x = x.dense() if isinstance(x, FeatureRows) else x
        layer.check_functions(x, data)
        where = f"layer {type(layer).__name__}"
        edge = Edge(
            src=lambda: naive.scatter_src(topology, x),
            dst=lambda: naive.scatter_dst(topology, x),
            data=data,
            reader=where,
        )
        accum = accumulate(topology, layer.accumulator, layer.apply_edge(edge), layer.max_degree, where)
        return layer.apply_vertex(x[: topology.num_dst], accum)


_current: Engine | None = None


def current_engine() -> Engine:
    """The engine that runs layers now."""
    global _current
    if _current is None:
        module, name = DEFAULTS["engine"].split(":")
        _current = getattr(importlib.import_module(module), name)()
    assert _current is not None
    return _current


def set_engine(engine: Engine | None) -> None:
    """Run all layers by ``engine`` from now on; None brings the default back."""
    global _current
    _current = engine


@contextmanager
def using_engine(engine: Engine) -> Iterator[Engine]:
    """Run layers by ``engine`` inside the ``with`` block. Also gradients taken later are that engine's."""
    global _current
    before, _current = _current, engine
    try:
        yield engine
    finally:
        _current = before
