"""The cold tier: rows of a file, read by position, or rows of any other feature store."""

from __future__ import annotations

import os
from weakref import finalize

import torch
from torch import Tensor

from sagann.errors import DatasetError, InputError
from sagann.graph.checks import require_distinct, require_ids
from sagann.graph.feature_store import (
    Features,
    FeatureStore,
    feature_store,
    read_rows,
    read_slice,
    require_no_gradient,
    row_bytes,
)
from sagann.graph.large_arrays import made_by
from sagann.graph.rows import as_bytes, is_sparse
from sagann.jit import Array
from sagann.storage.mapped import MappedRows, positioned
from sagann.storage.positioned import is_cached
from sagann.storage.scattered import Reads, read_scattered


class FileRows:
    """Rows of a file, which must stay as it is."""

    def __init__(self, rows: MappedRows) -> None:
        # A descriptor of its own, because what the system reads ahead is told by descriptor. Rows are far apart, and for ranges of
        # rows the other one stays as it is.
        self._file = os.open(f"/proc/self/fd/{rows.file}", os.O_RDONLY)
        finalize(self, os.close, self._file)
        os.posix_fadvise(self._file, 0, 0, os.POSIX_FADV_RANDOM)
        self._offset = rows.offset
        self._path = os.readlink(f"/proc/self/fd/{self._file}")

    def read(self, ids: Array, target: Array, places: Array) -> Reads:
        """Read rows ``ids``, int64 [n], into the rows ``places``, integer [n], of ``target``, uint8 [m, bytes of a row].

        A file that ends too early or cannot be read is a DatasetError.
        """
        try:
            return read_scattered(self._file, self._offset, ids, target, places)
        except OSError as error:
            raise DatasetError(
                f"features cannot be read: {error.strerror or str(error)} (in {self._path})",
                hint="Check the disk, and copy the file to another one.",
            ) from error

    def read_once(self, ids: Array, target: Array, places: Array) -> Reads:
        """Read ascending rows, and give up the pages that this has brought into the page cache.

        Hot rows lie all over the file. Under a memory limit, its pages would push the graph's own files out of the page cache, which
        samplers then read again page by page. A part of the file that was in the page cache before stays there.
        """
        if not len(ids):
            return self.read(ids, target, places)
        row_bytes = target.shape[1]
        offset, num_bytes = self._offset + int(ids[0]) * row_bytes, int(ids[-1] - ids[0] + 1) * row_bytes
        was_cached = is_cached(self._file, offset, num_bytes)
        reads = self.read(ids, target, places)
        if not was_cached:
            os.posix_fadvise(self._file, offset, num_bytes, os.POSIX_FADV_DONTNEED)
        return reads


class StoreRows:
    """Rows of a store that is no file: a tensor in memory, or a class of the user's."""

    def __init__(self, store: FeatureStore) -> None:
        self._store = store

    def read(self, ids: Array, target: Array, places: Array) -> Reads:
        """Ask the store for the rows."""
        if len(ids) and target.size:
            # These rows are copied at once. Memory that the caller has for its own rows, as pinned memory, is not theirs.
            with made_by(lambda shape, dtype: torch.empty(shape, dtype=dtype)):
                rows = read_rows(self._store, torch.from_numpy(ids))
            target[places] = as_bytes(rows.contiguous())
        return Reads(num_reads=0, num_bytes=0)

    def read_once(self, ids: Array, target: Array, places: Array) -> Reads:
        return self.read(ids, target, places)


class StoreInTiers:
    """Base of feature stores in front of ``features``, which are the cold tier; of ``hottest`` rows the first ones are hot.

    Raises:
        InputError: sparse features, those that lie on a device, and those that learn have no tiers.
    """

    def __init__(self, features: Features, hottest: Tensor | None) -> None:
        where = f"{type(self).__name__}, features"
        if is_sparse(features):
            raise InputError(
                f"sparse features have no tiers: rows of different sizes (in {where})",
                hint="Make them dense with .to_dense(), or train with the sparse ones in memory.",
            )
        if isinstance(features, Tensor) and features.device.type != "cpu":
            raise InputError(
                "features are not in memory of the processor: a tensor on a device of type "
                f"'{features.device.type}' (in {where})",
                hint="Index the tensor itself, or move it with .to('cpu').",
            )
        require_no_gradient(features, where=where)
        self._features, store = features, feature_store(features)
        self.num_rows, self.row_shape, self.dtype = store.num_rows, tuple(store.row_shape), store.dtype
        self.row_bytes = row_bytes(store)
        self._order: Array | None = None
        if hottest is not None:
            where = f"{type(self).__name__}, hottest"
            self._order = checked_ids(hottest, self.num_rows, where, distinct=True)
        # A tensor that is mapped from a file is read by position.
        cold = positioned(features)
        self._cold: FileRows | StoreRows = (
            FileRows(cold) if isinstance(cold, MappedRows) else StoreRows(feature_store(cold))
        )

    def slice(self, start: int, stop: int) -> Tensor:
        """Read the rows of vertices ``start`` to ``stop - 1`` from ``features``, on the processor; the hot tier is not used."""
        return read_slice(positioned(self._features), start, stop)


def checked_ids(ids: Tensor, num_rows: int, where: str, *, distinct: bool = False) -> Array:
    """Ids of rows, int64 [n], as an array."""
    (require_distinct if distinct else require_ids)(ids, num_rows, where=where)
    found: Array = ids.detach().cpu().contiguous().numpy()
    return found
