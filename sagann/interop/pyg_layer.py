"""PygLayer: what a ``MessagePassing`` layer of PyTorch Geometric propagates, as a SAGA layer.

A layer of PyG calls ``propagate`` with named arguments. PyG hands them to the layer's ``message``: an argument ``x`` as ``x_j``, its rows at
the sources, and ``x_i``, at the destinations; a row per edge as it is. A PygLayer is one such call. Its ApplyEdge runs the same ``message``,
of the same module, on the rows that Scatter gives; what the layer computes before and after is left to the layer.

A softmax over the in-edges, which PyG's attention calls within ``message`` or ``edge_update``, becomes the softmax accumulator: in the place of
the weights the message gets ones, and the accumulator weighs what it returns. That is the same for messages in proportion to their weight;
:class:`sagann.interop.pyg_model.PygModel` compares its numbers with PyG's before it is used.

Aggregations by a name, or several of them side by side, are accumulators of the same name. Two need more: ``SoftmaxAggregation`` weighs
messages by the softmax of themselves, column by column; ``DegreeScalerAggregation`` multiplies what several aggregations give by functions of
the degree, which is the sum of a one for each edge.

References:
    Fey and Lenssen, Fast Graph Representation Learning with PyTorch Geometric, ICLR workshop 2019, Sec. 2. Corso et al., Principal
    Neighbourhood Aggregation for Graph Nets, NeurIPS 2020, Eq. 5-8. Li et al., DeeperGCN, 2020, Eq. 3.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import FunctionType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from sagann.errors import LayerError
from sagann.graph.topology import Topology
from sagann.interop.pyg_example import ROW_CACHES
from sagann.interop.pyg_rows import Arguments, Index, Parameter, StoredRow, moved, row_dim, sources_in, without_one
from sagann.saga import Edge, SagaLayer
from sagann.saga.engine import edges_of

_NAMES = {
    "SumAggregation": "sum",
    "MeanAggregation": "mean",
    "MaxAggregation": "max",
    "MinAggregation": "min",
    "MulAggregation": "mul",
    "VarAggregation": "var",
    "StdAggregation": "std",
}
"Accumulators, by the names of PyG's aggregations."
_SCALERS: dict[str, Callable[[Tensor, Any], Tensor]] = {
    "amplification": lambda degree, known: torch.log(degree + 1) / known.avg_deg_log,
    "attenuation": lambda degree, known: known.avg_deg_log / torch.log(degree.clamp(min=1) + 1),
    "linear": lambda degree, known: degree / known.avg_deg_lin,
    "inverse_linear": lambda degree, known: known.avg_deg_lin / degree.clamp(min=1),
}
"Factors by the degree, which the aggregation's averages scale; 'identity' has none."


@dataclass(frozen=True, slots=True)
class Aggregation:
    """How a layer gathers: by an accumulator of the same name, or several of them side by side."""

    accumulator: Any
    scalers: tuple[str, ...] = ()
    "Functions of the degree that multiply what was gathered, one after the other."


def aggregation_of(conv: Any) -> Aggregation:
    """What gathers as the layer's aggregation does."""
    module, scalers = conv.aggr_module, tuple[str, ...]()
    if type(module).__name__ == "SoftmaxAggregation":
        return Aggregation("softmax")
    if type(module).__name__ == "DegreeScalerAggregation":
        module, scalers = module.aggr, tuple(module.scaler)
        if unknown := set(scalers) - {"identity", *_SCALERS}:
            raise _not_known(conv, f"scalers {', '.join(sorted(unknown))}")
    several = getattr(module, "aggrs", None)
    names = tuple(_NAMES.get(type(each).__name__) for each in several or [module])
    if None in names or getattr(module, "mode", "cat") != "cat":
        raise _not_known(conv, f"aggr = {' '.join(str(module).split())}")
    gathered = names if several else names[0]
    return Aggregation({"rows": gathered, "degree": "sum"} if scalers else gathered, scalers)


def _not_known(
    conv: nn.Module, found: str, expected: str = f"{', '.join(_NAMES.values())}, or a list of these"
) -> LayerError:
    return LayerError(
        f"a layer of PyTorch Geometric gathers in a way that is not known: {found}, expected {expected} (in layer {type(conv).__name__})",
        hint="Write it as sagann.SagaLayer: 'Coming from PyG or DGL' in docs/quickstart.md says what is what.",
    )


def require_usual(conv: Any) -> None:
    """Refuse a layer of PyG that does what a SAGA layer does not."""
    from torch_geometric.nn import MessagePassing

    found = ""
    if type(conv).aggregate is not MessagePassing.aggregate:
        found = "it has an aggregate of its own"
    elif conv.flow != "source_to_target":
        found = f"flow = {conv.flow!r}"
    elif getattr(conv, "improved", False):
        found = "improved = True"
    elif getattr(conv, "cached", False) and any(hasattr(conv, name) for name in ROW_CACHES):
        found = "cached = True"
    elif conv.explain or any(
        hooks
        for name, hooks in vars(conv).items()
        if name.endswith("_hooks") and name.startswith(("_propagate", "_message", "_aggregate", "_edge_update"))
    ):
        found = "hooks of PyG, or an explanation"
    if found:
        raise LayerError(
            f"a layer of PyTorch Geometric does what a SAGA layer cannot: {found} (in layer {type(conv).__name__})",
            hint="Build it without, or write it as sagann.SagaLayer: 'Coming from PyG or DGL' in docs/quickstart.md says what is what.",
        )


class Call:
    """A call of ``message`` on a batch of edges."""

    def __init__(self, conv: nn.Module, edge: Edge, parameter: Callable[[str], Tensor]) -> None:
        self.conv, self.edge, self.parameter = conv, edge, parameter
        self.scores: list[Tensor] = []
        "Scores of the edges that the message called softmax with, one tensor for each call."

    def message(self, arguments: Arguments) -> Tensor:
        """The messages of these edges, [E, ...]."""
        found: Tensor = self.run("message", arguments)
        return moved(found, row_dim(self.conv, found), 0)

    def run(self, name: str, arguments: Arguments) -> Any:
        """What a function of the layer returns for these edges."""
        given = {argument: source.read(self) for argument, source in arguments}
        # Attributes that the function sets, such as the last weights of attention, are not kept.
        kind: Any = type(self.conv)
        conv: Any = object.__new__(_with_softmax(kind))
        vars(conv).update(vars(self.conv))
        return getattr(conv, name)(**given)


def _softmax(src: Tensor, index: Any = None, ptr: object = None, num_nodes: object = None, dim: int = 0) -> Tensor:
    """In the place of PyG's softmax: notes the scores, and gives ones."""
    if type(index) is not Index or dim not in (0, -src.ndim):
        raise LayerError(
            f"a softmax over other rows than a destination's edges: index {type(index).__name__}, dim {dim} "
            "(in its message or edge_update)",
            hint="Call softmax(scores, index) with the index that message gets, or write the layer as sagann.SagaLayer.",
        )
    index.scores.append(src)
    return torch.ones_like(src)


@lru_cache(maxsize=256)
def _with_softmax(kind: type) -> type:
    """A subclass of a layer's class in which PyG's softmax is ours, for all functions that its users have written."""
    from torch_geometric.nn import MessagePassing

    users = [each for each in kind.__mro__ if each not in MessagePassing.__mro__]
    own = {name: _replaced(member) for each in reversed(users) for name, member in vars(each).items()}
    own = {name: member for name, member in own.items() if isinstance(member, FunctionType | staticmethod)}
    # What a function calls with super() is found in subclasses of the bases.
    bases = [_with_softmax(each) for each in kind.__bases__ if each in users and issubclass(each, MessagePassing)]
    return type(kind)(kind.__name__, (kind, *bases), {**own, "__module__": kind.__module__})


class _Names(dict[str, Any]):
    """Names that a function or a user of a module reads, of which PyG's softmax is ours. They are looked up when they are read."""

    def __init__(self, known: Mapping[str, Any]) -> None:
        super().__init__()
        self.known = known

    def __missing__(self, name: str) -> Any:
        return _replaced(self.known[name])

    def __getattr__(self, name: str) -> Any:
        return self[name]


def _replaced(value: Any) -> Any:
    """Ours for PyG's softmax; for a function that may call it, or a module that has it, one that calls ours."""
    from torch_geometric.utils import softmax

    if value is softmax:
        return _softmax
    if isinstance(value, staticmethod):
        return staticmethod(_replaced(value.__func__))
    if isinstance(value, ModuleType) and value.__name__.startswith("torch_geometric"):
        return _Names(vars(value))
    if not isinstance(value, FunctionType) or value.__module__.startswith(("torch.", "torch_geometric.utils")):
        return value
    function = inspect.unwrap(value)
    names = _Names(function.__globals__)
    found = FunctionType(function.__code__, names, function.__name__, function.__defaults__, function.__closure__)
    found.__kwdefaults__ = function.__kwdefaults__
    return found


class PygLayer(SagaLayer):
    """One call of ``propagate`` of a layer of PyG, without what the layer computes before and after.

    It is called with the vertex rows that the messages read, by name (:func:`arguments_of`).

    Args:
        conv: the layer of PyG, whose parameters are this one's.
        arguments: of its ``message``.
        example: a topology with edge data, and rows of its vertices, to run ``message`` on.
        model: the model of PyG, whose modules may compute rows of edges.
    """

    def __init__(
        self,
        conv: nn.Module,
        arguments: Arguments,
        example: tuple[Topology, Mapping[str, Tensor]],
        model: nn.Module,
    ) -> None:
        super().__init__()
        self.conv = conv
        owners = dict.fromkeys(each.name.rpartition(".")[0] for each in sources_in(arguments, Parameter))
        self.owners = nn.ModuleList(model.get_submodule(name) for name in owners)
        "Modules of the model that compute rows of edges."
        self._numbers = {name: number for number, name in enumerate(owners)}
        self.aggregation = aggregation_of(conv)
        self.message_shape: tuple[int, ...] = ()
        "Shape of a message of one edge."
        self.called_with = arguments
        "The arguments as the layer gives them."
        self.arguments = arguments
        "Those that the message reads, and None for the others."
        # Rows of the example are all 0 behind ReLUs that have died, and then no message depends on anything.
        generator, (topology, rows) = torch.Generator().manual_seed(0), example
        drawn = {
            name: torch.rand(each.shape, generator=generator).to(each) if each.is_floating_point() else each
            for name, each in rows.items()
        }
        scores = self._scores_on((topology, drawn))
        if len(scores) > 1:
            raise _not_known(conv, f"{len(scores)} softmaxes in one message", "one softmax")
        self.accumulator = self.aggregation.accumulator
        if scores:
            if self.accumulator != "sum":
                raise _not_known(conv, f"a softmax, and then {self.accumulator}", "their sum")
            self.accumulator = "softmax"
        self.edge_data = tuple(dict.fromkeys(each.name for each in sources_in(self.arguments, StoredRow))) or None  # type: ignore[misc]

    def apply_edge(self, edge: Edge) -> Any:
        """The messages; with a softmax, scores and messages without weights."""
        call = Call(self.conv, edge, self._parameter)
        message = call.message(self.arguments)
        if self.aggregation.scalers:
            one = torch.ones_like(message[(slice(None), *[slice(1)] * (message.ndim - 1))])
            return {"rows": message, "degree": one}
        if self.accumulator != "softmax":
            return message
        # PyG's softmax aggregation weighs messages by the softmax of themselves.
        aggregation: Any = self.conv.aggr_module
        scores = call.scores[0] if call.scores else message * aggregation.t
        if scores.ndim == message.ndim - 1:
            return scores, message
        # Each score weighs as many columns of the message.
        scores = scores.flatten(1)
        return scores, message.reshape(len(message), scores.shape[1], -1)

    def apply_vertex(self, vertex: Any, accum: Any) -> Tensor:
        """The rows that the layer's ``aggregate`` would return."""
        if self.accumulator == "softmax":
            return accum.reshape(len(accum), *self.message_shape)
        if not self.aggregation.scalers:
            return accum
        rows, degree, known = accum["rows"], accum["degree"], self.conv.aggr_module
        names = self.aggregation.scalers
        return torch.cat(
            [rows if name == "identity" else rows * _SCALERS[name](degree, known) for name in names], -1
        )

    def _get_name(self) -> str:
        """The name of the layer of PyG, for explanations."""
        return type(self.conv).__name__

    def _scores_on(self, example: tuple[Topology, Mapping[str, Tensor]]) -> list[Tensor]:
        """What softmax is called with on an example. Arguments with a row per edge that the message does not read are left out then."""
        topology, rows = example
        edge = edges_of(topology, rows, topology.edge_data, type(self.conv).__name__)
        call = Call(self.conv, edge, self._parameter)
        message = call.message(self.arguments)
        self.message_shape = tuple(message.shape[1:])
        for arguments in without_one(self.arguments):
            other = Call(self.conv, edge, self._parameter)
            try:
                is_read = not _are_equal([other.message(arguments), *other.scores], [message, *call.scores])
            except Exception:  # noqa: BLE001  (of any kind: it computes with None)
                is_read = True
            if not is_read:
                self.arguments = arguments
                return self._scores_on(example)
        return call.scores

    def _parameter(self, name: str) -> Tensor:
        owner, _, local = name.rpartition(".")
        found: Tensor = getattr(self.owners[self._numbers[owner]], local)
        return found


def _are_equal(found: list[Tensor], expected: list[Tensor]) -> bool:
    return len(found) == len(expected) and all(map(torch.equal, found, expected))
