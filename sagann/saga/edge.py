"""Edge: what ApplyEdge sees, the tuple [src, dst, data] of NGra (Sec. 2.1), one row per edge.

A layer is called with one tensor of vertex rows, or with several by name; it reads one tensor of edge data, or several by name.
Inside, all of them are mappings from names to tensors: a single tensor has the empty name (:func:`named`), and users see it
without a name (:func:`unnamed`). Rows of vertices are scattered when they are first read, so rows that a layer does not read
cost nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor

from sagann.errors import LayerError

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
        if (torch.is_grad_enabled(), torch.is_inference_mode_enabled()) == self._modes:
            return scatter()
        with_gradients, without_autograd = self._modes
        with torch.inference_mode(without_autograd), torch.set_grad_enabled(with_gradients):
            return scatter()
