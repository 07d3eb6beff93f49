"""Rows of edges in a model of PyTorch Geometric: what the arguments of ``message`` are, and what is computed of edge data before.

A model of PyG computes with tensors that have a row per edge, which sagann never makes. In their place it gets :class:`EdgeRows`. What it
computes of them with operators of PyTorch and parameters of its own is written down, as sources of sources, and is computed for the edges of a
pass when the message reads it.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from sagann.errors import LayerError

if TYPE_CHECKING:
    from sagann.interop.pyg_layer import Call

S = TypeVar("S", bound="Source")
_OF_SHAPE = ("size", "dim", "numel", "nelement", "ndimension", "stride", "is_floating_point")
_LEAVING = (*_OF_SHAPE, "tolist", "item", "numpy", "backward")
"Functions of a tensor that are not computed for each row."
_OF_INDEX = ("index", "edge_index_i")
_NOT_KNOWN = ("ptr", "size", "size_i", "size_j", "dim_size", "edge_index", "edge_index_j", "adj_t")
"Arguments that PyG offers to any function: the ids of the destinations, and what else it knows of the edges."


class Index:
    """Stands for the ids of the edges' destinations, which only PyG's softmax may read.

    Args:
        scores: gets what softmax is called with.
    """

    def __init__(self, scores: list[Tensor]) -> None:
        self.scores = scores

    def numel(self) -> int:
        """Not 0: a function may ask whether there are edges."""
        return 1

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> NoReturn:
        raise _reads_ids(f"it passes index to {getattr(func, '__name__', func)}")

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        """Tensor's: a function that asks for the type goes on as it would with ids."""
        return Tensor

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        raise _reads_ids(f"it reads {name} of index")

    def __getitem__(self, _: object) -> NoReturn:
        raise _reads_ids("it picks entries of index")


class Source(ABC):
    """What an argument of ``message`` is, or what rows of edges are computed from."""

    @abstractmethod
    def read(self, call: Call) -> Any:
        """The argument for the edges of a call."""


Arguments = tuple[tuple[str, Source], ...]
"Names of a function's arguments, and what each of them is."


@dataclass(frozen=True, slots=True)
class Ids(Source):
    """The argument that is the ids of the edges' destinations."""

    def read(self, call: Call) -> Index:
        return Index(call.scores)


@dataclass(frozen=True, slots=True)
class Value(Source):
    """An argument that is no row: a number, None, a flag."""

    value: Any

    def read(self, call: Call) -> Any:
        return self.value


@dataclass(frozen=True, slots=True)
class VertexRow(Source):
    """An argument that is the row of an edge's end."""

    end: str
    name: str
    is_flat: bool
    "Whether a row is one number, [E], which travels as [E, 1]."
    dim: int
    "Dimension that counts the rows in PyG. They travel in the first one."

    def read(self, call: Call) -> Tensor:
        rows: Tensor = getattr(call.edge, self.end)[self.name]
        return rows.squeeze(-1) if self.is_flat else moved(rows, 0, self.dim)


@dataclass(frozen=True, slots=True)
class StoredRow(Source):
    """An argument that is a row of the graph's edge data."""

    name: str

    def read(self, call: Call) -> Tensor:
        rows: Tensor = call.edge.data[self.name]
        return rows


@dataclass(frozen=True, slots=True)
class UpdatedRow(Source):
    """An argument that the layer's ``edge_update`` computes for each edge."""

    arguments: Arguments

    def read(self, call: Call) -> Tensor:
        return call.run("edge_update", self.arguments)


@dataclass(frozen=True, slots=True)
class Parameter(Source):
    """A parameter or buffer of the model, by name, that rows of edges are computed with."""

    name: str

    def read(self, call: Call) -> Tensor:
        return call.parameter(self.name)


@dataclass(frozen=True, slots=True)
class ComputedRow(Source):
    """What the model, or a layer before it propagates, computes of rows of edges."""

    function: Any
    "Operator or function of PyTorch that computes the rows."
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]

    def read(self, call: Call) -> Any:
        args, kwargs = pytree.tree_map_only(Source, lambda source: source.read(call), (self.args, self.kwargs))
        return self.function(*args, **kwargs)


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
        if name.startswith("__"):
            raise AttributeError(name)
        is_method = callable(getattr(Tensor, name, None)) and name not in _LEAVING
        if not is_method or name.startswith("_") or name.endswith("_"):
            raise computes_with("a row per edge", name)
        return partial(_method(name), self)

    def __len__(self) -> int:
        raise computes_with("a row per edge", "their number")

    def __iter__(self) -> Iterator[Any]:
        raise computes_with("a row per edge", "a loop")

    def __bool__(self) -> bool:
        raise computes_with("a row per edge", "a branch")


def _reads_ids(how: str) -> LayerError:
    return LayerError(
        f"a layer of PyTorch Geometric reads the ids of destinations: {how} (in its message or edge_update)",
        hint="Pass index to torch_geometric.utils.softmax alone, in the layer's own functions. Compute what depends on it once for the graph, or write the layer as sagann.SagaLayer.",
    )


def _method(name: str) -> Callable[..., EdgeRows]:
    function = getattr(Tensor, name)
    return lambda *args, **kwargs: EdgeRows.__torch_function__(function, (), args, kwargs)


_ARITHMETIC = ("add", "radd", "sub", "rsub", "mul", "rmul", "truediv", "rtruediv", "pow", "neg")
for _name in (*_ARITHMETIC, "getitem", "eq", "ne", "lt", "le", "gt", "ge"):
    # Python looks operators up in the class.
    setattr(EdgeRows, f"__{_name}__", _method(f"__{_name}__"))


_COMPUTE_ELSEWHERE = "Compute it in the layer's message, or once for the graph, before it is trained; or write the layer as sagann.SagaLayer."


def computes_with(what: str, how: str, *, hint: str = _COMPUTE_ELSEWHERE) -> LayerError:
    """The error of a model that computes with what it may only pass on."""
    return LayerError(
        f"a model of PyTorch Geometric computes with {what}: it uses {how} outside of message and edge_update (in the model's forward)",
        hint=hint,
    )


def arguments_of(conv: nn.Module, name: str, given: Mapping[str, Any]) -> tuple[Arguments, dict[str, Tensor]]:
    """What the arguments of a function of the layer are, where ``propagate`` is called with these; and the vertex rows that they are read from.

    Args:
        conv: the layer of PyG.
        name: 'message' or 'edge_update'.
        given: named arguments of ``propagate`` or ``edge_updater``.
    """
    found, rows = [], dict[str, Tensor]()
    for argument, parameter in inspect.signature(getattr(conv, name)).parameters.items():
        if argument in _OF_INDEX:
            source: Source = Ids()
        elif argument in _NOT_KNOWN:
            source = Value(None)
        elif argument[-2:] in ("_i", "_j") and argument[:-2] in given:
            end = "src" if argument.endswith("_j") else "dst"
            key, value = _of_end(argument[:-2], given[argument[:-2]], end)
            source = Value(value)
            if isinstance(value, Tensor):
                dim = row_dim(conv, value)
                _add(rows, {key: value.unsqueeze(-1) if value.ndim == 1 else moved(value, dim, 0)})
                source = VertexRow(end, key, value.ndim == 1, dim)
        elif argument in given:
            value = given[argument]
            if isinstance(value, Tensor):
                raise computes_with("vertex rows that are not those of an edge's end", f"the argument {argument}")
            source = value.source if isinstance(value, EdgeRows) else Value(value)
            _add(rows, value.rows if isinstance(value, EdgeRows) else {})
        elif parameter.default is not parameter.empty:
            source = Value(parameter.default)
        else:
            raise LayerError(
                f"{name} takes an argument that propagate is not given: '{argument}'; given: "
                f"{', '.join(given) or 'none'} (in layer {type(conv).__name__})",
                hint="Pass it to propagate, or give it a default.",
            )
        found.append((argument, source))
    return tuple(found), rows


def _add(rows: dict[str, Tensor], others: Mapping[str, Tensor]) -> None:
    """Add rows by name; of those that begin with the others, the destinations' being the first of the sources', all are kept."""
    rows |= {name: each for name, each in others.items() if name not in rows or len(each) > len(rows[name])}


def row_dim(conv: nn.Module, rows: Tensor) -> int:
    """The dimension of rows of a layer of PyG that counts them."""
    dim: Any = conv.node_dim
    return dim % rows.ndim if rows.ndim > 1 else 0


def moved(rows: Tensor, source: int, destination: int) -> Tensor:
    """The rows with a dimension in another place."""
    return rows if source == destination else rows.movedim(source, destination)


def _of_end(name: str, value: Any, end: str) -> tuple[str, Any]:
    """The rows of an end, and their name: a pair has rows of the sources, and others of the destinations."""
    if not isinstance(value, (tuple, list)):
        return name, value
    src, dst = value
    return (name, src) if end == "src" or _begins_with(src, dst) else (f"{name}_dst", dst)


def _begins_with(rows: Any, first: Any) -> bool:
    """Whether the first ones of these rows are others: the same memory."""
    if not isinstance(rows, Tensor) or not isinstance(first, Tensor) or rows.shape == first.shape:
        return first is rows
    begins, expected = ((each.data_ptr(), each.shape[1:], each.stride(), each.dtype) for each in (rows, first))
    return begins == expected


def of_hop(rows: Tensor, num_rows: int) -> Tensor:
    """The rows of a hop's sources: those of an earlier hop begin with them, and those of its destinations are filled up to them."""
    missing = num_rows - len(rows)
    return torch.cat([rows, rows.new_zeros(missing, *rows.shape[1:])]) if missing > 0 else rows[:num_rows]


def sources_in(arguments: Arguments, kind: type[S]) -> list[S]:
    """All sources of a kind that the arguments are computed from."""
    return [each for _, source in arguments for each in _sources_of(source) if isinstance(each, kind)]


def _sources_of(source: Source) -> Iterator[Source]:
    yield source
    if isinstance(source, UpdatedRow):
        for _, given in source.arguments:
            yield from _sources_of(given)
    elif isinstance(source, ComputedRow):
        for leaf in pytree.tree_leaves((source.args, source.kwargs)):
            if isinstance(leaf, Source):
                yield from _sources_of(leaf)


def without_one(arguments: Arguments) -> Iterator[Arguments]:
    """The arguments with None in the place of one that has a row of edge data."""
    for number, (name, source) in enumerate(arguments):
        others: Iterator[Source] = iter(())
        if isinstance(source, StoredRow | ComputedRow):
            others = iter([Value(None)])
        elif isinstance(source, UpdatedRow):
            others = (UpdatedRow(each) for each in without_one(source.arguments))
        for other in others:
            yield (*arguments[:number], (name, other), *arguments[number + 1 :])
