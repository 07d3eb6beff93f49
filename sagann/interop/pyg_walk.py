"""Walks: what a model of PyTorch Geometric gets for ``edge_index``, and what its layers do with it.

A layer that was :func:`routed` asks its ``edge_index`` who propagates: PyG, where it is a tensor; else the walk that the stand-in is of, which
calls the SAGA layer of this call of ``propagate``.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MethodType
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from sagann.errors import LayerError
from sagann.graph.topology import Topology
from sagann.interop.pyg_layer import PygLayer
from sagann.interop.pyg_rows import (
    Arguments,
    EdgeRows,
    StoredRow,
    UpdatedRow,
    arguments_of,
    computes_with,
    moved,
    of_hop,
    row_dim,
    sources_read,
)
from sagann.saga.engine import NotesInputs, current_engine

DEGREE_WEIGHTS = "gcn_weight"
"Edge data with the weights by degree."
WEIGHTS = StoredRow("weight")
_NORMALISING = (
    "APPNP",
    "ARMAConv",
    "DNAConv",
    "FAConv",
    "GCN2Conv",
    "GCNConv",
    "LGConv",
    "MixHopConv",
    "SGConv",
    "SSGConv",
    "TAGConv",
)
"Layers of PyG that weigh edges by the degrees of their ends."
_WITHOUT_LOOPS = ("ARMAConv", "LGConv", "TAGConv")
"Those of them that add no self-loops before."


class Walk:
    """A forward of a model of PyG."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model

    def name_of(self, tensor: Tensor) -> str | None:
        """The name of a parameter or buffer of the model; None for another tensor."""
        named = (*self.model.named_parameters(), *self.model.named_buffers())
        return next((name for name, each in named if each is tensor), None)

    def propagate(self, conv: nn.Module, given: Mapping[str, Any]) -> Tensor:
        """What the next call of ``propagate`` returns before ``update``, for these named arguments."""
        raise NotImplementedError

    def end(self) -> None:
        """The forward has ended."""

    def input_of(self, conv: nn.Module, x: Any) -> Any:
        """The rows that a layer is called with: a pair where it has fewer destinations than sources."""
        return x


class EdgeIndex:
    """Stands for the edges in a model of PyG, which may only pass it on to its layers."""

    def __init__(self, walk: Walk) -> None:
        self.walk = walk

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> NoReturn:
        raise computes_with("edge_index", getattr(func, "__name__", str(func)))

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        raise computes_with("edge_index", name)

    def _refuse(self, *_: object) -> NoReturn:
        raise computes_with("edge_index", "its entries")

    __getitem__ = __len__ = __iter__ = _refuse


class PlannedWalk(Walk):
    """A forward over some hops, by what is known of the model.

    Args:
        model: of PyG.
        layers: the calls of ``propagate``, in their order.
        levels: number of the hop that each of them walks.
        hops: topologies, one for each level.
    """

    def __init__(
        self, model: nn.Module, layers: Sequence[PygLayer], levels: Sequence[int], hops: Sequence[Topology]
    ) -> None:
        super().__init__(model)
        self.layers, self.levels, self.hops = layers, levels, hops
        self.number = 0
        "Number of the next call."

    def propagate(self, conv: nn.Module, given: Mapping[str, Any]) -> Tensor:
        """See :class:`Walk`."""
        number, self.number = self.number, self.number + 1
        layer = self.layers[number] if number < len(self.layers) else None
        if layer is None or layer.conv is not conv:
            raise changed(f"call {number + 1} of propagate is of {type(conv).__name__}")
        arguments, rows = arguments_of(conv, "message", given)
        if arguments != layer.called_with:
            raise changed(f"{type(conv).__name__} propagates other arguments")
        hop = self._hop(number, arguments, rows)
        out: Tensor = layer(hop, {name: of_hop(each, hop.num_given) for name, each in rows.items()})
        return out

    def _hop(self, number: int, arguments: Arguments, rows: Mapping[str, Tensor]) -> Topology:
        """The topology that a call walks, whose arguments have these rows."""
        return self.hops[self.levels[number]]

    def end(self) -> None:
        """Refuse a forward that has not called all layers."""
        if self.number != len(self.layers):
            raise changed(f"{self.number} calls of propagate, {len(self.layers)} on made-up vertices")

    def input_of(self, conv: nn.Module, x: Any) -> Any:
        """See :class:`Walk`."""
        if self.number == len(self.layers) or not isinstance(x, Tensor):
            return x
        hop = self.hops[self.levels[self.number]]
        return (x, x[: hop.num_dst]) if hop.num_dst < hop.num_given and _takes_pairs(conv) else x


class ReadingWalk(Walk):
    """A forward on made-up vertices that shows what the model propagates.

    Args:
        model: of PyG.
        topology: of the made-up vertices, with edge data.
    """

    def __init__(self, model: nn.Module, topology: Topology) -> None:
        super().__init__(model)
        self.topology = topology
        self.layers: list[PygLayer] = []

    def propagate(self, conv: nn.Module, given: Mapping[str, Any]) -> Tensor:
        """See :class:`Walk`."""
        arguments, rows = arguments_of(conv, "message", given)
        layer = PygLayer(conv, arguments, (self.topology, rows), self.model)
        self.layers.append(layer)
        out: Tensor = layer(self.topology, rows)
        return out


class SampledWalk(PlannedWalk):
    """A forward on made-up blocks, each smaller than the one before, that shows which level each layer walks."""

    def __init__(self, model: nn.Module, layers: Sequence[PygLayer], blocks: Sequence[Topology]) -> None:
        super().__init__(model, layers, [0] * len(layers), blocks)

    def input_of(self, conv: nn.Module, x: Any) -> Any:
        """See :class:`Walk`."""
        if isinstance(x, Tensor) and self.number < len(self.layers):
            self._find_level(self.number, len(x))
        return super().input_of(conv, x)

    def _hop(self, number: int, arguments: Arguments, rows: Mapping[str, Tensor]) -> Topology:
        # Rows that are read at destinations alone may be those of a hop's destinations, of which there is one less.
        read = sources_read(arguments)
        if rows:
            self._find_level(number, min(len(each) + (name not in read) for name, each in rows.items()))
        return super()._hop(number, arguments, rows)

    def _find_level(self, number: int, num_rows: int) -> None:
        self.levels = [*self.levels[:number], max(0, self.hops[0].num_src - num_rows), *self.levels[number + 1 :]]


@dataclass(frozen=True, slots=True)
class Preparation:
    """What the layers of PyG do to the edges in every forward."""

    adds_loops: bool
    "Whether the layers give every vertex a self-loop that has none."
    weighs: bool
    "Whether the layers weigh edges by the degrees of their ends."


def preparation_of(conv: nn.Module) -> Preparation:
    """What this layer does to its edges before it propagates."""
    names = [kind.__name__ for kind in type(conv).__mro__ if kind.__module__.startswith("torch_geometric.")]
    if any(name in _NORMALISING for name in names) and getattr(conv, "normalize", True):
        adds = not any(name in _WITHOUT_LOOPS for name in names)
        return Preparation(adds_loops=adds and getattr(conv, "add_self_loops", True), weighs=True)
    return Preparation(adds_loops=bool(getattr(conv, "add_self_loops", False)), weighs=False)


class _Routed:
    """A function of a layer, in the place of the layer's own."""

    def __init__(self, conv: nn.Module) -> None:
        self.conv = conv


class _Forward(_Routed):
    def __init__(self, conv: nn.Module) -> None:
        super().__init__(conv)
        self.__signature__ = inspect.signature(MethodType(type(conv).forward, conv))

    def __call__(self, x: Any, *args: Any, **kwargs: Any) -> Any:
        edges = next((each for each in (*args, *kwargs.values()) if isinstance(each, EdgeIndex)), None)
        if edges is not None:
            engine = current_engine()
            if isinstance(engine, NotesInputs) and _tensors(x):
                engine.note_input(_tensors(x)[0])
            x = edges.walk.input_of(self.conv, x)
        return type(self.conv).forward(self.conv, x, *args, **kwargs)


class _Propagate(_Routed):
    def __call__(self, edge_index: Any, size: Any = None, **given: Any) -> Any:
        conv: Any = self.conv
        if not isinstance(edge_index, EdgeIndex):
            return type(conv).propagate(conv, edge_index, size=size, **given)
        if preparation_of(conv).weighs:
            weights = given.get("edge_weight")
            if weights is not None and weights.source != WEIGHTS:
                raise computes_with("weights that are normalised by degree", type(conv).__name__)
            given["edge_weight"] = EdgeRows(StoredRow(DEGREE_WEIGHTS), {}, edge_index.walk.name_of)
        gathered = edge_index.walk.propagate(conv, given)
        gathered = moved(gathered, 0, row_dim(conv, gathered))
        return conv.update(gathered, **_arguments_of_update(conv, given))


class _UpdateEdges(_Routed):
    def __call__(self, edge_index: Any, size: Any = None, **given: Any) -> Any:
        conv: Any = self.conv
        if not isinstance(edge_index, EdgeIndex):
            return type(conv).edge_updater(conv, edge_index, size=size, **given)
        arguments, rows = arguments_of(conv, "edge_update", given)
        return EdgeRows(UpdatedRow(arguments), rows, edge_index.walk.name_of)


def routed(conv: nn.Module) -> None:
    """Have a layer of PyG ask its ``edge_index`` who propagates."""
    routes = {"forward": _Forward(conv), "propagate": _Propagate(conv), "edge_updater": _UpdateEdges(conv)}
    conv.__dict__.update(routes)


def changed(found: str) -> LayerError:
    """The error of a model that does other things than it did on made-up vertices."""
    return LayerError(
        "a model of PyTorch Geometric propagates now this, now that",
        value=found,
        where="the model's forward",
        fix="Let it call the same layers in the same order, in training and in evaluation; or write it with sagann's layers.",
    )


def _arguments_of_update(conv: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of ``update``: those of ``propagate`` as they are. A layer whose ``update`` reads rows of edges does not run."""
    names = list(inspect.signature(type(conv).update).parameters)[2:]
    return {name: given.get(name) for name in names}


def _tensors(value: Any) -> list[Tensor]:
    return [
        each for each in (value if isinstance(value, (tuple, list)) else [value]) if isinstance(each, torch.Tensor)
    ]


def _takes_pairs(conv: nn.Module) -> bool:
    """Whether a layer's ``forward`` says that it takes a pair of rows, of sources and of destinations."""
    parameters = inspect.signature(type(conv).forward).parameters
    annotation = str(parameters["x"].annotation).lower() if "x" in parameters else ""
    return "tuple" in annotation or "pair" in annotation
