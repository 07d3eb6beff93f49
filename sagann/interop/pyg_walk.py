"""Walks: what a model of PyTorch Geometric gets for ``edge_index``, and what its layers do with it.

The model that runs is a shadow of the user's (:func:`shadowed`). A layer of it asks its ``edge_index`` who propagates: PyG, where it is a tensor;
else the walk that the stand-in is of, which calls the SAGA layer of this call of ``propagate``.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from operator import is_not
from types import MethodType
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from sagann.errors import LayerError
from sagann.graph.topology import Topology
from sagann.interop.pyg_layer import PygLayer
from sagann.interop.pyg_rows import (
    Arguments,
    EdgeRows,
    StoredRow,
    UpdatedRow,
    VertexRow,
    arguments_of,
    computes_with,
    moved,
    of_hop,
    row_dim,
    sources_in,
)
from sagann.saga.engine import current_engine, using_engine

DEGREE_WEIGHTS = "gcn_weight"
"Edge data with the weights by degree."
WEIGHTS = StoredRow("weight")
_ADDING = ("APPNP", "DNAConv", "FAConv", "GCN2Conv", "GCNConv", "MixHopConv", "SGConv", "SSGConv")
"Layers of PyG that weigh edges by the degrees of their ends, and add self-loops before."
_NORMALISING = (*_ADDING, "ARMAConv", "LGConv", "TAGConv")
"All that weigh edges so."


class EdgeIndex:
    """Stands for the edges in a model of PyG, which may ask for their form, and pass it on to its layers."""

    def __init__(self, walk: Walk) -> None:
        self.walk = walk

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> NoReturn:
        raise computes_with("edge_index", getattr(func, "__name__", str(func)))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name in ("to", "cpu", "cuda", "long", "contiguous"):
            # The edges lie where the rows do.
            return lambda *_, **__: self
        hop = self.walk.hop
        form: dict[str, Any] = {
            "device": hop.device,
            "is_cuda": hop.device.type == "cuda",
            "dtype": torch.int64,
            "ndim": 2,
        }
        form["dim"] = lambda: 2
        # A trace has a stand-in for a hop, and a worker a part of the edges.
        known = getattr(hop, "real", hop)
        if known.remote is None:
            shape = torch.Size([2, known.num_edges])
            form |= {
                "shape": shape,
                "numel": shape.numel,
                "size": lambda dim=None: shape if dim is None else shape[dim],
            }
        if name not in form:
            raise computes_with("edge_index", name)
        return form[name]

    def _refuse(self, *_: object) -> NoReturn:
        raise computes_with("edge_index", "its entries")

    __getitem__ = __len__ = __iter__ = _refuse


class Walk:
    """A forward of a model of PyG over some hops.

    Args:
        model: of PyG.
        layers: the calls of ``propagate``, in their order.
        levels: number of the hop that each of them walks.
        hops: topologies, one for each level.
    """

    def __init__(
        self, model: nn.Module, layers: Sequence[PygLayer], levels: Sequence[int], hops: Sequence[Topology]
    ) -> None:
        self.model, self.layers, self.levels, self.hops = model, layers, levels, hops
        self.number = 0
        "Number of the next call."
        self.has_ended = False
        "Whether a call comes from a checkpoint, which computes a part of the forward again."
        self.engine = current_engine()

    @property
    def hop(self) -> Topology:
        """The topology of the next call of ``propagate``."""
        return self.hops[self.levels[min(self.number, len(self.levels) - 1)]]

    def name_of(self, tensor: Tensor) -> str | None:
        """The name of a parameter or buffer of the model; None for another tensor."""
        named = (*self.model.named_parameters(), *self.model.named_buffers())
        return next((name for name, each in named if each is tensor), None)

    def propagate(self, conv: nn.Module, given: Mapping[str, Any]) -> Tensor:
        """What the next call of ``propagate`` returns before ``update``, for these named arguments."""
        number = self._number_again(conv, _num_rows(conv, given)) if self.has_ended else self.number
        self.number += not self.has_ended
        layer = self.layers[number] if number < len(self.layers) else None
        if layer is None or layer.conv is not conv:
            raise changed(f"call {number + 1} of propagate is of {type(conv).__name__}")
        arguments, rows = arguments_of(conv, "message", given)
        if arguments != layer.called_with:
            raise changed(f"{type(conv).__name__} propagates other arguments")
        hop = self._hop(number, arguments, rows)
        with using_engine(self.engine):
            out: Tensor = layer(hop, {name: of_hop(each, hop.num_given) for name, each in rows.items()})
        return out

    def _hop(self, number: int, arguments: Arguments, rows: Mapping[str, Tensor]) -> Topology:
        """The topology that a call walks, whose arguments have these rows."""
        return self.hops[self.levels[number]]

    def end(self) -> None:
        """The forward has ended. One that has called some of the layers is refused, or none where vertices become fewer."""
        is_sampled = any(hop.num_dst < hop.num_given for hop in self.hops)
        if self.number != len(self.layers) and (self.number or is_sampled):
            raise changed(f"{self.number} calls of propagate, {len(self.layers)} on made-up vertices")
        self.has_ended = True

    def input_of(self, conv: nn.Module, x: Any) -> Any:
        """The rows that a layer is called with: a pair where it has fewer destinations than sources."""
        if not isinstance(x, Tensor):
            return x
        number = self._number_again(conv, len(x)) if self.has_ended else self.number
        if number == len(self.layers):
            return x
        hop = self.hops[self.levels[number]]
        return (x, x[: hop.num_dst]) if hop.num_dst < hop.num_given and _takes_pairs(conv) else x

    def _number_again(self, conv: nn.Module, num_rows: int) -> int:
        """Number of a call that a checkpoint makes again: one of the same layer, of as many rows."""
        hops = {
            number: self.hops[self.levels[number]] for number, each in enumerate(self.layers) if each.conv is conv
        }
        found = {number: hop for number, hop in hops.items() if hop.num_given == num_rows}
        if len({id(hop) for hop in found.values()}) > 1:
            raise changed(f"a checkpoint of {type(conv).__name__}, which several levels share, may be any of them")
        return next(iter(found), len(self.layers))


class ReadingWalk(Walk):
    """A forward on made-up vertices, a topology with edge data, that shows what the model propagates."""

    def __init__(self, model: nn.Module, topology: Topology) -> None:
        self.layers: list[PygLayer] = []
        super().__init__(model, self.layers, [0], [topology])

    def propagate(self, conv: nn.Module, given: Mapping[str, Any]) -> Tensor:
        """See :class:`Walk`."""
        arguments, rows = arguments_of(conv, "message", given)
        self.layers.append(PygLayer(conv, arguments, (self.hop, rows), self.model))
        self.number += 1
        out: Tensor = self.layers[-1](self.hop, rows)
        return out


class SampledWalk(Walk):
    """A forward on made-up blocks, each smaller than the one before, that shows which level each layer walks."""

    def __init__(self, model: nn.Module, layers: Sequence[PygLayer], blocks: Sequence[Topology]) -> None:
        self.levels: list[int] = [0] * len(layers)
        super().__init__(model, layers, self.levels, blocks)

    def input_of(self, conv: nn.Module, x: Any) -> Any:
        """See :class:`Walk`."""
        if isinstance(x, Tensor) and self.number < len(self.layers):
            self._find_level(self.number, len(x))
        return super().input_of(conv, x)

    def _hop(self, number: int, arguments: Arguments, rows: Mapping[str, Tensor]) -> Topology:
        # Rows that are read at destinations alone may be those of a hop's destinations, of which there is one less.
        read = {each.name for each in sources_in(arguments, VertexRow) if each.end == "src"}
        if rows:
            self._find_level(number, min(len(each) + (name not in read) for name, each in rows.items()))
        return super()._hop(number, arguments, rows)

    def _find_level(self, number: int, num_rows: int) -> None:
        self.levels[number] = max(0, self.hops[0].num_src - num_rows)


@dataclass(frozen=True, slots=True)
class Preparation:
    """What the layers of PyG do to the edges in every forward."""

    adds_loops: bool = False
    "Whether the layers give every vertex a self-loop that has none."
    weighs: bool = False
    "Whether the layers weigh edges by the degrees of their ends."
    doubles_loops: bool = False
    "Whether the layers give a vertex that has a self-loop another one."


def preparation_of(conv: nn.Module) -> Preparation:
    """What this layer does to its edges before it propagates."""
    names = [kind.__name__ for kind in type(conv).__mro__ if kind.__module__.startswith("torch_geometric.")]
    if any(name in _NORMALISING for name in names):
        # Those that do not weigh edges add no loops either, whatever add_self_loops is.
        weighs = bool(getattr(conv, "normalize", True))
        adds = weighs and any(name in _ADDING for name in names)
        return Preparation(adds_loops=adds and getattr(conv, "add_self_loops", True), weighs=weighs)
    doubles = "SimpleConv" in names and getattr(conv, "combine_root", None) == "self_loop"
    return Preparation(adds_loops=doubles or bool(getattr(conv, "add_self_loops", False)), doubles_loops=doubles)


def _forward(conv: nn.Module, shadow: Any, /, *args: Any, **kwargs: Any) -> Any:
    edges = next((each for each in (*args, *kwargs.values()) if isinstance(each, EdgeIndex)), None)
    if edges is not None:
        given = inspect.signature(MethodType(type(conv).forward, conv)).bind(*args, **kwargs)
        name, x = next(iter(given.arguments.items()))
        for rows in _tensors(x)[:1]:
            current_engine().note_input(rows)
        given.arguments[name] = edges.walk.input_of(conv, x)
        args, kwargs = given.args, given.kwargs
    return type(conv).forward(shadow, *args, **kwargs)


def _propagate(conv: Any, shadow: Any, /, edge_index: Any, size: Any = None, **given: Any) -> Any:
    if not isinstance(edge_index, EdgeIndex):
        return type(conv).propagate(conv, edge_index, size=size, **given)
    if preparation_of(conv).weighs:
        weights = given.get("edge_weight")
        if weights is not None and weights.source != WEIGHTS:
            raise computes_with(
                "weights that are normalised by degree",
                type(conv).__name__,
                hint="Pass the model's argument edge_weight as it is; weights of other edge data go there once, before training: "
                "data.edge_weight = data.edge_attr.squeeze(-1).",
            )
        given["edge_weight"] = EdgeRows(StoredRow(DEGREE_WEIGHTS), {}, edge_index.walk.name_of)
    gathered = edge_index.walk.propagate(conv, given)
    gathered = moved(gathered, 0, row_dim(conv, gathered))
    # A layer whose update reads rows of edges does not run.
    names = list(inspect.signature(type(conv).update).parameters)[2:]
    return shadow.update(gathered, **{name: given.get(name) for name in names})


def _update_edges(conv: Any, shadow: Any, /, edge_index: Any, size: Any = None, **given: Any) -> Any:
    if not isinstance(edge_index, EdgeIndex):
        return type(conv).edge_updater(conv, edge_index, size=size, **given)
    arguments, rows = arguments_of(conv, "edge_update", given)
    return EdgeRows(UpdatedRow(arguments), rows, edge_index.walk.name_of)


_ROUTES: Mapping[str, Callable[..., Any]] = {
    "forward": _forward,
    "propagate": _propagate,
    "edge_updater": _update_edges,
}
"Functions of a layer's shadow, in the place of the layer's own."


@contextmanager
def shadowed(model: nn.Module) -> Iterator[nn.Module]:
    """A model that shares all that this one has, but whose layers of PyG ask their ``edge_index`` who propagates.

    The model itself stays as it is: threads may run it beside each other, and so may PyG. Attributes that a forward sets are the model's
    when the block ends.
    """
    from torch_geometric.nn import MessagePassing

    shadows: dict[nn.Module, nn.Module] = {}

    def shadow_of(module: nn.Module) -> nn.Module:
        if module in shadows:
            return shadows[module]
        shadows[module] = module
        # Layers may also lie in lists and dicts of the module.
        given = {
            name: value
            for name, value in vars(module).items()
            if name == "_modules" or (name[0] != "_" and isinstance(value, list | tuple | dict))
        }
        held = pytree.tree_map_only(nn.Module, shadow_of, given)
        is_conv = isinstance(module, MessagePassing)
        if is_conv or any(map(is_not, pytree.tree_leaves(given), pytree.tree_leaves(held))):
            found = shadows[module] = object.__new__(type(module))
            vars(found).update(vars(module), **held)
            for name, value in vars(module).items():
                if isinstance(value, MethodType) and value.__self__ is module:
                    vars(found)[name] = MethodType(value.__func__, found)
            if is_conv:
                vars(found).update({name: partial(route, module, found) for name, route in _ROUTES.items()})
        return shadows[module]

    shadow = shadow_of(model)
    before = {module: dict(vars(found)) for module, found in shadows.items() if found is not module}
    yield shadow
    for module, known in before.items():
        for name, value in vars(shadows[module]).items():
            ours = (isinstance(each, EdgeRows | EdgeIndex) for each in pytree.tree_leaves(value))
            if known.get(name, known) is not value and not any(ours):
                vars(module)[name] = value


def changed(found: str) -> LayerError:
    """The error of a model that does other things than it did on made-up vertices."""
    return LayerError(
        f"a model of PyTorch Geometric propagates now this, now that: {found} (in the model's forward)",
        hint="Let it call the same layers in the same order, in training and in evaluation; or write it with sagann's layers.",
    )


def _tensors(value: Any) -> list[Tensor]:
    return [each for each in pytree.tree_leaves(value) if isinstance(each, Tensor)]


def _num_rows(conv: nn.Module, given: Mapping[str, Any]) -> int:
    """The largest number of rows among named arguments."""
    return max(each.shape[row_dim(conv, each)] for each in _tensors(dict(given)))


def _takes_pairs(conv: nn.Module) -> bool:
    """Whether a layer's ``forward`` says that it takes a pair of rows, of sources and of destinations."""
    annotations = [
        str(each.annotation).lower()
        for each in list(inspect.signature(type(conv).forward).parameters.values())[1:2]
    ]
    return any(word in each for each in annotations for word in ("tuple", "pair"))
