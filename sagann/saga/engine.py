"""Engines: who runs a layer's four stages.

:class:`SagaLayer` checks its input and hands over to the current engine. The default one compiles layers; it is
registered by name in ``sagann/__init__.py``, and imported when the first layer runs. :class:`NaiveEngine`
materialises every edge in plain PyTorch: the definition that every other engine is held to.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING

from torch import Tensor

from sagann.errors import require_type
from sagann.graph.topology import Topology
from sagann.kernels import naive
from sagann.kernels.feature_rows import FeatureRows
from sagann.registry import default
from sagann.saga.edge import Edge, accumulate, unnamed

if TYPE_CHECKING:
    from sagann.saga.layer import SagaLayer


VertexRows = Mapping[str, Tensor | FeatureRows]
"Rows of vertices [num_src, ...] by name; a single tensor has the empty name."
EdgeData = Mapping[str, Tensor]
"Edge data [num_edges, ...] by name; a single tensor has the empty name."


class Engine(ABC):
    """Runs layers on checked input."""

    @abstractmethod
    def run(self, layer: SagaLayer, topology: Topology, x: VertexRows, data: EdgeData) -> Tensor:
        """Scatter, ApplyEdge, Gather, ApplyVertex.

        Args:
            layer: whose accumulator has been checked; its functions are the engine's to check.
            topology: the edges.
            x: the layer's vertex rows; the destinations are the first rows.
            data: the edge data that the layer reads.
        Returns:
            [num_dst, F'], differentiable.
        """

    def maps_features(self, layer: SagaLayer, x: FeatureRows, data: EdgeData) -> bool:
        """Whether linear maps are all that reads these features in the layer, so that they may stay sparse."""
        return False

    def note_input(self, x: Tensor) -> None:
        """A layer that is made of several SAGA layers, or of other things, is called with these rows, and then runs them."""


class NaiveEngine(Engine):
    """One row per edge is materialised, and autograd sees every operator."""

    def run(self, layer: SagaLayer, topology: Topology, x: VertexRows, data: EdgeData) -> Tensor:
        """Run the stages as they are written."""
        rows = {name: each.dense() if isinstance(each, FeatureRows) else each for name, each in x.items()}
        layer.check_functions(rows, data)
        where = f"layer {type(layer).__name__}"
        edge = edges_of(topology, rows, data, where)
        accum = accumulate(topology, layer.accumulator, layer.apply_edge(edge), layer.max_degree, where)
        return layer.apply_vertex(unnamed({name: each[: topology.num_dst] for name, each in rows.items()}), accum)


def edges_of(topology: Topology, rows: Mapping[str, Tensor], data: EdgeData, reader: str) -> Edge:
    """All edges of a topology; rows of vertices [num_src, ...] are scattered when they are read."""
    return Edge(
        src={name: partial(_scatter_src, topology, each) for name, each in rows.items()},
        dst={name: partial(naive.scatter_dst, topology, each) for name, each in rows.items()},
        data=data,
        reader=reader,
    )


def _scatter_src(topology: Topology, rows: Tensor) -> Tensor:
    remote = topology.remote
    return naive.scatter_src(topology, rows if remote is None else remote.complete({"": rows})[""])


_AN_ENGINE = "Pass an engine, as sagann.saga.NaiveEngine()."
_default: Engine | None = None
"Of contexts that have chosen none."
_chosen: ContextVar[Engine] = ContextVar("engine")


def current_engine() -> Engine:
    """The engine that runs layers in this context."""
    global _default
    chosen = _chosen.get(None)
    if chosen is not None:
        return chosen
    if _default is None:
        _default = default("engine")()
    assert _default is not None
    return _default


def set_engine(engine: Engine | None) -> None:
    """Run layers by ``engine`` from now on, wherever :func:`using_engine` says nothing else; None brings the default back."""
    global _default
    require_type(engine, Engine, where="set_engine", hint=_AN_ENGINE, optional=True)
    _default = engine


@contextmanager
def using_engine(engine: Engine) -> Iterator[Engine]:
    """Run layers by ``engine`` inside the ``with`` block. Also gradients taken later are that engine's.

    It holds for the context (:mod:`contextvars`): not for other threads, unless they run in a copy of it.
    """
    require_type(engine, Engine, where="using_engine", hint=_AN_ENGINE)
    token = _chosen.set(engine)
    try:
        yield engine
    finally:
        _chosen.reset(token)
