"""Archives of NumPy arrays (``.npz``): checked before memory is allocated, never unpickled, read in slabs.

NumPy's reader allocates the size that a header claims, and loads whole arrays. Here the claim is compared with the
archive's directory first. An array can be read from any row on, in slabs, so it may be larger than memory.
"""

from __future__ import annotations

import io
import math
import os
import struct
import tokenize
import warnings
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from sagann.errors import DatasetError
from sagann.ranges import require_shape
from sagann.storage.regular_file import reading

Array = np.ndarray[Any, Any]

# Errors of NumPy's header parser for truncated, damaged or foreign files. Python's parser, which it calls, raises MemoryError or
# RecursionError for expressions that are nested thousands of times.
UNREADABLE_HEADER = (
    OSError,
    EOFError,
    ValueError,
    TypeError,
    OverflowError,
    SyntaxError,
    tokenize.TokenError,
    MemoryError,
    RecursionError,
)
# Errors of the header parser, of zipfile and of zlib.
_UNREADABLE = (*UNREADABLE_HEADER, zipfile.BadZipFile, zlib.error, struct.error, LookupError, RuntimeError)
_HEADERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    # Both have a length of 4 bytes. Their encodings differ in the names of fields alone, which no array here has.
    (2, 0): np.lib.format.read_array_header_2_0,
    (3, 0): np.lib.format.read_array_header_2_0,
}
"Readers of the headers of .npy files by version."
_MOST_HEADER_BYTES = 10_000
"Longest header that is read. One of plain numbers has a hundred bytes."
_FIX = "The file is damaged, truncated, or not an .npz archive; fetch or make it again."


@dataclass(frozen=True, kw_only=True, slots=True)
class NpzMember:
    """One array of an archive, as its header describes it."""

    file: str
    "Name inside the archive, with '.npy'."
    dtype: np.dtype[Any]
    "Data type, never object."
    shape: tuple[int, ...]
    "Shape of the array."
    data_offset: int
    "Number of bytes in the header."
    fortran: bool = False
    "Whether the array is stored in Fortran order: the last axis is the slowest one in the file."

    @property
    def stored_shape(self) -> tuple[int, ...]:
        """Shape of the data in the file, slowest axis first: reversed for Fortran order."""
        return self.shape[::-1] if self.fortran else self.shape

    @property
    def row_bytes(self) -> int:
        """Bytes of one stored row (one element of a vector)."""
        return self.dtype.itemsize * math.prod(self.stored_shape[1:])


def read_npy_header(stream: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Shape, Fortran order and dtype of an ``.npy`` file; an error of UNREADABLE_HEADER where there is no such array."""
    version = np.lib.format.read_magic(stream)
    if version not in _HEADERS:
        known = ", ".join(f"{major}.{minor}" for major, minor in _HEADERS)
        raise ValueError(f"version {version[0]}.{version[1]} of the .npy format, known are {known}")
    length = stream.read(2 if version == (1, 0) else 4)
    if (num_bytes := int.from_bytes(length, "little")) > _MOST_HEADER_BYTES:
        raise ValueError(f"a header of {num_bytes} bytes, at most {_MOST_HEADER_BYTES} are read")
    header = io.BytesIO(length + stream.read(num_bytes))
    with warnings.catch_warnings():
        # Python's parser warns of strange literals, before the header is refused.
        warnings.simplefilter("ignore")
        shape, fortran, dtype = _HEADERS[version](header)
    require_shape(shape, dtype.itemsize)
    return shape, fortran, dtype


class NpzArchive(AbstractContextManager["NpzArchive"]):
    """A pickle-free ``.npz`` file, open for reading.

    Raises:
        DatasetError: the file is missing or not a zip archive, or an array is pickled, or its header claims another
            size than the archive's directory.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        with reading(self.path, _UNREADABLE, what="archive", fix=_FIX):
            self._file = self.path.open("rb")
            try:
                self._zip = zipfile.ZipFile(self._file)
                infos = [info for info in self._zip.infolist() if info.filename.endswith(".npy")]
                self.members: Mapping[str, NpzMember] = {
                    info.filename.removesuffix(".npy"): self._member(info) for info in infos
                }
            except BaseException:
                self._file.close()
                raise

    def read(self, name: str) -> Array:
        """Read one whole array, and compare its checksum."""
        member = self.members[name]
        parts = list(self.chunks(name, chunk_bytes=max(1, member.row_bytes * max(1, _rows(member)))))
        whole = parts[0] if parts else np.empty(member.stored_shape, member.dtype)
        whole = whole.reshape(member.stored_shape)
        return np.ascontiguousarray(whole.T) if member.fortran else whole

    def chunks(self, name: str, *, chunk_bytes: int = 2**24) -> Iterator[Array]:
        """Read stored rows in slabs of about ``chunk_bytes``; several arrays of one archive may be read at the same time."""
        member = self.members[name]
        # Rows without bytes are one slab, however many there are.
        step = max(1, chunk_bytes // member.row_bytes if member.row_bytes else _rows(member))
        return self._slabs(name, member.stored_shape[1:], 0, _rows(member), step)

    def elements(self, name: str, first: int, stop: int, count: int) -> Iterator[Array]:
        """Read elements ``first`` to ``stop`` of the flat array, ``count`` at a time.

        To read from the middle of a compressed array, all data before the first element is decompressed.
        """
        return self._slabs(name, (), first, stop, count)

    def _slabs(self, name: str, row_shape: tuple[int, ...], first: int, stop: int, step: int) -> Iterator[Array]:
        member = self.members[name]
        row_bytes = member.dtype.itemsize * math.prod(row_shape)
        with (
            reading(self.path, _UNREADABLE, what=f"array '{name}'", fix=_FIX),
            self._zip.open(member.file) as stream,
        ):
            _skip(stream, member.data_offset + first * row_bytes)
            for start in range(first, stop, step):
                rows = np.empty((min(step, stop - start), *row_shape), member.dtype)
                _read_into(stream, rows)
                yield rows
            # At the end of an array zipfile compares its checksum.
            if stop * row_bytes == member.dtype.itemsize * math.prod(member.shape) and stream.read(1):
                raise ValueError("data follows its last row")

    def __exit__(self, *_: object) -> None:
        self._zip.close()
        self._file.close()

    def _member(self, info: zipfile.ZipInfo) -> NpzMember:
        with self._zip.open(info) as stream:
            try:
                shape, fortran, dtype = read_npy_header(stream)
            except ValueError as error:
                raise ValueError(f"'{info.filename}': {error}") from error
            data_offset = stream.tell()
        if dtype.hasobject:
            raise DatasetError(
                "archive holds pickled objects",
                value=f"array '{info.filename.removesuffix('.npy')}' has dtype {dtype}",
                where=str(self.path),
                fix="Unpickling a file may run any code, so sagann never does; save plain numeric arrays instead.",
            )
        member = NpzMember(
            file=info.filename,
            dtype=dtype,
            shape=shape,
            data_offset=data_offset,
            fortran=fortran and len(shape) > 1,
        )
        claimed_bytes = data_offset + dtype.itemsize * math.prod(shape)
        if claimed_bytes != info.file_size:
            raise ValueError(f"'{info.filename}' claims {claimed_bytes} bytes and has {info.file_size}")
        return member


def _rows(member: NpzMember) -> int:
    return member.stored_shape[0] if member.shape else 1


def _skip(stream: IO[bytes], num_bytes: int) -> None:
    # Seeking forward in a compressed member reads and drops; in a stored one it is a real seek.
    if stream.seek(num_bytes) != num_bytes:
        raise EOFError("it ends early")


def _read_into(stream: IO[bytes], rows: Array) -> None:
    if rows.size == 0:
        return
    view = rows.reshape(-1).view(np.uint8).data
    while len(view):
        data = stream.read(min(len(view), 2**22))
        if not data:
            raise EOFError("it ends early")
        view[: len(data)] = data
        view = view[len(data) :]
