"""Feature stores: the rows of vertices, wherever they lie: in a tensor, in a file, or computed when they are asked for.

A graph's features are a tensor or a feature store. The aggregate of constant features is constant too, so a layer may keep it. A store is
constant. A tensor must be declared so, because it cannot be recognised: the result of dropout needs no gradient either, but changes in
every epoch.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from sagann.errors import InputError
from sagann.graph.large_arrays import empty_array
from sagann.graph.rows import csr_slice, is_sparse, pick_rows, take_rows

_CONSTANT = WeakTensorKeyDictionary()
"Tensors that are the same in every epoch."
_AT_ONCE_BYTES = 64 << 20
"Largest number of bytes of rows in a piece, unless a single row is larger."


@runtime_checkable
class FeatureStore(Protocol):
    """Rows of vertices, as tensors on the CPU. The same ids always give the same rows.

    Several threads may read at once. Readers must not modify the rows, which may be views of the store's own memory.
    """

    @property
    def num_rows(self) -> int:
        """Number of rows: one per vertex."""

    @property
    def row_shape(self) -> tuple[int, ...]:
        """Shape of a row: (F,) for F features."""

    @property
    def dtype(self) -> torch.dtype:
        """Type of the numbers in a row."""

    def rows(self, ids: Tensor) -> Tensor:
        """Copy the rows of some vertices: [n, *row_shape], for int64 ids [n] below ``num_rows``, in their order."""

    def slice(self, start: int, stop: int) -> Tensor:
        """Read the rows of vertices ``start`` to ``stop - 1``: [stop - start, *row_shape]."""


@runtime_checkable
class AnnouncedFeatures(FeatureStore, Protocol):
    """A feature store that can be told which rows the next batches read, so that it keeps the rows that are used again soon.

    A loader announces every batch as soon as its vertices are known, in the order in which the batches will be read, and takes each
    batch's rows later, once, from any thread. It gives a batch up by dropping its announcement. Announcing changes no row.
    """

    @property
    def wants_announcements(self) -> bool:
        """Whether announcing batches saves anything. Where not, loaders may ask for :meth:`rows` alone."""

    def announce(self, ids: Tensor) -> Any:
        """Add a batch behind those that were announced before.

        Args:
            ids: int64 [n], as for :meth:`rows`. Callers must not modify them until the rows are given.
        Returns:
            What :meth:`rows_of` is asked with.
        """

    def rows_of(self, announcement: Any) -> Tensor:
        """The rows of an announced batch: what ``rows(ids)`` gives."""


Features = Tensor | FeatureStore
"Features of a graph's vertices."


class TensorRows:
    """The rows of a dense tensor; a slice of them is a view."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor
        self.num_rows, self.row_shape, self.dtype = len(tensor), tuple(tensor.shape[1:]), tensor.dtype

    def rows(self, ids: Tensor) -> Tensor:
        """Copy the rows of some vertices."""
        into = empty_array((len(ids), *self.row_shape), self.dtype, self.tensor.device)
        return pick_rows(self.tensor, ids, into)

    def slice(self, start: int, stop: int) -> Tensor:
        """View a range of rows."""
        return self.tensor[start:stop]


class SparseRows(TensorRows):
    """The rows of a ``torch.sparse_csr`` matrix; a slice of them views the columns and values of the matrix."""

    def rows(self, ids: Tensor) -> Tensor:
        """Copy the rows of some vertices, as ``torch.sparse_csr``."""
        return take_rows(self.tensor, ids)

    def slice(self, start: int, stop: int) -> Tensor:
        """View a range of rows, as ``torch.sparse_csr``."""
        return csr_slice(self.tensor, start, stop)


def feature_store(features: Features) -> FeatureStore:
    """The store of a tensor's rows; a feature store is returned as it is."""
    if not isinstance(features, Tensor):
        return features
    return SparseRows(features) if is_sparse(features) else TensorRows(features)


def require_no_gradient(features: Features | None, *, where: str) -> None:
    """Refuse features that learn, for a reader of some rows at a time, which copies them without their gradient."""
    if isinstance(features, Tensor) and features.requires_grad:
        raise InputError(
            "features that learn would get no gradient: they require a gradient, and some rows at a time are "
            f"copied without it (in {where})",
            hint="Train on the whole graph; or pass features.detach(), and keep rows that learn in the model: a torch.nn.Embedding of the ids "
            "of a batch's vertices.",
        )


def row_bytes(store: FeatureStore) -> int:
    """Bytes of a row."""
    return math.prod(store.row_shape) * store.dtype.itemsize


def read_slice(store: FeatureStore, start: int, stop: int) -> Tensor:
    """:meth:`FeatureStore.slice`, checked."""
    return _checked(store, store.slice(start, stop), stop - start)


def read_pieces(store: FeatureStore) -> Iterator[tuple[slice, Tensor]]:
    """All rows in pieces of bounded size, each with its range; checked as by :func:`read_slice`."""
    step = max(1, _AT_ONCE_BYTES // max(1, row_bytes(store)))
    for start in range(0, store.num_rows, step):
        part = slice(start, min(start + step, store.num_rows))
        yield part, read_slice(store, part.start, part.stop)


def read_rows(store: FeatureStore, ids: Tensor) -> Tensor:
    """:meth:`FeatureStore.rows`, with the check of :func:`read_slice`."""
    return _checked(store, store.rows(ids), len(ids))


def read_announced(store: AnnouncedFeatures, announcement: Any, count: int) -> Tensor:
    """:meth:`AnnouncedFeatures.rows_of` for a batch of ``count`` rows, with the check of :func:`read_slice`."""
    return _checked(store, store.rows_of(announcement), count)


def _checked(store: FeatureStore, rows: Tensor, count: int) -> Tensor:
    expected = (count, *store.row_shape)
    if tuple(rows.shape) != expected or rows.dtype != store.dtype:
        raise InputError(
            f"a feature store gives other rows than it states: {rows.dtype} {list(rows.shape)}, expected "
            f"{store.dtype} {list(expected)} (in {type(store).__name__})",
            hint="Return one row of row_shape and dtype for each requested vertex.",
        )
    return rows


def tensor_of(features: Features) -> Tensor:
    """The features as one tensor; the rows of a store are read slab by slab into a tensor of :func:`empty_array`."""
    if isinstance(features, Tensor):
        return features
    whole = empty_array((features.num_rows, *features.row_shape), features.dtype, torch.device("cpu"))
    for part, rows in read_pieces(features):
        whole[part] = rows
    return whole


def version_of(tensor: Tensor) -> int:
    """Number of changes in place; -1 for a tensor made in inference mode, whose changes PyTorch does not count."""
    return -1 if tensor.is_inference() else tensor._version


def declare_constant(features: Tensor) -> Tensor:
    """Declare that features are the same in every epoch, and return them. :class:`~sagann.Graph` declares its features.

    PyTorch's version counter reveals a change in place. A change by NumPy or through ``.data`` stays unnoticed.
    """
    _CONSTANT[features] = True
    return features


def is_constant(features: Features) -> bool:
    """Whether features are constant and need no gradient."""
    return not isinstance(features, Tensor) or (not features.requires_grad and features in _CONSTANT)
