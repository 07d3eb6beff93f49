"""PygLayer: what a ``MessagePassing`` layer of PyTorch Geometric propagates, as a SAGA layer.

A layer of PyG calls ``propagate`` with named arguments. PyG hands them to the layer's ``message``: an argument ``x`` as ``x_j``, its rows at
the sources, and ``x_i``, at the destinations; a row per edge as it is. A PygLayer is one such call. Its ApplyEdge runs the same ``message``,
of the same module, on the rows that Scatter gives; what the layer computes before and after is left to the layer.

A softmax over the in-edges, which PyG's attention calls within ``message`` or ``edge_update``, becomes the softmax accumulator: in the place of
the weights the message gets ones, and the accumulator weighs what it returns. That is the same for messages in proportion to their weight;
:class:`sagann.interop.pyg_model.PygModel` compares its numbers with PyG's before it is used.

References:
    Fey and Lenssen, Fast Graph Representation Learning with PyTorch Geometric, ICLR workshop 2019, Sec. 2.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from sagann.errors import LayerError
from sagann.graph.topology import Topology
from sagann.interop.pyg_aggregations import aggregation_of
from sagann.saga import Edge, SagaLayer
from sagann.saga.edge import scattered

_OF_SHAPE = (
    "size",
    "dim",
    "numel",
    "stride",
    "tolist",
    "item",
    "numpy",
    "backward",
    "to",
    "is_floating_point",
    "nelement",
    "ndimension",
)
"Functions of a tensor that are not computed for each row."
_OF_INDEX = ("index", "edge_index_i")
_NOT_KNOWN = ("ptr", "size", "size_i", "size_j", "dim_size", "edge_index", "edge_index_j", "adj_t")
"Arguments that PyG offers to any function: the ids of the destinations, and what else it knows of the edges."


class Index(Enum):
    """Stands for the ids of the edges' destinations, which only PyG's softmax may read."""

    INDEX = 0

    def numel(self) -> int:
        """Not 0: a function may ask whether there are edges."""
        return 1


@dataclass(frozen=True, slots=True)
class Value:
    """An argument that is no row: a number, None, a flag."""

    value: Any

    def read(self, call: _Call) -> Any:
        return self.value


@dataclass(frozen=True, slots=True)
class VertexRow:
    """An argument that is the row of an edge's end."""

    end: str
    name: str
    is_flat: bool
    "Whether a row is one number, [E], which travels as [E, 1]."

    def read(self, call: _Call) -> Tensor:
        rows: Tensor = getattr(call.edge, self.end)[self.name]
        return rows.squeeze(-1) if self.is_flat else rows


@dataclass(frozen=True, slots=True)
class StoredRow:
    """An argument that is a row of the graph's edge data."""

    name: str

    def read(self, call: _Call) -> Tensor:
        rows: Tensor = call.edge.data[self.name]
        return rows


@dataclass(frozen=True, slots=True)
class UpdatedRow:
    """An argument that the layer's ``edge_update`` computes for each edge."""

    arguments: Arguments

    def read(self, call: _Call) -> Tensor:
        return call.run("edge_update", self.arguments)


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter or buffer of the model, by name, that rows of edges are computed with."""

    name: str

    def read(self, call: _Call) -> Tensor:
        return call.parameter(self.name)


@dataclass(frozen=True, slots=True)
class ComputedRow:
    """What the model, or a layer before it propagates, computes of rows of edges."""

    function: Any
    "Of PyTorch."
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]

    def read(self, call: _Call) -> Any:
        args, kwargs = pytree.tree_map_only(_SOURCES, lambda source: source.read(call), (self.args, self.kwargs))
        return self.function(*args, **kwargs)


Source = Value | VertexRow | StoredRow | UpdatedRow | ComputedRow | Parameter
_SOURCES = (Value, VertexRow, StoredRow, UpdatedRow, ComputedRow, Parameter)
Arguments = tuple[tuple[str, Source], ...]
"Names of a function's arguments, and what each of them is."
NameOf = Callable[[Tensor], str | None]
"Gives the name of a parameter or buffer of the model."


class EdgeRows:
    """What a model is given in the place of a tensor with a row per edge. What it computes of it is written down, and done for each edge.

    Args:
        source: what the rows are.
        rows: the vertex rows that they are computed from.
        name_of: of the model's parameters.
    """

    def __init__(self, source: Source, rows: Mapping[str, Tensor], name_of: NameOf) -> None:
        self.source, self.rows, self.name_of = source, rows, name_of

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> EdgeRows:
        leaves = pytree.tree_leaves((args, kwargs))
        found = [leaf for leaf in leaves if isinstance(leaf, EdgeRows)]
        name_of = found[0].name_of

        def source_of(leaf: Any) -> Any:
            if isinstance(leaf, EdgeRows):
                return leaf.source
            if not isinstance(leaf, Tensor):
                return leaf
            if (name := name_of(leaf)) is None:
                raise computes_with("a row per edge and another tensor", getattr(func, "__name__", str(func)))
            return Parameter(name)

        given = pytree.tree_map(source_of, (tuple(args), dict(kwargs or {})))
        rows = {name: each for edge_rows in found for name, each in edge_rows.rows.items()}
        return cls(ComputedRow(func, *given), rows, name_of)

    def __getattr__(self, name: str) -> Any:
        function = getattr(Tensor, name, None)
        if name.startswith("_") or not callable(function) or name in _OF_SHAPE or name.endswith("_"):
            if name.startswith("__"):
                raise AttributeError(name)
            raise computes_with("a row per edge", name)
        return self._method(function)

    def _method(self, function: Any) -> Callable[..., EdgeRows]:
        return lambda *args, **kwargs: EdgeRows.__torch_function__(function, (), (self, *args), kwargs)

    def __len__(self) -> int:
        raise computes_with("a row per edge", "their number")

    def __iter__(self) -> Iterator[Any]:
        raise computes_with("a row per edge", "a loop")


def _operator(name: str) -> Callable[..., EdgeRows]:
    function = getattr(Tensor, name)
    return lambda self, *args: EdgeRows.__torch_function__(function, (), (self, *args))


for _name in (
    "add",
    "radd",
    "sub",
    "rsub",
    "mul",
    "rmul",
    "truediv",
    "rtruediv",
    "pow",
    "neg",
    "getitem",
    "lt",
    "le",
    "gt",
    "ge",
):
    # Python looks operators up in the class.
    setattr(EdgeRows, f"__{_name}__", _operator(f"__{_name}__"))


def computes_with(what: str, how: str) -> LayerError:
    """The error of a model that computes with what it may only pass on."""
    return LayerError(
        f"a model of PyTorch Geometric computes with {what}",
        value=f"it uses {how} outside of message and edge_update",
        where="its forward, or that of one of its layers",
        fix="Compute it in the layer's message, or once for the graph, before it is trained; or write the layer as sagann.SagaLayer.",
    )


class _Call:
    """A call of ``message`` on a batch of edges."""

    def __init__(self, conv: nn.Module, edge: Edge, parameter: Callable[[str], Tensor]) -> None:
        self.conv, self.edge, self.parameter = conv, edge, parameter
        self.scores: list[Tensor] = []
        "What softmax was called with."

    def run(self, name: str, arguments: Arguments) -> Any:
        """What a function of the layer returns for these edges."""
        given = {argument: source.read(self) for argument, source in arguments}
        # Attributes that the function sets, such as the last weights of attention, are not kept.
        conv = object.__new__(type(self.conv))
        conv.__dict__ = dict(self.conv.__dict__)
        return self._with_softmax(getattr(type(self.conv), name))(conv, **given)

    def _with_softmax(self, function: Any) -> Callable[..., Any]:
        """A function in whose module the name of PyG's softmax means ours."""
        from torch_geometric.utils import softmax

        function = inspect.unwrap(function)
        known = {name: self._softmax if value is softmax else value for name, value in function.__globals__.items()}
        found = FunctionType(
            function.__code__, known, function.__name__, function.__defaults__, function.__closure__
        )
        found.__kwdefaults__ = function.__kwdefaults__
        return found

    def _softmax(
        self, src: Tensor, index: object = None, ptr: object = None, num_nodes: object = None, dim: int = 0
    ) -> Tensor:
        if index is not Index.INDEX or dim != 0:
            raise LayerError(
                "a softmax over other rows than a destination's edges",
                value=f"index {type(index).__name__}, dim {dim}",
                where=f"layer {type(self.conv).__name__}",
                fix="Call softmax(scores, index) with the index that message gets, or write the layer as sagann.SagaLayer.",
            )
        self.scores.append(src)
        return torch.ones_like(src)


class PygLayer(SagaLayer):
    """One call of ``propagate`` of a layer of PyG, without what the layer computes before and after.

    It is called with the vertex rows that the messages read, by name (:func:`arguments_of`).

    Args:
        conv: the layer of PyG, whose parameters are this one's.
        arguments: of its ``message``.
        example: a topology with edge data, and rows of its vertices, to run ``message`` on.
        model: the model of PyG, whose modules may compute rows of edges.
    Raises:
        LayerError: the layer aggregates in a way of its own, or cannot be run edge by edge.
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
        owners = dict.fromkeys(name.rpartition(".")[0] for name in _parameters(arguments))
        self.owners = nn.ModuleList(model.get_submodule(name) for name in owners)
        "Modules of the model that compute rows of edges."
        self._numbers = {name: number for number, name in enumerate(owners)}
        self.aggregation = aggregation_of(conv)
        self.called_with = arguments
        "The arguments as the layer gives them."
        self.arguments = arguments
        "Those that the message reads, and None for the others."
        scores = self._scores_on(example)
        if len(scores) > 1:
            raise self._refused(f"{len(scores)} softmaxes in one message", "one softmax")
        self.accumulator = self.aggregation.accumulator
        if scores:
            if self.accumulator != "sum":
                raise self._refused(f"a softmax, and then {self.accumulator}", "their sum")
            self.accumulator = "softmax"
        self.edge_data = tuple(dict.fromkeys(_stored(self.arguments))) or None  # type: ignore[misc]

    def apply_edge(self, edge: Edge) -> Any:
        """The messages; with a softmax, scores and messages without weights."""
        call = _Call(self.conv, edge, self._parameter)
        message = call.run("message", self.arguments)
        if call.scores:
            return call.scores[0], message
        return self.aggregation.messages(message, self.conv.aggr_module)

    def apply_vertex(self, vertex: Any, accum: Any) -> Tensor:
        """The rows that the layer's ``aggregate`` would return."""
        return self.aggregation.finished(accum, self.conv.aggr_module)

    def _scores_on(self, example: tuple[Topology, Mapping[str, Tensor]]) -> list[Tensor]:
        """What softmax is called with on an example. Arguments with a row per edge that the message does not read are left out then."""
        topology, rows = example
        edge = Edge(
            src=scattered({name: each[topology.indices.long()] for name, each in rows.items()}),
            dst=scattered({name: each[topology.edge_dst().long()] for name, each in rows.items()}),
            data=topology.edge_data,
            reader=type(self.conv).__name__,
        )
        call = _Call(self.conv, edge, self._parameter)
        message = call.run("message", self.arguments)
        for arguments in _without_one(self.arguments):
            other = _Call(self.conv, edge, self._parameter)
            try:
                is_read = not _are_equal([other.run("message", arguments), *other.scores], [message, *call.scores])
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

    def _refused(self, found: str, expected: str) -> LayerError:
        return LayerError(
            "a layer of PyTorch Geometric gathers in a way that is not known",
            value=f"{found}, expected {expected}",
            where=f"layer {type(self.conv).__name__}",
            fix="Write it as sagann.SagaLayer: 'Coming from PyG or DGL' in docs/quickstart.md says what is what.",
        )


def arguments_of(
    conv: nn.Module, name: str, given: Mapping[str, Any], *, num_src: int
) -> tuple[Arguments, dict[str, Tensor]]:
    """What the arguments of a function of the layer are, where ``propagate`` is called with these; and the vertex rows that they are read from.

    Args:
        conv: the layer of PyG.
        name: 'message' or 'edge_update'.
        given: named arguments of ``propagate`` or ``edge_updater``.
        num_src: number of rows of the sources. Rows of the destinations, which are fewer in a mini-batch, are filled up to it.
    """
    found, rows = [], {}
    for argument, parameter in list(inspect.signature(getattr(type(conv), name)).parameters.items())[1:]:
        if argument in _OF_INDEX:
            source: Source = Value(Index.INDEX)
        elif argument in _NOT_KNOWN:
            source = Value(None)
        elif argument[-2:] in ("_i", "_j") and argument[:-2] in given:
            end = "src" if argument.endswith("_j") else "dst"
            key, value = _of_end(argument[:-2], given[argument[:-2]], end)
            source = Value(value)
            if isinstance(value, Tensor):
                rows[key] = _filled(value.unsqueeze(-1) if value.ndim == 1 else value, num_src)
                source = VertexRow(end, key, value.ndim == 1)
        elif argument in given:
            value = given[argument]
            if isinstance(value, Tensor):
                raise computes_with("vertex rows that are not those of an edge's end", f"the argument {argument}")
            source = value.source if isinstance(value, EdgeRows) else Value(value)
            rows |= value.rows if isinstance(value, EdgeRows) else {}
        elif parameter.default is not parameter.empty:
            source = Value(parameter.default)
        else:
            raise LayerError(
                f"{name} takes an argument that propagate is not given",
                value=f"'{argument}'; given: {', '.join(given) or 'none'}",
                where=f"layer {type(conv).__name__}",
                fix="Pass it to propagate, or give it a default.",
            )
        found.append((argument, source))
    return tuple(found), rows


def _of_end(name: str, value: Any, end: str) -> tuple[str, Any]:
    """The rows of an end, and their name: a pair has rows of the sources, and others of the destinations."""
    if not isinstance(value, (tuple, list)):
        return name, value
    src, dst = value
    return (name, src) if end == "src" or dst is src else (f"{name}_dst", dst)


def _filled(rows: Tensor, num_rows: int) -> Tensor:
    missing = num_rows - len(rows)
    return torch.cat([rows, rows.new_zeros(missing, *rows.shape[1:])]) if missing > 0 else rows


def _sources_in(arguments: Arguments) -> Iterator[Source]:
    """All sources that the arguments are computed from."""
    for _, source in arguments:
        yield from _sources_of(source)


def _sources_of(source: Source) -> Iterator[Source]:
    yield source
    if isinstance(source, UpdatedRow):
        yield from _sources_in(source.arguments)
    elif isinstance(source, ComputedRow):
        for leaf in pytree.tree_leaves((source.args, source.kwargs)):
            if isinstance(leaf, _SOURCES):
                yield from _sources_of(leaf)


def _stored(arguments: Arguments) -> Iterator[str]:
    return (source.name for source in _sources_in(arguments) if isinstance(source, StoredRow))


def _parameters(arguments: Arguments) -> Iterator[str]:
    return (source.name for source in _sources_in(arguments) if isinstance(source, Parameter))


def _without_one(arguments: Arguments) -> Iterator[Arguments]:
    """The arguments with None in the place of one that has a row of edge data."""
    for number, (name, source) in enumerate(arguments):
        others: Iterator[Source] = iter(())
        if isinstance(source, StoredRow | ComputedRow):
            others = iter([Value(None)])
        elif isinstance(source, UpdatedRow):
            others = (UpdatedRow(each) for each in _without_one(source.arguments))
        for other in others:
            yield (*arguments[:number], (name, other), *arguments[number + 1 :])


def _are_equal(found: list[Tensor], expected: list[Tensor]) -> bool:
    return len(found) == len(expected) and all(map(torch.equal, found, expected))
