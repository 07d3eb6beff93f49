"""Edge: what ApplyEdge sees, the tuple [src, dst, data] of NGra (Sec. 2.1), one row per edge.

``src`` and ``dst`` are scattered when they are first read, so an endpoint that a layer does not use costs
nothing.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from sagann.errors import LayerError


class Edge:
    """A batch of edges. Treat them independently: row i of the result may depend on row i only.

    Args:
        src: gives the source vertices' rows, [num_edges, ...].
        dst: gives the destination vertices' rows, [num_edges, ...].
        data: edge data, [num_edges, ...], or None.
        reader: the layer's name, for messages.
    """

    __slots__ = ("_data", "_dst", "_modes", "_reader", "_scatter_dst", "_scatter_src", "_src")

    def __init__(
        self, *, src: Callable[[], Tensor], dst: Callable[[], Tensor], data: Tensor | None, reader: str
    ) -> None:
        self._scatter_src, self._scatter_dst = src, dst
        self._src: Tensor | None = None
        self._dst: Tensor | None = None
        self._data = data
        self._reader = reader
        self._modes = (torch.is_grad_enabled(), torch.is_inference_mode_enabled())

    def _scattered(self, scatter: Callable[[], Tensor]) -> Tensor:
        """Rows that are read again later, so they have gradients also where they are first read without."""
        if (torch.is_grad_enabled(), torch.is_inference_mode_enabled()) == self._modes:
            return scatter()
        with_gradients, without_autograd = self._modes
        with torch.inference_mode(without_autograd), torch.set_grad_enabled(with_gradients):
            return scatter()

    @property
    def src(self) -> Tensor:
        """The source vertices' rows, [num_edges, ...]."""
        if self._src is None:
            self._src = self._scattered(self._scatter_src)
        return self._src

    @property
    def dst(self) -> Tensor:
        """The destination vertices' rows, [num_edges, ...]."""
        if self._dst is None:
            self._dst = self._scattered(self._scatter_dst)
        return self._dst

    @property
    def data(self) -> Tensor:
        """The edge data that the layer names in ``edge_data``: [num_edges, ...]."""
        if self._data is None:
            raise LayerError(
                "edge.data was read, but the layer names no edge data",
                value="edge_data = None",
                where=self._reader,
                fix="Set the class attribute edge_data, for instance edge_data = 'weight'.",
            )
        return self._data
