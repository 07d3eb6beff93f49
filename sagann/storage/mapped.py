"""Mapped rows: the feature store of a tensor that is mapped from a file. Its rows are read by position, not page by page.

A page of a map is read by the thread that touches the page, and stays in the process's memory until the system takes the page
back. A positioned read copies bytes into memory of the caller's choice, in large pieces and from any thread. Both give
the same bytes unless the process has written to the map. The system's account of the map, ``/proc/self/smaps``, tells
whether it has.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from weakref import finalize

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from sagann.errors import DatasetError
from sagann.graph.feature_store import Features, FeatureStore, feature_store
from sagann.graph.large_arrays import empty_array
from sagann.graph.rows import flat_bytes
from sagann.graph.versions import version_of
from sagann.storage.file_cache import is_cached
from sagann.storage.npy import cut_short
from sagann.storage.positioned import read_bytes, read_rows

_MAPS, _MAPS_AND_PAGES = Path("/proc/self/maps"), Path("/proc/self/smaps")
# 7f00-7f10 rw-p 00000080 fe:00 1234   /path
_MAP = re.compile(r"([0-9a-f]+)-([0-9a-f]+) \S{4} ([0-9a-f]+) ([0-9a-f]+):([0-9a-f]+) (\d+) +(/.*)")


_KNOWN = WeakTensorKeyDictionary()
"For each tensor: its version when its file was looked up, and the store of the file, or None without such a file."


class MappedRows:
    """The rows of a file that a tensor is mapped from.

    Args:
        tensor: gives the shape and dtype of the rows; the store does not keep the tensor alive.
        file: descriptor of the file, closed when the store is collected. It is the attribute ``file``.
        offset: position of the tensor's first byte in the file, which is the attribute ``offset``.

    Reading raises DatasetError where the file has become shorter.
    """

    def __init__(self, tensor: Tensor, file: int, offset: int) -> None:
        self.num_rows, self.row_shape, self.dtype = len(tensor), tuple(tensor.shape[1:]), tensor.dtype
        self.file, self.offset = file, offset
        self._row_bytes = tensor[:1].nbytes
        finalize(self, os.close, file)

    def rows(self, ids: Tensor) -> Tensor:
        """Read the rows of some vertices; ascending ids are read fastest."""
        order = None if bool((ids.diff() >= 0).all()) else ids.argsort()
        found = read_rows(
            self.file, self.offset, ids if order is None else ids[order], self._empty(len(ids)), self._cut_short
        )
        return found if order is None else found[order.argsort()]

    def slice(self, start: int, stop: int) -> Tensor:
        """Read a range of rows."""
        into = self._empty(stop - start)
        read_bytes(self.file, flat_bytes(into).data, self.offset + start * self._row_bytes, self._cut_short)
        return into

    def is_at_hand(self, start: int, stop: int) -> bool:
        """Whether a range of rows can be read without waiting for a disk, as far as the system tells."""
        return is_cached(self.file, self.offset + start * self._row_bytes, (stop - start) * self._row_bytes)

    def _empty(self, count: int) -> Tensor:
        return empty_array((count, *self.row_shape), self.dtype, torch.device("cpu"))

    def _cut_short(self, value: str) -> DatasetError:
        return cut_short(os.readlink(f"/proc/self/fd/{self.file}"), value)


def positioned(features: Features) -> FeatureStore:
    """The store of features. A tensor that is mapped from a file is read by position; its file is looked up once."""
    if not isinstance(features, Tensor):
        return features
    version, known = version_of(features), _KNOWN.get(features)
    if known is None or known[0] != version or version < 0:
        known = _KNOWN[features] = version, mapped_rows(features)
    return feature_store(features) if known[1] is None else known[1]


def is_at_hand(features: Features) -> bool:
    """Whether rows can be read without waiting for a disk: they are a tensor in memory, or mapped from a file in the page cache."""
    store = positioned(features)
    return store.is_at_hand(0, store.num_rows) if isinstance(store, MappedRows) else isinstance(features, Tensor)


def mapped_rows(tensor: Tensor) -> MappedRows | None:
    """The store of the file that a tensor is mapped from; None if the file cannot be read in place of the tensor.

    The tensor must be contiguous, the file must still be at its path, and no page of the map may have been written to.
    Only Linux tells this; on other systems the result is None.
    """
    is_dense = tensor.layout == torch.strided and tensor.device.type == "cpu"
    if not is_dense or not tensor.is_contiguous() or not tensor.numel() or not _MAPS_AND_PAGES.exists():
        return None
    found = _map_of(tensor.data_ptr(), tensor.nbytes)
    if found is None:
        return None
    path, known, offset = found
    try:
        file = os.open(path, os.O_RDONLY)
    except OSError:
        return None
    state = os.fstat(file)
    if (state.st_dev, state.st_ino) != known:
        os.close(file)
        return None
    return MappedRows(tensor, file, offset)


def _map_of(address: int, num_bytes: int) -> tuple[str, tuple[int, int], int] | None:
    """The file that a range of addresses is mapped from: path, (device, inode), and the range's position in the file.

    None without such a file, or if a page of the map was written to.
    """
    # The system goes through the pages of every map for the account of pages, which takes far longer than the list of maps.
    if not any(
        _file_at(line, address, num_bytes) for line in _MAPS.read_text(errors="surrogateescape").splitlines()
    ):
        return None
    candidate = None
    with _MAPS_AND_PAGES.open(errors="surrogateescape") as maps:
        for line in maps:
            if _MAP.match(line) is not None:
                candidate = _file_at(line, address, num_bytes)
            elif candidate is not None and line.startswith(("Anonymous:", "Swap:")):
                # A page that was written to is a private copy, which counts as anonymous memory until it is swapped out.
                if line.split()[1] != "0":
                    return None
                if line.startswith("Swap:"):
                    return candidate
    return None


def _file_at(line: str, address: int, num_bytes: int) -> tuple[str, tuple[int, int], int] | None:
    """The file, as of :func:`_map_of`, if a line of the list of maps is of a file's map that holds the range of addresses."""
    at = _MAP.match(line)
    if at is None:
        return None
    first, last, offset, major, minor = (int(number, 16) for number in at.group(1, 2, 3, 4, 5))
    if not first <= address <= address + num_bytes <= last:
        return None
    return at[7], (os.makedev(major, minor), int(at[6])), offset + address - first
