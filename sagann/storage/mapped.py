"""Mapped rows: the feature store of a tensor that is mapped from a file of a dataset. Its rows are read by position, not page by page.

A page of a map is read by the thread that touches the page, and stays in the process's memory until the system takes the page
back. A positioned read copies bytes into memory of the caller's choice, in large pieces and from any thread. Both give
the same bytes unless the tensor was written to. PyTorch counts what its own operators write; what is written through NumPy or ``.data``
is not seen.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sagann.graph.feature_store import Features, FeatureStore, feature_store, version_of
from sagann.graph.large_arrays import empty_array
from sagann.graph.rows import flat_bytes
from sagann.storage.npy import ArrayMap, map_of
from sagann.storage.positioned import is_cached, read_bytes
from sagann.storage.scattered import read_rows


class MappedRows:
    """The rows of a file that a tensor is mapped from.

    Args:
        tensor: gives the shape and dtype of the rows; the store does not keep the tensor alive.
        source: the map in which the tensor lies. The attribute ``file`` is the descriptor of its file, ``offset`` the position of the
            tensor's first byte there.

    Reading raises DatasetError where the file has become shorter.
    """

    def __init__(self, tensor: Tensor, source: ArrayMap) -> None:
        self.num_rows, self.row_shape, self.dtype = len(tensor), tuple(tensor.shape[1:]), tensor.dtype
        # It closes its file when nobody has it any more.
        self._source = source
        self.file, self.offset = source.file, source.offset_of(tensor.data_ptr())
        self._row_bytes = tensor[:1].nbytes

    def rows(self, ids: Tensor) -> Tensor:
        """Read the rows of some vertices."""
        return read_rows(self.file, self.offset, ids, self._empty(len(ids)))

    def slice(self, start: int, stop: int) -> Tensor:
        """Read a range of rows."""
        into = self._empty(stop - start)
        read_bytes(self.file, flat_bytes(into).data, self.offset + start * self._row_bytes)
        return into

    def is_at_hand(self, start: int, stop: int) -> bool:
        """Whether a range of rows can be read without waiting for a disk, as far as the system tells."""
        return is_cached(self.file, self.offset + start * self._row_bytes, (stop - start) * self._row_bytes)

    def _empty(self, count: int) -> Tensor:
        return empty_array((count, *self.row_shape), self.dtype, torch.device("cpu"))


def positioned(features: Features) -> FeatureStore:
    """The store of features. A tensor that is mapped from a file of a dataset is read by position."""
    return (isinstance(features, Tensor) and mapped_rows(features)) or feature_store(features)


def is_at_hand(features: Features) -> bool:
    """Whether rows can be read without waiting for a disk: they are a tensor in memory, or mapped from a file in the page cache."""
    store = positioned(features)
    return store.is_at_hand(0, store.num_rows) if isinstance(store, MappedRows) else isinstance(features, Tensor)


def mapped_rows(tensor: Tensor) -> MappedRows | None:
    """The store of the file that a contiguous tensor is mapped from; None without one, or if the tensor was written to."""
    found = map_of(tensor)
    if found is None or version_of(tensor) or not tensor.is_contiguous() or not tensor.numel():
        return None
    return MappedRows(tensor, found)
