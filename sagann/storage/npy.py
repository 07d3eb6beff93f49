"""Raw arrays on disk: one ``.npy`` file per array, written by appending and opened by memory map.

The header is a function of dtype and shape alone, so a reader compares bytes instead of parsing a header, and nothing is ever
unpickled. The manifest holds a CRC-32 for every 64 MiB of data. Checksums cost one pass at memory speed while a file is
written; a check names the damaged part.
"""

from __future__ import annotations

import math
import os
import zlib
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from torch import Tensor

from sagann.errors import DatasetError
from sagann.storage.regular_file import require_file

CHECKSUM_BYTES = 64 * 2**20
"Number of bytes of data that one CRC-32 covers."

# NumPy has no bfloat16: the bits of such an array are stored as 16-bit integers.
_STORED_AS = {
    "bool": "|b1",
    "uint8": "|u1",
    "int8": "|i1",
    "int16": "<i2",
    "int32": "<i4",
    "int64": "<i8",
    "float16": "<f2",
    "bfloat16": "<i2",
    "float32": "<f4",
    "float64": "<f8",
}
DTYPE_NAMES = frozenset(_STORED_AS)
"Names of the torch dtypes that a dataset may hold."


@dataclass(frozen=True, kw_only=True, slots=True)
class ArraySpec:
    """Description of one array file in the manifest."""

    dtype: str
    "Name of the torch dtype, one of DTYPE_NAMES."
    shape: tuple[int, ...]
    "Shape, rows first."
    crc32: tuple[int, ...]
    "CRC-32 of each CHECKSUM_BYTES of data; () for an empty array."

    @property
    def item_bytes(self) -> int:
        """Number of bytes of one value."""
        return np.dtype(_STORED_AS[self.dtype]).itemsize

    @property
    def data_bytes(self) -> int:
        """Number of bytes of data, without the header."""
        return math.prod(self.shape) * self.item_bytes

    @property
    def file_bytes(self) -> int:
        """Number of bytes in the file."""
        return len(npy_header(self.dtype, self.shape)) + self.data_bytes


def dtype_name(dtype: torch.dtype) -> str:
    """Name a torch dtype as the manifest does ("float32")."""
    return str(dtype).removeprefix("torch.")


def npy_header(dtype: str, shape: tuple[int, ...]) -> bytes:
    """Build the header of an ``.npy`` file (version 1.0), 128 bytes for every shape that occurs.

    Example:
        >>> len(npy_header("int64", (10,)))
        128
    """
    extent = ", ".join(str(size) for size in shape) + ("," if len(shape) == 1 else "")
    text = f"{{'descr': '{_STORED_AS[dtype]}', 'fortran_order': False, 'shape': ({extent}), }}"
    body = text.encode("ascii").ljust(117) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(body).to_bytes(2, "little") + body


class NpyWriter(AbstractContextManager["NpyWriter"]):
    """Write one array of a known dtype and row shape by appending rows; the number of rows need not be known."""

    def __init__(self, path: Path, dtype: str, row_shape: tuple[int, ...] = ()) -> None:
        self._path = path
        self._dtype = dtype
        self._stored = np.dtype(_STORED_AS[dtype])
        self._row_shape = row_shape
        self.num_rows = 0
        self._crc32: list[int] = []
        self._crc_bytes = CHECKSUM_BYTES
        self._file: BinaryIO = path.open("wb")
        self._file.write(bytes(len(npy_header(dtype, (0, *row_shape)))))

    def append(self, rows: np.ndarray[Any, Any] | Tensor) -> None:
        """Append rows [n, *row_shape], cast to the array's dtype where they differ."""
        if isinstance(rows, Tensor):
            rows = rows.detach().cpu()
            rows = (rows.view(torch.int16) if rows.dtype == torch.bfloat16 else rows).numpy()
        assert rows.shape[1:] == self._row_shape, (rows.shape, self._row_shape)
        self.num_rows += len(rows)
        if rows.size == 0:
            return
        # Values that overflow become infinite, and the check of the whole graph refuses them.
        with np.errstate(over="ignore"):
            data = np.ascontiguousarray(rows, dtype=self._stored).reshape(-1).view(np.uint8).data
        while len(data):
            if self._crc_bytes == CHECKSUM_BYTES:
                self._crc32.append(0)
                self._crc_bytes = 0
            part = data[: CHECKSUM_BYTES - self._crc_bytes]
            self._crc32[-1] = zlib.crc32(part, self._crc32[-1])
            self._crc_bytes += len(part)
            self._file.write(part)
            data = data[len(part) :]

    def finish(self) -> ArraySpec:
        """Write the header, sync the file, and return the description of the array."""
        spec = ArraySpec(dtype=self._dtype, shape=(self.num_rows, *self._row_shape), crc32=tuple(self._crc32))
        self._file.seek(0)
        self._file.write(npy_header(spec.dtype, spec.shape))
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        return spec

    def __exit__(self, *_: object) -> None:
        self._file.close()


def write_npy(path: Path, tensor: Tensor, pieces: Iterable[Tensor] | None = None) -> ArraySpec:
    """Write a tensor as an array file; or the rows in ``pieces``, which have the tensor's dtype and row shape."""
    with NpyWriter(path, dtype_name(tensor.dtype), tuple(tensor.shape[1:])) as writer:
        for piece in [tensor] if pieces is None else pieces:
            writer.append(piece)
        return writer.finish()


def map_npy(path: Path, spec: ArraySpec) -> Tensor:
    """Map an array file into memory without reading its data; its header and size must be those of ``spec``.

    The map is private and copy-on-write: writing to the tensor does not change the file.
    """
    header = npy_header(spec.dtype, spec.shape)
    require_file(path)
    try:
        with path.open("rb") as file:
            found = file.read(len(header))
            size_bytes = os.fstat(file.fileno()).st_size
            if found != header or size_bytes != spec.file_bytes:
                raise _unlike_manifest(path, spec, size_bytes, same_header=found == header)
            if spec.data_bytes == 0:
                stored = np.empty(spec.shape, dtype=_STORED_AS[spec.dtype])
            else:
                stored = np.memmap(
                    file, dtype=_STORED_AS[spec.dtype], mode="c", offset=len(header), shape=spec.shape
                )
    except OSError as error:
        raise DatasetError(
            "array file cannot be read",
            value=error.strerror or str(error),
            where=str(path),
            fix="Import the dataset again.",
        ) from error
    tensor = torch.from_numpy(stored)
    return tensor.view(torch.bfloat16) if spec.dtype == "bfloat16" else tensor


def check_npy(path: Path, spec: ArraySpec) -> None:
    """Read an array file and compare its checksums; an error names the bytes of the damaged part."""
    with path.open("rb") as file:
        file.seek(len(npy_header(spec.dtype, spec.shape)))
        for part, expected in enumerate(spec.crc32):
            found = 0
            for block in _blocks(file, min(CHECKSUM_BYTES, spec.data_bytes - part * CHECKSUM_BYTES)):
                found = zlib.crc32(block, found)
            if found != expected:
                raise DatasetError(
                    "array file is damaged",
                    value=f"CRC-32 {found:08x}, but {expected:08x} was written, "
                    f"in the 64 MiB of data from byte {part * CHECKSUM_BYTES}",
                    where=str(path),
                    fix="Copy the dataset again from an undamaged copy, or import it again.",
                )


def _blocks(file: BinaryIO, num_bytes: int) -> Iterator[bytes]:
    while num_bytes > 0:
        block = file.read(min(num_bytes, 2**20))
        if not block:
            return
        num_bytes -= len(block)
        yield block


def _unlike_manifest(path: Path, spec: ArraySpec, size_bytes: int, *, same_header: bool) -> DatasetError:
    if size_bytes < spec.file_bytes:
        what, value = "array file is truncated", f"{size_bytes} bytes, expected {spec.file_bytes}"
    elif same_header:
        what, value = "array file is too long", f"{size_bytes} bytes, expected {spec.file_bytes}"
    else:
        what, value = "array file is not the one that was written", f"its header is not {spec.dtype} {spec.shape}"
    return DatasetError(what, value=value, where=str(path), fix="Import the dataset again.")
