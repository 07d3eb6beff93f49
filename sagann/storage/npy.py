"""Raw arrays on disk: one ``.npy`` file per array, written by appending and opened by memory map.

The header is a function of dtype and shape alone, so a reader compares bytes instead of parsing a header, and nothing is ever
unpickled. The manifest holds a CRC-32 for every 64 MiB of data. Checksums cost one pass at memory speed while a file is
written; a check names the damaged part.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO
from weakref import finalize

import numpy as np
import torch
from torch import Tensor

from sagann.errors import DatasetError
from sagann.storage.positioned import read_bytes

try:
    # Takes less than half of the time of zlib, but has no wheels for some systems.
    from isal.isal_zlib import crc32 as crc32
except ImportError:
    from zlib import crc32 as crc32

CHECKSUM_BYTES = 64 * 2**20
"Number of bytes of data that one CRC-32 covers."
# So many bytes stay in the cache between being read and being summed.
_READ_BYTES = 2**19

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

    @classmethod
    def from_json(cls, item: Mapping[str, Any]) -> ArraySpec:
        """The description that ``dataclasses.asdict`` has made a mapping of, and JSON its tuples lists."""
        return cls(dtype=item["dtype"], shape=tuple(item["shape"]), crc32=tuple(item["crc32"]))

    @property
    def num_parts(self) -> int:
        """Number of parts that have a checksum each."""
        return -(-self.data_bytes // CHECKSUM_BYTES)

    @property
    def data_bytes(self) -> int:
        """Number of bytes of data, without the header."""
        return math.prod(self.shape) * np.dtype(_STORED_AS[self.dtype]).itemsize

    @property
    def file_bytes(self) -> int:
        """Number of bytes in the file."""
        return len(npy_header(self.dtype, self.shape)) + self.data_bytes


def dtype_name(dtype: torch.dtype) -> str:
    """Name a torch dtype as the manifest does ("float32")."""
    return str(dtype).removeprefix("torch.")


def npy_header(dtype: str, shape: tuple[int, ...]) -> bytes:
    """Build the header of an ``.npy`` file (version 1.0), 128 bytes for every shape that occurs."""
    extent = ", ".join(str(size) for size in shape) + ("," if len(shape) == 1 else "")
    text = f"{{'descr': '{_STORED_AS[dtype]}', 'fortran_order': False, 'shape': ({extent}), }}"
    body = text.encode("ascii").ljust(117) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(body).to_bytes(2, "little") + body


class PartChecksums:
    """The CRC-32 of each CHECKSUM_BYTES of bytes that are added one after the other."""

    def __init__(self) -> None:
        self._parts: list[int] = []
        self._num_bytes = CHECKSUM_BYTES

    @property
    def parts(self) -> tuple[int, ...]:
        """The checksums of the bytes so far; () for none."""
        return tuple(self._parts)

    def add(self, data: memoryview) -> None:
        """Add bytes: contiguous, of one byte each."""
        while len(data):
            if self._num_bytes == CHECKSUM_BYTES:
                self._parts.append(0)
                self._num_bytes = 0
            part = data[: CHECKSUM_BYTES - self._num_bytes]
            self._parts[-1] = crc32(part, self._parts[-1])
            self._num_bytes += len(part)
            data = data[len(part) :]


class NpyWriter(AbstractContextManager["NpyWriter"]):
    """Write one array of a known dtype and row shape by appending rows; the number of rows need not be known."""

    def __init__(self, path: Path, dtype: str, row_shape: tuple[int, ...] = ()) -> None:
        self._path = path
        self._dtype = dtype
        self._stored = np.dtype(_STORED_AS[dtype])
        self._row_shape = row_shape
        self.num_rows = 0
        self._checksums = PartChecksums()
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
        self._checksums.add(data)
        self._file.write(data)

    def finish(self) -> ArraySpec:
        """Write the header, sync the file, and return the description of the array."""
        spec = ArraySpec(dtype=self._dtype, shape=(self.num_rows, *self._row_shape), crc32=self._checksums.parts)
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


@dataclass(kw_only=True, slots=True, eq=False, weakref_slot=True)
class ArrayMap:
    """A file that an array in use is mapped from. It stays open, whatever becomes of its name."""

    path: Path
    "The file, as it was opened."
    spec: ArraySpec
    "What the manifest says of the array."
    begin: int
    "Address of the array's first byte."
    file: int
    "Descriptor of the file."
    verify: bool
    "Whether checksums are compared when the values are checked."
    is_checked: bool = False
    "Whether the file has the checksums of the manifest."

    def __post_init__(self) -> None:
        finalize(self, os.close, self.file)

    @property
    def end(self) -> int:
        """Address after the array's last byte."""
        return self.begin + self.spec.data_bytes

    def offset_of(self, address: int) -> int:
        """Position in the file of the byte at an address of the map."""
        return self.spec.file_bytes - self.end + address

    def compare(self, part: int) -> None:
        """Compare the checksum of a part of the file."""
        first = part * CHECKSUM_BYTES
        stop = min(first + CHECKSUM_BYTES, self.spec.data_bytes)
        memory, found = memoryview(bytearray(_READ_BYTES)), 0
        for at in range(first, stop, _READ_BYTES):
            block = memory[: stop - at]
            read_bytes(self.file, block, self.offset_of(self.begin + at))
            found = crc32(block, found)
        if found != self.spec.crc32[part]:
            raise DatasetError(
                f"array file is damaged: CRC-32 {found:08x}, but {self.spec.crc32[part]:08x} was written, in "
                f"the 64 MiB of data from byte {first} (in {self.path})",
                hint="Copy the dataset again from an undamaged copy, or import it again.",
            )


_MAPS: dict[int, ArrayMap] = {}
"The maps of all arrays in use, by the address of the array."


def map_of(tensor: Tensor) -> ArrayMap | None:
    """The map in which a tensor lies; None for a tensor that lies in none."""
    if tensor.layout != torch.strided or tensor.device.type != "cpu":
        return None
    at = tensor.data_ptr()
    return next((each for each in list(_MAPS.values()) if each.begin <= at < each.end), None)


def map_npy(path: Path, spec: ArraySpec, *, verify: bool = True) -> Tensor:
    """Map an array file into memory without reading its data; its header and size must be those of ``spec``.

    The map is private and copy-on-write: writing to the tensor does not change the file. ``verify`` says whether the checksums
    are compared when the values are checked (:func:`sagann.storage.verify.check_graph`).
    """
    header = npy_header(spec.dtype, spec.shape)
    try:
        with path.open("rb") as file:
            found, size_bytes = file.read(len(header)), os.fstat(file.fileno()).st_size
            if found != header or size_bytes != spec.file_bytes:
                raise DatasetError(
                    f"array file is not the one that was written: {size_bytes} bytes, expected {spec.file_bytes} with "
                    f"{spec.dtype} {list(spec.shape)} (in {path})",
                    hint="Import the dataset again.",
                )
            if spec.data_bytes == 0:
                stored = np.empty(spec.shape, dtype=_STORED_AS[spec.dtype])
            else:
                stored = np.memmap(
                    file, dtype=_STORED_AS[spec.dtype], mode="c", offset=len(header), shape=spec.shape
                )
                begin, descriptor = stored.ctypes.data, os.dup(file.fileno())
                _MAPS[begin] = ArrayMap(path=path, spec=spec, begin=begin, file=descriptor, verify=verify)
                finalize(stored, _MAPS.pop, begin).atexit = False
    except OSError as error:
        raise DatasetError(
            f"array file cannot be read: {error.strerror or str(error)} (in {path})",
            hint="Import the dataset again.",
        ) from error
    tensor = torch.from_numpy(stored)
    return tensor.view(torch.bfloat16) if spec.dtype == "bfloat16" else tensor
