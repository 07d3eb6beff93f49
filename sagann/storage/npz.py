"""Archives of NumPy arrays (``.npz``): never unpickled, and read in slabs, so that an array may be larger than memory."""

from __future__ import annotations

import math
import os
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sagann.errors import DatasetError
from sagann.storage.regular_file import reading
from sagann.storage.rows import CHUNK_BYTES, Array, RowChunk, Rows

_HINT = "The file is damaged, truncated, or not an .npz archive; fetch or make it again."


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


class NpzArchive(AbstractContextManager["NpzArchive"]):
    """A pickle-free ``.npz`` file, open for reading.

    Raises:
        DatasetError: the file is missing or not a zip archive, or an array is pickled.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        with reading(self.path, what="archive", hint=_HINT), ExitStack() as files_open:
            # A ZipFile that opens its file itself keeps it open for readers of rows that stopped midway.
            self._zip = zipfile.ZipFile(files_open.enter_context(self.path.open("rb")))
            files = [info.filename for info in self._zip.infolist() if info.filename.endswith(".npy")]
            self.members: Mapping[str, NpzMember] = {
                file.removesuffix(".npy"): self._member(file) for file in files
            }
            self._files_open = files_open.pop_all()

    def read(self, name: str) -> Array:
        """Read one whole array, and compare its checksum."""
        with self._opened(name) as stream:
            array = np.lib.format.read_array(stream, allow_pickle=False)
            self._require_end(stream)
        return np.ascontiguousarray(array)

    def rows(self, name: str) -> Rows:
        """An array as rows; one in Fortran order is read whole, because its rows are not contiguous."""
        member = self.members[name]

        def chunks() -> Iterator[RowChunk]:
            first = 0
            for rows in [self.read(name)] if member.fortran else self.slabs(name, CHUNK_BYTES):
                yield RowChunk(rows=rows, first_row=first)
                first += len(rows)

        return Rows(file=f"{self.path}, {name}", dtype=member.dtype, shape=member.shape, chunks=chunks)

    def slabs(
        self, name: str, slab_bytes: int, *, first: int = 0, stop: int | None = None, flat: bool = False
    ) -> Iterator[Array]:
        """Read stored rows ``first`` to ``stop``, or elements if ``flat``, in slabs of about ``slab_bytes``.

        Several arrays of one archive may be read at the same time. Rows of an array in Fortran order are stored along its last axis.
        """
        member = self.members[name]
        shape = member.shape[::-1] if member.fortran else member.shape
        row_shape = () if flat else shape[1:]
        row_bytes = member.dtype.itemsize * math.prod(row_shape)
        num_rows = math.prod(shape) if flat else shape[0]
        stop = num_rows if stop is None else stop
        # Rows without bytes are one slab, however many there are.
        step = max(1, slab_bytes // row_bytes if row_bytes else num_rows)
        with self._opened(name) as stream:
            # In a compressed member seeking reads and drops.
            stream.seek(member.data_offset + first * row_bytes)
            for start in range(first, stop, step):
                rows = np.empty((min(step, stop - start), *row_shape), member.dtype)
                left = rows.reshape(-1).view(np.uint8).data if rows.size else memoryview(b"")
                while left:
                    if not (count := stream.readinto(left)):
                        raise EOFError("it ends early")
                    left = left[count:]
                yield rows
            if stop == num_rows:
                self._require_end(stream)

    def __exit__(self, *_: object) -> None:
        self._files_open.close()

    @contextmanager
    def _opened(self, name: str) -> Iterator[Any]:
        with (
            reading(self.path, what=f"array '{name}'", hint=_HINT),
            self._zip.open(self.members[name].file) as stream,
        ):
            yield stream

    def _require_end(self, stream: Any) -> None:
        # At the end of an array zipfile compares its checksum.
        if stream.read(1):
            raise ValueError("data follows its last row")

    def _member(self, file: str) -> NpzMember:
        with self._zip.open(file) as stream:
            # The headers of later versions differ in the encoding of names of fields alone, which no array here has.
            is_first = np.lib.format.read_magic(stream) == (1, 0)
            read = np.lib.format.read_array_header_1_0 if is_first else np.lib.format.read_array_header_2_0
            shape, fortran, dtype = read(stream)
            if dtype.hasobject:
                raise DatasetError(
                    f"archive holds pickled objects: array '{file.removesuffix('.npy')}' has dtype {dtype} (in "
                    f"{self.path})",
                    hint="Unpickling a file may run any code, so sagann never does; save plain numeric arrays instead.",
                )
            offset = stream.tell()
            if offset + dtype.itemsize * math.prod(shape) != self._zip.getinfo(file).file_size:
                raise ValueError(f"'{file}' has another size than its header says")
            # Without rows it takes no bytes, however wide: NumPy refuses widths that no array has.
            np.empty((0, *shape), dtype)
        return NpzMember(
            file=file, dtype=dtype, shape=shape, data_offset=offset, fortran=fortran and len(shape) > 1
        )
