"""Mutations: the content of a file damaged by bytes, by words, or by structure with checksums made anew."""

from __future__ import annotations

import gzip
import io
import json
import random
import re
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from sagann.storage.manifest import _self_checksum
from sagann.train.atomic import digest, file_digest

Random = random.Random
NUMBERS: tuple[Any, ...] = (
    0,
    1,
    -1,
    2,
    3,
    255,
    1000,
    2**15,
    2**31 - 1,
    2**31,
    2**32,
    2**48,
    2**53,
    2**63 - 1,
    2**63,
)
NUMBERS += (2**64, 10**18, 10**30, -(2**31), -(2**63), 0.0, -0.0, 0.5, 1e-320, 1e38, 1e39, 1e300, 1.5)
WORDS = (
    "",
    " ",
    "0",
    "nan",
    "inf",
    "-inf",
    "none",
    "null",
    "true",
    "x",
    "é",
    "\u2028",
    "\x00",
    '"',
    "'",
    "[",
    "}",
    ",",
)
WORDS += (
    "9" * 30,
    "9" * 5000,
    "1e400",
    "0x10",
    "1_000",
    "٣",
    "../x",
    "/dev/null",
    "random:0.5,0.2",
    "planetoid:1,1,1",
)
WORDS += ("a.py:B", "cuda:300", "99999TiB", "0B", "Adam", "LBFGS", "OneCycleLR", "gcn", "ggnn", "embedding", "demo")
SHAPES: tuple[tuple[int, ...], ...] = (
    (),
    (0,),
    (0, 0),
    (24,),
    (24, 0),
    (0, 24),
    (24, 4),
    (2, 24),
    (24, 1),
    (1, 1, 24),
)
SHAPES += ((10**18, 0), (0, 10**30), (2**47, 0), (2**31, 0), (2**63, 2), (-1,), (2**32, 2**32), (0,) * 40)
DTYPES = (
    "<f4",
    "<f8",
    "<f2",
    ">f4",
    "<i4",
    "<i8",
    ">i8",
    "<u8",
    "|u1",
    "|b1",
    "|i1",
    "<c8",
    "<U4",
    "|S0",
    "|O",
    "<M8[s]",
)


def mutated(path: Path, rng: Random) -> dict[Path, bytes]:
    """The contents of the files that change where ``path`` is damaged: the file, and files with its checksum."""
    content = path.read_bytes()
    ways: list[Callable[[], dict[Path, bytes]]] = [lambda: {path: in_bytes(content, rng)}]
    structured = _STRUCTURED.get(path.suffix)
    if structured is not None:
        ways = [*ways, *[lambda: structured(path, rng)] * 3]
    elif path.suffix in (".csv", ".toml", ".yaml"):
        ways = [*ways, *[lambda: {path: in_words(content, rng)}] * 3]
    return rng.choice(ways)()


def in_bytes(content: bytes, rng: Random) -> bytes:
    """Flip, cut, insert, delete, zero, repeat or exchange bytes."""
    at, length = rng.randrange(len(content) + 1), rng.choice((1, 2, 4, 8, 64, 512))
    head, tail = content[:at], content[at:]
    junk = rng.randbytes(length)
    match rng.randrange(8):
        case 0 if tail:
            return head + bytes([tail[0] ^ (1 << rng.randrange(8))]) + tail[1:]
        case 1:
            return head
        case 2:
            return head + junk + tail
        case 3:
            return head + tail[length:]
        case 4:
            return head + bytes(len(tail[:length])) + tail[length:]
        case 5:
            return head + tail[:length] * rng.choice((2, 100)) + tail[length:]
        case 6:
            return head + b"\xff" * len(tail[:length]) + tail[length:]
        case _:
            return head + junk[: len(tail)] + tail[length:]


def in_words(content: bytes, rng: Random) -> bytes:
    """Replace, remove or repeat words and lines of a text."""
    text = content.decode()
    if rng.random() < 0.2:
        lines = text.splitlines(keepends=True)
        at = rng.randrange(len(lines))
        lines[at : at + 1] = rng.choice(
            ([], [lines[at]] * 2, [rng.choice(lines)], ["\n"], [lines[at].rstrip("\n")])
        )
        return "".join(lines).encode()
    words = list(re.finditer(r"[^\s,:\[\]{}=\"]+", text))
    for word in sorted(rng.sample(words, k=min(len(words), rng.choice((1, 1, 1, 2)))), key=lambda m: -m.start()):
        other = rng.choice((str(rng.choice(NUMBERS)), rng.choice(WORDS), rng.choice(words).group()))
        text = text[: word.start()] + other + text[word.end() :]
    return text.encode(errors="surrogatepass")


def in_gzip(path: Path, rng: Random) -> dict[Path, bytes]:
    """Damage the text of a compressed file."""
    return {path: gzip.compress(in_words(gzip.decompress(path.read_bytes()), rng), mtime=0)}


def in_json(path: Path, rng: Random) -> dict[Path, bytes]:
    """Change one entry of a JSON document; a checksum of the document over itself is made anew."""
    body = changed(json.loads(path.read_bytes()), rng)
    if isinstance(body, dict) and path.name == "manifest.json" and rng.random() < 0.9:
        body.pop("manifest_crc32", None)
        body["manifest_crc32"] = _self_checksum(body)
    if isinstance(body, dict) and path.name == "state.json" and "content" in body and rng.random() < 0.9:
        body["checksum"] = digest(json.dumps(body["content"]).encode())
    return {path: json.dumps(body).encode()}


def in_json_lines(path: Path, rng: Random) -> dict[Path, bytes]:
    """Change one entry of one line."""
    lines = path.read_bytes().splitlines(keepends=True)
    at = rng.randrange(len(lines))
    lines[at] = json.dumps(changed(json.loads(lines[at]), rng)).encode() + b"\n"
    return {path: b"".join(lines)}


def changed(body: Any, rng: Random) -> Any:
    """JSON values with one entry replaced, removed, added, or exchanged for another one."""
    body = json.loads(json.dumps(body))
    places = _places(body)
    if not places:
        return rng.choice(NUMBERS)
    parent, key = rng.choice(places)
    junk = (rng.choice(NUMBERS), rng.choice(WORDS), None, True, [], {}, [[]], {"a": 1}, float("nan"), "[" * 50)
    match rng.randrange(6):
        case 0:
            del parent[key]
        case 1:
            other, at = rng.choice(places)
            parent[key] = json.loads(json.dumps(other[at]))
        case 2 if isinstance(parent, dict):
            parent[rng.choice(WORDS)] = rng.choice(junk)
        case 2:
            parent.insert(key, rng.choice(junk))
        case 3 if isinstance(parent[key], int | float):
            parent[key] += rng.choice((1, -1, 0.5, 2**32))
        case _:
            parent[key] = rng.choice(junk)
    return body


def _places(body: Any) -> list[tuple[Any, Any]]:
    found: list[tuple[Any, Any]] = []
    items = (
        list(body.items()) if isinstance(body, dict) else list(enumerate(body)) if isinstance(body, list) else []
    )
    # Of the words of a generator, a few are enough.
    for key, item in items[:40]:
        found.append((body, key))
        found += _places(item)
    return found


def in_npy(path: Path, rng: Random) -> dict[Path, bytes]:
    """Change the header or the values of an array."""
    return {path: npy_changed(path.read_bytes(), rng)}


def npy_changed(content: bytes, rng: Random) -> bytes:
    """An array file with another shape, type, order or version in its header, or other values."""
    array = np.load(io.BytesIO(content))
    if rng.random() < 0.4:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            flat = array.reshape(-1).copy()
            if flat.size and flat.dtype.kind in "fiu":
                flat[rng.randrange(flat.size)] = (
                    np.array(rng.choice(NUMBERS), dtype=object).astype(float).astype(flat.dtype)
                )
            made = flat.reshape(array.shape)
            kinds = [
                made,
                made.astype(rng.choice(DTYPES[:10])),
                made.T,
                made[..., None],
                made[:-1] if made.ndim else made,
            ]
            kinds.append(np.asfortranarray(made))
            return _saved(rng.choice(kinds))
    shape, descr = rng.choice((array.shape, rng.choice(SHAPES))), rng.choice((array.dtype.str, rng.choice(DTYPES)))
    text = f"{{'descr': {descr!r}, 'fortran_order': {rng.random() < 0.3}, 'shape': {shape!r}, }}\n".encode()
    version = rng.choice((b"\x01\x00", b"\x01\x00", b"\x02\x00", b"\x03\x00", b"\x09\x09"))
    length = len(text).to_bytes(2 if version[0] == 1 else 4, "little")
    data = array.tobytes() if rng.random() < 0.5 else b""
    return b"\x93NUMPY" + version + length + text + data


def _saved(array: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def in_npz(path: Path, rng: Random) -> dict[Path, bytes]:
    """Change, remove, rename, repeat or exchange an array of an archive, whose own checksums are right."""
    with zipfile.ZipFile(path) as archive:
        members = [(name, archive.read(name)) for name in archive.namelist()]
    at, (name, content) = (at := rng.randrange(len(members))), members[at]
    match rng.randrange(6):
        case 0:
            del members[at]
        case 1:
            members[at] = (rng.choice(members)[0], content)
        case 2:
            members[at] = (name, rng.choice(members)[1])
        case _:
            members[at] = (name, npy_changed(content, rng))
    out = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        # Of names that stand there twice.
        warnings.simplefilter("ignore")
        for name, content in members:
            archive.writestr(zipfile.ZipInfo(name), content)
    return {path: out.getvalue()}


def in_parquet(path: Path, rng: Random) -> dict[Path, bytes]:
    """A Parquet file with a column of another type, other values, null values, or another name."""
    table = pq.read_table(path)
    names, columns = list(table.column_names), [column.to_pylist() for column in table.columns]
    at = rng.randrange(len(names))
    match rng.randrange(6):
        case 0:
            names[at] = rng.choice((*names, "", "column 0", "__index_level_0__"))
        case 1:
            columns[at][rng.randrange(len(columns[at]))] = None
        case 2:
            columns[at] = [rng.choice(WORDS[:20]) for _ in columns[at]]
        case 3:
            columns[at] = [[value] for value in columns[at]]
        case 4:
            kept = rng.choice((0, 1, 23))
            columns = [column[:kept] for column in columns]
        case _:
            kind = rng.choice(
                (pa.uint64(), pa.int8(), pa.float16(), pa.float64(), pa.bool_(), pa.decimal128(38, 2))
            )
            column = pa.array([max(0, min(100, int(value))) for value in columns[at]])
            return {
                path: _parquet(
                    names,
                    [pa.array(c) if i != at else column.cast(kind, safe=False) for i, c in enumerate(columns)],
                )
            }
    value = rng.choice(NUMBERS)
    if (
        rng.random() < 0.5
        and columns[at]
        and isinstance(columns[at][0], int)
        and isinstance(value, int)
        and abs(value) < 2**63
    ):
        columns[at][rng.randrange(len(columns[at]))] = value
    return {path: _parquet(names, [pa.array(column) for column in columns])}


def _parquet(names: list[str], columns: list[Any]) -> bytes:
    out = io.BytesIO()
    pq.write_table(pa.Table.from_arrays(columns, names=names), out)
    return out.getvalue()


def in_tensors(path: Path, rng: Random) -> dict[Path, bytes]:
    """Tensors of which one has another type, shape, name or value, or is gone; files with their checksum have the new one."""
    from safetensors.torch import load_file, save

    tensors = load_file(path)
    name = rng.choice(sorted(tensors))
    tensor = tensors[name]
    match rng.randrange(6):
        case 0:
            del tensors[name]
        case 1:
            tensors[rng.choice(("a", name + ".x", ""))] = tensors.pop(name)
        case 2:
            tensors[name] = tensor.to(
                rng.choice((torch.int64, torch.int8, torch.float16, torch.float64, torch.bool))
            )
        case 3:
            tensors[name] = rng.choice(
                (tensor.reshape(-1), tensor[None], tensor.new_zeros(0), tensor.new_zeros(()))
            )
        case 4:
            tensors[name] = (tensor.double() * rng.choice((float("nan"), 1e300, 0.0, -1.0))).to(tensor.dtype)
        case _:
            tensors[rng.choice(sorted(tensors))] = tensor.clone()
    content = save({key: value.contiguous() for key, value in tensors.items()})
    changes = {path: content}
    summary, state = path.with_name("metrics.json"), path.with_name("state.json")
    checksum = _digest_of(content)
    if summary.exists():
        changes[summary] = json.dumps({**json.loads(summary.read_bytes()), "weights_checksum": checksum}).encode()
    if state.exists():
        body = json.loads(state.read_bytes())
        body["content"]["tensors_checksum"] = checksum
        body["checksum"] = digest(json.dumps(body["content"]).encode())
        changes[state] = json.dumps(body).encode()
    return changes


def _digest_of(content: bytes) -> str:
    path = Path("content.tmp")
    path.write_bytes(content)
    found = file_digest(path)
    path.unlink()
    return found


_STRUCTURED: dict[str, Callable[[Path, Random], dict[Path, bytes]]] = {
    ".json": in_json,
    ".jsonl": in_json_lines,
    ".npy": in_npy,
    ".npz": in_npz,
    ".gz": in_gzip,
    ".parquet": in_parquet,
    ".safetensors": in_tensors,
}
"Damage to the structure of files, by the ending of their names."
