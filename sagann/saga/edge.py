"""What a layer's functions are given, and what they return: edges, messages, and what accumulators gather of these.

ApplyEdge sees an :class:`Edge`, the tuple [src, dst, data] of NGra (Sec. 2.1), one row per edge. Rows of vertices and edge data are mappings
from names to tensors: a single tensor has the empty name (:func:`named`), and users see it without a name (:func:`unnamed`). Rows of vertices
are scattered when they are first read, so rows that a layer does not read cost nothing.

A layer has one message, reduced by one accumulator or several; or it has several messages by name, each with its own. User-defined
accumulators are not accepted: no compiler could fuse or stream their derivative, which runs through the graph (NGra, Sec. 2.2).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from sagann.errors import LayerError
from sagann.graph.topology import Topology
from sagann.kernels.accumulators import ACCUMULATORS, Gathering, Names, gathering

T = TypeVar("T")
Scatter = Tensor | Callable[[], Tensor]
"The rows of one tensor at every edge, or a function that scatters them."


def named(rows: T | Mapping[str, T] | None) -> Mapping[str, T]:
    """Rows by name: a single tensor has the empty name, None is no tensor."""
    if isinstance(rows, Mapping):
        return rows
    return {} if rows is None else {"": rows}


def unnamed(rows: Mapping[str, T]) -> Any:
    """Rows as users see them: a single tensor without its empty name, several as a mapping."""
    return rows[""] if list(rows) == [""] else rows


class Edge:
    """A batch of edges. Treat them independently: row i of the result may depend on row i only.

    Args:
        src: the source vertices' rows, by name.
        dst: the destination vertices' rows, by name.
        data: edge data [num_edges, ...], by name.
        reader: the layer's name, for messages.
    """

    __slots__ = ("_data", "_dst", "_reader", "_src")

    def __init__(
        self,
        *,
        src: Mapping[str, Scatter],
        dst: Mapping[str, Scatter],
        data: Mapping[str, Tensor],
        reader: str,
    ) -> None:
        modes = (torch.is_grad_enabled(), torch.is_inference_mode_enabled())
        self._src, self._dst = _Scattered("src", src, modes, reader), _Scattered("dst", dst, modes, reader)
        self._data = data
        self._reader = reader

    @property
    def src(self) -> Any:
        """The source vertices' rows [num_edges, ...]; a mapping where the layer is called with several tensors."""
        return unnamed(self._src)

    @property
    def dst(self) -> Any:
        """The destination vertices' rows [num_edges, ...]; a mapping where the layer is called with several tensors."""
        return unnamed(self._dst)

    @property
    def data(self) -> Any:
        """The edge data that ``edge_data`` names [num_edges, ...]; a mapping where it names several."""
        if not self._data:
            raise LayerError(
                f"edge.data was read, but the layer names no edge data: edge_data = None (in {self._reader})",
                hint="Set the class attribute edge_data, for instance edge_data = 'weight'.",
            )
        return unnamed(self._data)


class _Scattered(Mapping[str, Tensor]):
    """The rows of one end by name, each tensor scattered when it is first read."""

    __slots__ = ("_end", "_modes", "_reader", "_rows", "_scatters")

    def __init__(self, end: str, scatters: Mapping[str, Scatter], modes: tuple[bool, bool], reader: str) -> None:
        self._end, self._scatters, self._modes, self._reader = end, scatters, modes, reader
        self._rows: dict[str, Tensor] = {}

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._rows:
            if name not in self._scatters:
                raise LayerError(
                    f"the layer was called without the rows that apply_edge reads: edge.{self._end}[{name!r}]; "
                    f"there are {', '.join(map(repr, self._scatters))} (in {self._reader})",
                    hint="Pass them by that name: layer(topology, {'x': x, ...}).",
                )
            self._rows[name] = self._scattered(self._scatters[name])
        return self._rows[name]

    def __contains__(self, name: object) -> bool:
        return name in self._scatters

    def __iter__(self) -> Iterator[str]:
        return iter(self._scatters)

    def __len__(self) -> int:
        return len(self._scatters)

    def _scattered(self, scatter: Scatter) -> Tensor:
        """Rows that are read again later, so they have gradients also where they are first read without."""
        if isinstance(scatter, Tensor):
            return scatter
        with_gradients, without_autograd = self._modes
        if (torch.is_grad_enabled(), torch.is_inference_mode_enabled()) == self._modes:
            return scatter()
        with torch.inference_mode(without_autograd), torch.set_grad_enabled(with_gradients):
            return scatter()


Accumulators = Names | Mapping[str, Names]
"What a layer may state: an accumulator, several of one message, or those of each message by name."


def check_accumulator(accumulator: object, max_degree: int | None, where: str) -> None:
    """Refuse what is not an accumulator, a tuple of some that can be combined, or a mapping of these; and concat without a width."""
    if isinstance(accumulator, str) and accumulator in ACCUMULATORS and not ACCUMULATORS[accumulator].is_sized:
        return
    messages = list(accumulator.values()) if isinstance(accumulator, Mapping) else [accumulator]
    if isinstance(accumulator, Mapping) and not (messages and all(isinstance(name, str) for name in accumulator)):
        raise LayerError(
            f"accumulators of several messages need names: {accumulator!r} (in {where})",
            hint="Name each message: accumulator = {'total': 'sum', 'top': 'max'}; apply_edge returns a dict with these keys.",
        )
    for each in messages:
        _check_message(each, max_degree, where)
    sized = [each for each in messages if isinstance(each, str) and ACCUMULATORS[each].is_sized]
    if sized and len(messages) > 1:
        raise LayerError(
            f"accumulators that cannot be combined: {', '.join(sized)} among {len(messages)} messages (in {where})",
            hint="Gather it in a layer of its own.",
        )


def _check_message(accumulator: object, max_degree: int | None, where: str) -> None:
    names = accumulator if isinstance(accumulator, tuple) and accumulator else (accumulator,)
    for name in names:
        if not isinstance(name, str) or name not in ACCUMULATORS:
            shown = repr(name) if isinstance(name, str) else f"a {type(name).__name__}"
            if isinstance(name, list):
                shown, hint = f"the list {name!r}", f"Write a tuple: accumulator = {tuple(name)!r}."
            else:
                hint = (
                    "Choose one of these; user-defined accumulators are not accepted, because their derivative "
                    "through the graph could be neither fused nor streamed. Put your own function in apply_edge."
                )
            raise LayerError(
                f"unknown accumulator: {shown}, expected one of {', '.join(ACCUMULATORS)}, or a tuple of several (in {where})",
                hint=hint,
            )
    form = gathering(names)
    alone = [
        each.name for each in form.accumulators if each.reduction.num_values > 1 or each.reduction.rows != "row"
    ]
    if not form.is_one and (alone or len(set(names)) < len(names)):
        found = f"{', '.join(alone)} among {len(names)}" if alone else f"{', '.join(names)}, one of them twice"
        raise LayerError(
            f"accumulators that cannot be combined: {found} (in {where})",
            hint="Combine different accumulators that take one message, or give each its own message by a dict.",
        )
    if form.is_sized and (not isinstance(max_degree, int) or max_degree < 1):
        raise LayerError(
            f"the {accumulator} accumulator needs a stated width: max_degree = {max_degree!r}, expected a positive int (in {where})",
            hint="Set max_degree to the largest in-degree.",
        )


def accumulate(
    topology: Topology, accumulator: Accumulators, output: object, max_degree: int | None, where: str
) -> Tensor | dict[str, Tensor]:
    """Gather ApplyEdge's ``output`` at the destinations: [num_dst, ...], by name where there are several messages.

    The output is a tensor [num_edges, ...], (score, value) for softmax, or a mapping of these.
    """
    values = iter(values_of(accumulator, output, topology.num_edges, where))
    found = {}
    messages = accumulator if isinstance(accumulator, Mapping) else {"": accumulator}
    for name, names in messages.items():
        form = gathering(names, max_degree or 0)
        found[name] = form.gather(topology, [next(values) for _ in range(form.num_values)])
    return found if isinstance(accumulator, Mapping) else found[""]


def values_of(accumulator: Accumulators, output: object, num_edges: int, where: str) -> list[Tensor]:
    """The values of all messages in ApplyEdge's output, in the accumulators' order; another form is refused."""
    if not isinstance(accumulator, Mapping):
        return _values_of_message(accumulator, output, num_edges, where)
    if not isinstance(output, Mapping) or set(output) != set(accumulator):
        found = ", ".join(map(repr, output)) if isinstance(output, Mapping) else form_of_output(output)
        raise LayerError(
            f"apply_edge must return a message for each accumulator: {found}, expected a dict with "
            f"{', '.join(map(repr, accumulator))} (in {where})",
            hint="Return a dict that has the names of the layer's accumulators.",
        )
    return [
        value
        for name, names in accumulator.items()
        for value in _values_of_message(names, output[name], num_edges, f"{where}, message '{name}'")
    ]


def accum_of(accumulator: Accumulators, form: Gathering, accum: Tensor, values: Sequence[Tensor]) -> Any:
    """What ApplyVertex gets of the gathered rows: by name where there are several messages, of whose values the shapes are read."""
    if not isinstance(accumulator, Mapping):
        return accum
    return dict(
        zip(accumulator, form.split(accum, form.shapes([value.shape[1:] for value in values])), strict=True)
    )


def _values_of_message(accumulator: Names, output: object, num_edges: int, where: str) -> list[Tensor]:
    form = gathering(accumulator)
    if form.num_values == 2:
        if isinstance(output, tuple) and len(output) == 2:
            score, value = output
            are_rows = isinstance(score, Tensor) and isinstance(value, Tensor) and 1 <= score.ndim < value.ndim
            if are_rows and score.shape[0] == num_edges and score.shape == value.shape[: score.ndim]:
                return [score, value]
            output = f"({form_of_output(score)}, {form_of_output(value)})"
        raise LayerError(
            f"apply_edge must return (score, value) for the softmax accumulator: {form_of_output(output)}, expected score "
            f"[{num_edges}] with value [{num_edges}, F], or score [{num_edges}, H] with value [{num_edges}, H, D] (in {where})",
            hint="Return a tuple of two tensors of these shapes.",
        )
    if not isinstance(output, Tensor) or output.ndim < 1 or output.shape[0] != num_edges:
        raise LayerError(
            f"apply_edge must return one row per edge: {form_of_output(output)}, expected a tensor [{num_edges}, ...] (in {where})",
            hint="Return a tensor whose dimension 0 is the edges; (score, value) pairs need accumulator = 'softmax'.",
        )
    if not form.is_one and output.ndim < 2:
        raise LayerError(
            f"several accumulators need rows of features: {form_of_output(output)}, expected [{num_edges}, ..., F] (in {where})",
            hint="Return a tensor with a dimension of features, along which the results are concatenated.",
        )
    return [output]


def form_of_output(value: object) -> str:
    if isinstance(value, Tensor):
        return f"a tensor {list(value.shape)}"
    return value if isinstance(value, str) else f"a {type(value).__name__}"
