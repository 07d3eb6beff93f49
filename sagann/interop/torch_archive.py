"""Files of ``torch.save``, read as data: a zip archive with one pickle, and beside it the numbers of each tensor.

PyTorch is not asked to load them. The pickle is read by :mod:`sagann.interop.restricted_pickle`; tensors are mapped from the file,
after the archive's directory and the shapes have been compared with the file. An archive is refused that two programs may read
differently: with two members of one name, data before, between or after its members, or members that its two lists of contents
describe differently.
"""

from __future__ import annotations

import math
import os
import re
import struct
import zipfile
from collections import Counter
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np

from sagann.errors import DatasetError, shown
from sagann.interop.restricted_pickle import MOST_BYTES, STORED, ForbiddenGlobalError, Global, Made, read_pickle
from sagann.ranges import RANGES, require_shape
from sagann.storage.regular_file import open_file, reading
from sagann.storage.row_source import Array

_REBUILD = "torch._utils._rebuild_tensor_v2"
_DTYPES = {
    "torch.DoubleStorage": "float64",
    "torch.FloatStorage": "float32",
    "torch.HalfStorage": "float16",
    "torch.LongStorage": "int64",
    "torch.IntStorage": "int32",
    "torch.ShortStorage": "int16",
    "torch.CharStorage": "int8",
    "torch.ByteStorage": "uint8",
    "torch.BoolStorage": "bool",
}
"Classes of tensors' numbers, and NumPy's names for them."
_TENSOR_GLOBALS = frozenset([_REBUILD, "collections.OrderedDict", *_DTYPES])
"What the pickle of a tensor names."
_PLAIN = "save it as a plain tensor: x.detach().cpu().to_dense().contiguous()"
_AS_FLOAT = (
    'If you trust it, save such tensors as float32, which has all of their values; of x: data = torch.load(FILE, weights_only=False); data["x"] = '
    'data["x"].float(); torch.save(data, FILE)'
)
_AS_PLAIN = (
    "It is a tensor of a kind or dtype that is not read. If you trust it, save integers as int64, or other numbers as float32 (with .float() in place "
    'of .long()); of x: data = torch.load(FILE, weights_only=False); data["x"] = data["x"].detach().long(); torch.save(data, FILE)'
)
_OF_TENSORS = {
    "torch.BFloat16Storage": _AS_FLOAT,
    "torch._utils._rebuild_sparse": f"It is a sparse tensor; {_PLAIN}",
    # Among them unsigned integers of 16 bits and more, and floating point numbers of 8 bits.
    "torch._utils._rebuild_": _AS_PLAIN,
}
"What to do about tensors of kinds that are not read, by how the names of their classes begin."
_LEGACY = (b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46", b"\x80\x04\x8a\x0a\x6c\xfc\x9c\x46")
"""How a file begins that PyTorch before 1.6 wrote, and later ones with ``_use_new_zipfile_serialization=False``."""
_MEMBERS = re.compile(
    r"data\.pkl|version|byteorder|\.format_version|\.storage_alignment|\.data/serialization_id|data/[0-9]+"
)
_LOCAL = struct.Struct("<4s2x2H4x3I2H")
"Start of a member: signature, flags, method, checksum, packed and whole size, lengths of the name and of the extra field."
_DESCRIPTORS = (struct.Struct("<4s3I"), struct.Struct("<4sI2Q"))
"What follows a member whose sizes are not at its start: signature, checksum, both sizes, in 32 or 64 bits."
_END = struct.Struct("<4s4x2H2IH")
"End of the archive: signature, number of members twice, bytes and offset of the directory, length of a comment."
_END_64 = struct.Struct("<4s20x4Q20x")
"The same in 64 bits, with the record that says where it begins."
_HAS_DESCRIPTOR, _IS_ENCRYPTED = 8, 1
_UNREADABLE = (
    OSError,
    ValueError,
    EOFError,
    struct.error,
    zipfile.BadZipFile,
    LookupError,
    RuntimeError,
    NotImplementedError,
)
_FIX = "The file is damaged, truncated, or was not written by torch.save; fetch or make it again."
_AGAIN = "If you trust it, load it with PyTorch, and save it again with torch.save(data.to_dict(), FILE)."


class _Numbers(NamedTuple):
    """Where the bytes of a member lie in the file."""

    offset: int
    num_bytes: int


class TorchFile:
    """What was saved in a file of ``torch.save``.

    Args:
        path: the file.
        listed: classes and functions that the file may name, beside those of tensors. None of them is imported.
        advice: what to do about others, by how their names begin.

    Raises:
        DatasetError: the file is missing or damaged, has another form, or names what is not listed.
    """

    def __init__(
        self, path: str | os.PathLike[str], listed: Collection[str], *, advice: Mapping[str, str] | None = None
    ) -> None:
        self.path = Path(path)
        with reading(self.path, _UNREADABLE, what="file of PyTorch", fix=_FIX), open_file(self.path) as file:
            _refuse_legacy(file, self.path)
            content, self._numbers = _members(file)
            try:
                self.value: Any = read_pickle(content, {*listed, *_TENSOR_GLOBALS})
            except ForbiddenGlobalError as error:
                raise _forbidden(error.name, self.path, advice or {}) from None
            self._bytes = np.memmap(file, np.uint8, "r")

    def array(self, saved: object) -> Array | None:
        """The tensor ``saved``, a part of :attr:`value`, as an array that is mapped from the file; None for anything else."""
        if not isinstance(saved, Made) or saved.of != _REBUILD:
            return None
        with reading(self.path, _UNREADABLE, what="tensor", fix=_FIX):
            return self._array(saved)

    def _array(self, saved: Made) -> Array:
        match saved.args:
            case (
                Made(of=stored, args=("storage", Global(name=kind), key, _, num_items)),
                start,
                shape,
                strides,
                *rest,
            ) if stored == STORED and kind in _DTYPES and len(rest) in (2, 3) and not any(rest[2:]):
                pass
            case _:
                raise ValueError(f"it is of a kind that is not read; {_PLAIN}")
        sizes = shape if type(shape) is tuple else (None,)
        steps = strides if type(strides) is tuple else (None,)
        if any(each not in RANGES["size"] for each in (start, num_items, *sizes, *steps)) or len(sizes) != len(
            steps
        ):
            # Values that are no sizes are not shown: nested in each other, they may have no end.
            raise ValueError("damaged tensor: shape, strides or offset are not the integers that torch.save writes")
        if type(key) is not str or key not in self._numbers:
            raise ValueError(
                f"damaged tensor: there is no member 'data/{shown(key) if type(key) is str else '...'}'"
            )
        dtype = np.dtype(_DTYPES[kind])
        require_shape(shape, dtype.itemsize)
        at = self._numbers[key]
        last = start + sum((size - 1) * stride for size, stride in zip(sizes, steps, strict=True))
        if num_items * dtype.itemsize != at.num_bytes or (math.prod(shape) and last >= num_items):
            raise ValueError(
                f"shape {list(shape)} from item {start} of {num_items}, and there are {at.num_bytes} bytes"
            )
        if math.prod(shape) > num_items:
            raise ValueError(f"shape {list(shape)}, of {num_items} stored numbers: it repeats them; {_PLAIN}")
        held = self._bytes[at.offset : at.offset + at.num_bytes]
        if len(held) != at.num_bytes:
            raise ValueError(f"it has been cut: {len(held)} bytes are left of {at.num_bytes}")
        numbers = held.view(dtype)[start:]
        return np.lib.stride_tricks.as_strided(
            numbers, shape, [step * dtype.itemsize for step in steps], writeable=False
        )


def _forbidden(name: str, path: Path, advice: Mapping[str, str]) -> DatasetError:
    known = {**_OF_TENSORS, **advice}
    fix = next((text for start, text in known.items() if name.startswith(start)), _AGAIN)
    return DatasetError(
        "the file names a class or function that is not read",
        value=shown(name),
        where=str(path),
        fix=f"To load it could run any code. {fix}",
    )


def _refuse_legacy(file: IO[bytes], path: Path) -> None:
    start = file.read(8)
    file.seek(0)
    if start in _LEGACY:
        raise DatasetError(
            "the file has the form of PyTorch before 1.6",
            value="several pickles in a row, expected a zip archive",
            where=str(path),
            fix=_AGAIN,
        )


def _members(file: IO[bytes]) -> tuple[bytes, dict[str, _Numbers]]:
    """The pickle, and where the numbers of each tensor lie. Everything is read once, and compared with its checksum."""
    with zipfile.ZipFile(file) as archive:
        infos = archive.infolist()
        _check_directory(file, archive, infos)
        root = infos[0].filename.partition("/")[0] + "/" if infos else ""
        found = {info.filename.removeprefix(root): info for info in infos}
        for name, info in found.items():
            if name == info.filename or not _MEMBERS.fullmatch(name):
                raise ValueError(f"member {shown(info.filename)}, which torch.save does not write")
        if "data.pkl" not in found:
            raise ValueError("no member 'data.pkl'")
        if found["data.pkl"].file_size > MOST_BYTES:
            raise ValueError(f"a pickle of {found['data.pkl'].file_size} bytes, at most {MOST_BYTES} are read")
        numbers, end = {}, 0
        for name, info in sorted(found.items(), key=lambda each: each[1].header_offset):
            if info.header_offset != end:
                raise ValueError(
                    f"member '{name}' begins at byte {info.header_offset}, and the one before ends at {end}"
                )
            offset = _data_offset(file, info)
            numbers[name] = _Numbers(offset, info.file_size)
            end = offset + info.file_size + _descriptor_bytes(file, info, offset + info.file_size)
            with archive.open(info) as stream:
                # At its end zipfile compares the checksum.
                while stream.read(2**20):
                    pass
        if end != archive.start_dir:
            raise ValueError(f"the last member ends at byte {end}, and the directory begins at {archive.start_dir}")
        order = archive.read(found["byteorder"]) if "byteorder" in found else b"little"
        if order != b"little":
            raise ValueError(f"byte order {shown(order)}, expected b'little'")
        content = archive.read(found["data.pkl"])
    return content, {name.removeprefix("data/"): at for name, at in numbers.items() if name.startswith("data/")}


def _check_directory(file: IO[bytes], archive: zipfile.ZipFile, infos: list[zipfile.ZipInfo]) -> None:
    """Refuse a directory that does not stand at the very end, or has members of one name, packed or encrypted ones."""
    size = file.seek(0, os.SEEK_END)
    signature, *counts, num_bytes, offset, comment = _read(file, size - _END.size, _END)
    tail = size - archive.start_dir - num_bytes
    known = (len(infos), len(infos), num_bytes, archive.start_dir)
    if tail == _END_64.size + _END.size:
        _, *of_64_bits = _read(file, size - tail, _END_64)
        fits = tuple(of_64_bits) == known and offset in (archive.start_dir, 0xFFFFFFFF)
    else:
        fits = tail == _END.size and offset == archive.start_dir
    if signature != b"PK\x05\x06" or comment or not fits or counts != list(known[:2]):
        raise ValueError("its directory does not stand at the end of the file, where it should")
    names = [info.filename for info in infos]
    double = next((name for name, count in Counter(names).items() if count > 1), None)
    if double is not None:
        raise ValueError(f"two members have the name {shown(double)}")
    for info in infos:
        if (
            info.compress_type != zipfile.ZIP_STORED
            or info.file_size != info.compress_size
            or info.flag_bits & _IS_ENCRYPTED
        ):
            raise ValueError(f"member {shown(info.filename)} is packed or encrypted")


def _data_offset(file: IO[bytes], info: zipfile.ZipInfo) -> int:
    """Where a member's data begin; a ValueError where its own header says something else than the directory."""
    signature, flags, method, *sizes, name_bytes, extra_bytes = _read(file, info.header_offset, _LOCAL)
    name = file.read(name_bytes)
    expected = [0, 0, 0] if flags & _HAS_DESCRIPTOR else [info.CRC, info.compress_size, info.file_size]
    if (
        (signature, flags, method, sizes) != (b"PK\x03\x04", info.flag_bits, info.compress_type, expected)
        or name != info.orig_filename.encode()
        or info.orig_filename != info.filename
    ):
        raise ValueError(f"the directory and the header of member {shown(info.filename)} differ")
    return info.header_offset + _LOCAL.size + name_bytes + extra_bytes


def _descriptor_bytes(file: IO[bytes], info: zipfile.ZipInfo, offset: int) -> int:
    """Length of what stands after a member whose header has no sizes: it repeats the directory."""
    if not info.flag_bits & _HAS_DESCRIPTOR:
        return 0
    for form in _DESCRIPTORS:
        if _read(file, offset, form) == (b"PK\x07\x08", info.CRC, info.compress_size, info.file_size):
            return form.size
    raise ValueError(f"the directory and the end of member {shown(info.filename)} differ")


def _read(file: IO[bytes], offset: int, form: struct.Struct) -> tuple[Any, ...]:
    file.seek(offset)
    return form.unpack(file.read(form.size))
