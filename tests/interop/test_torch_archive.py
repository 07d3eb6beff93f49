"""Files of torch.save as data: tensors are PyTorch's own, and archives that may be read in two ways are refused."""

from __future__ import annotations

import io
import os
import random
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sagann.errors import DatasetError
from sagann.interop.torch_archive import TorchFile

TENSORS = {
    "float32": torch.arange(6.0).reshape(2, 3),
    "float64": torch.tensor([1.5, -0.0], dtype=torch.float64),
    "float16": torch.tensor([[0.5]], dtype=torch.float16),
    "int64": torch.tensor([2**62, -1]),
    "int32": torch.tensor([7], dtype=torch.int32),
    "int16": torch.tensor([7], dtype=torch.int16),
    "int8": torch.tensor([-7], dtype=torch.int8),
    "uint8": torch.tensor([200], dtype=torch.uint8),
    "bool": torch.tensor([True, False]),
    "no dimension": torch.tensor(3.0),
    "empty": torch.zeros(0, 5),
    "transposed": torch.arange(12.0).reshape(3, 4).t(),
    "a part": torch.arange(20.0)[3:17:2],
    "a column": torch.arange(12).reshape(4, 3)[:, 1],
    "with gradient": torch.ones(2, requires_grad=True),
}


def saved(value: Any, path: Path) -> TorchFile:
    torch.save(value, path)
    return TorchFile(path, [])


@pytest.mark.parametrize("name", TENSORS)
def test_a_tensor_is_the_one_that_was_saved(name: str, tmp_path: Path) -> None:
    tensor = TENSORS[name]
    file = saved([tensor], tmp_path / "a.pt")
    array = file.array(file.value[0])
    assert array is not None
    assert array.dtype == tensor.detach().numpy().dtype
    assert np.array_equal(array, tensor.detach().numpy())
    assert not array.flags.writeable


def test_tensors_that_share_numbers_and_other_values(tmp_path: Path) -> None:
    whole = torch.arange(10)
    file = saved({"whole": whole, "part": whole[2:4], "name": "a", "n": [1, None]}, tmp_path / "a.pt")
    assert file.array(file.value["part"]).tolist() == [2, 3]  # type: ignore[union-attr]
    assert (file.value["name"], file.value["n"]) == ("a", [1, None])
    assert file.array(file.value["name"]) is None


@pytest.mark.parametrize(
    ("tensor", "message"),
    [
        (torch.ones(1).expand(10**6, 10**6), r"it repeats them; save it as a plain tensor"),
        (torch.ones(2, dtype=torch.complex64).conj(), "names a class or function that is not read"),
        (torch.ones(2).bfloat16(), "'torch.BFloat16Storage'"),
        (torch.eye(2).to_sparse(), "'torch._utils._rebuild_sparse_tensor'"),
        (torch.nn.Parameter(torch.ones(2)), "'torch._utils._rebuild_parameter'"),
        (torch.ones(2, device="meta"), "'torch._utils._rebuild_meta_tensor_no_storage'|not read"),
    ],
)
def test_tensors_of_other_kinds_are_refused(tensor: torch.Tensor, message: str, tmp_path: Path) -> None:
    def read() -> None:
        file = saved([tensor], tmp_path / "a.pt")
        file.array(file.value[0])

    with pytest.raises(DatasetError, match=message):
        read()


def test_the_form_before_archives_is_refused(tmp_path: Path) -> None:
    torch.save([torch.ones(2)], tmp_path / "a.pt", _use_new_zipfile_serialization=False)
    with pytest.raises(DatasetError, match=r"form of PyTorch before 1\.6.*save it again with torch\.save"):
        TorchFile(tmp_path / "a.pt", [])


def test_what_is_no_file_of_pytorch_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="file not found"):
        TorchFile(tmp_path / "a.pt", [])
    (tmp_path / "a.pt").write_text("no archive")
    with pytest.raises(DatasetError, match="file of PyTorch cannot be read: File is not a zip file"):
        TorchFile(tmp_path / "a.pt", [])
    os.mkfifo(tmp_path / "pipe.pt")
    with pytest.raises(DatasetError, match="a pipe, a regular file is needed"):
        TorchFile(tmp_path / "pipe.pt", [])
    torch.jit.script(torch.nn.Linear(2, 2)).save(str(tmp_path / "script.pt"))
    with pytest.raises(DatasetError, match=r"member 'script/code.*|packed"):
        TorchFile(tmp_path / "script.pt", [])


def content_of(value: Any) -> dict[str, bytes]:
    """The members of a file of torch.save."""
    buffer = io.BytesIO()
    torch.save(value, buffer)
    with zipfile.ZipFile(buffer) as archive:
        return {name.partition("/")[2]: archive.read(name) for name in archive.namelist()}


def write(path: Path, members: list[tuple[str, bytes]], method: int = zipfile.ZIP_STORED) -> None:
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, content in members:
            # The module warns of a name that is there already.
            archive.writestr(zipfile.ZipInfo(name), content, compress_type=method)


SOUND = [(f"a/{name}", content) for name, content in content_of({"x": torch.arange(4.0)}).items()]


def test_an_archive_of_another_program_is_read_where_it_is_sound(tmp_path: Path) -> None:
    write(tmp_path / "a.pt", SOUND)
    file = TorchFile(tmp_path / "a.pt", [])
    assert file.array(file.value["x"]).tolist() == [0, 1, 2, 3]  # type: ignore[union-attr]


def replaced(name: str, content: bytes) -> list[tuple[str, bytes]]:
    return [(each, content if each == f"a/{name}" else old) for each, old in SOUND]


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ([], "no member 'data.pkl'"),
        (SOUND[1:], "no member 'data.pkl'"),
        ([*SOUND, ("a/code/x.py", b"")], "member 'a/code/x.py', which torch.save does not write"),
        ([*SOUND, ("b/data/1", b"")], "member 'b/data/1', which"),
        ([*SOUND, ("../a/data/1", b"")], "member '../a/data/1', which"),
        ([each for each in SOUND if "data/0" not in each[0]], "there is no member 'data/'0''"),
        (replaced("data/0", b"1234"), r"shape \[4\] from item 0 of 4, and there are 4 bytes"),
        (replaced("byteorder", b"big"), "byte order b'big'"),
        (replaced("data.pkl", b"\x80\x02cposix\nsystem\nX\x02\x00\x00\x00id\x85R."), "'posix.system'"),
    ],
)
def test_foreign_members_are_refused(members: list[tuple[str, bytes]], message: str, tmp_path: Path) -> None:
    write(tmp_path / "a.pt", members)

    def read() -> None:
        file = TorchFile(tmp_path / "a.pt", [])
        file.array(file.value["x"])

    with pytest.raises(DatasetError, match=message):
        read()


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_two_members_of_one_name_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "a.pt", [*SOUND, SOUND[0]])
    with pytest.raises(DatasetError, match=r"two members have the name 'a/data\.pkl'"):
        TorchFile(tmp_path / "a.pt", [])


def test_packed_members_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "a.pt", SOUND, zipfile.ZIP_DEFLATED)
    with pytest.raises(DatasetError, match="is packed or encrypted"):
        TorchFile(tmp_path / "a.pt", [])


def _prefixed(content: bytes) -> bytes:
    return b"\x80\x02K\x01." + content


def _with_comment(content: bytes) -> bytes:
    return content[:-2] + struct.pack("<H", 5) + b"hello"


def _in_the_middle(content: bytes) -> bytes:
    """Bytes before the directory, which its end knows of."""
    at = content.rindex(b"PK\x05\x06")
    offset = struct.unpack_from("<I", content, at + 16)[0]
    end = content[at : at + 16] + struct.pack("<I", offset + 9) + content[at + 20 :]
    return content[:offset] + b"in hiding" + content[offset:at] + end


def _other_local_name(content: bytes) -> bytes:
    return content.replace(b"a/data.pkl", b"a/data.pk_", 1)


def _other_local_checksum(content: bytes) -> bytes:
    return content[:14] + b"abcd" + content[18:]


CHANGES: dict[str, Callable[[bytes], bytes]] = {
    "data before it": _prefixed,
    "data after it": lambda content: content + b"more",
    "a comment": _with_comment,
    "data between": _in_the_middle,
    "another name in front of a member": _other_local_name,
    "another checksum in front of a member": _other_local_checksum,
    "two archives": lambda content: content + content,
}


@pytest.mark.parametrize("name", CHANGES)
def test_an_archive_that_two_programs_may_read_differently_is_refused(name: str, tmp_path: Path) -> None:
    write(tmp_path / "a.pt", SOUND)
    content = (tmp_path / "a.pt").read_bytes()
    (tmp_path / "a.pt").write_bytes(CHANGES[name](content))
    with pytest.raises(DatasetError, match="cannot be read: "):
        TorchFile(tmp_path / "a.pt", [])


def test_each_cut_and_each_flipped_bit_is_refused_or_harmless(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    torch.save({"x": torch.arange(40.0)}, path)
    content = path.read_bytes()
    draw = random.Random(0)
    for stop in sorted(draw.sample(range(len(content)), 60)):
        path.write_bytes(content[:stop])
        with pytest.raises(DatasetError):
            TorchFile(path, [])
    for at in draw.sample(range(len(content)), 300):
        flipped = bytearray(content)
        flipped[at] ^= 1 << draw.randrange(8)
        path.write_bytes(flipped)
        try:
            file = TorchFile(path, [])
            array = file.array(file.value["x"])
        except DatasetError:
            continue
        # Dates and versions mean nothing; the numbers have a checksum.
        assert array is not None
        assert array.tolist() == list(range(40))
