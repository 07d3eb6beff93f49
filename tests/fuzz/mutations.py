"""Mutations: the content of a file damaged by bytes, by words, or by structure with checksums made anew."""

from __future__ import annotations

import gzip
import io
import json
import pickle
import pickletools
import random
import re
import warnings
import zipfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from sagann.storage.manifest import MANIFEST_FILE, _self_checksum
from sagann.storage.npy import write_npy
from sagann.train.atomic import digest, file_digest
from tests.fuzz.kinds import N

Random = random.Random
_TEXTS = (".csv", ".tsv", ".toml", ".yaml")
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
    "0x" + "f" * 5000,
    "1:" * 300 + "1.5",
    "!!int ''",
    "\ud800",
    "a." * 10_000 + "a",
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
    others = sorted(other for other in path.parent.iterdir() if other.is_file())
    ways: list[tuple[int, Callable[[], dict[Path, bytes]]]] = [
        (6, lambda: {path: in_bytes(content, rng)}),
        (1, lambda: {path: rng.choice(others).read_bytes()}),
    ]
    structured = _STRUCTURED.get(path.suffix)
    if path.suffix == ".npy" and (path.parent / MANIFEST_FILE).exists():
        ways.append((18, lambda: in_stored_array(path, rng)))
    elif structured is not None:
        ways.append((18, lambda: structured(path, rng)))
    elif path.suffix in _TEXTS:
        ways.append((18, lambda: {path: in_words(content, rng)}))
    if path.suffix in (*_TEXTS, ".json", ".jsonl"):
        ways += [(1, lambda: {path: in_encoding(content, rng)}), (1, lambda: {path: in_depth(path, content, rng)})]
    if path.suffix == ".yaml":
        ways.append((2, lambda: {path: with_aliases(content, rng)}))
    return rng.choices([way for _, way in ways], [weight for weight, _ in ways])[0]()


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


def in_encoding(content: bytes, rng: Random) -> bytes:
    """The same text in another encoding, with other ends of lines, or with long lines."""
    text = content.decode()
    match rng.randrange(5):
        case 0:
            return text.encode(rng.choice(("utf-8-sig", "utf-16", "utf-32", "utf-7", "cp037")))
        case 1:
            return text.replace("\n", rng.choice(("\r\n", "\r", "\x0b", "\u2028", "\x85"))).encode()
        case 2:
            return text.replace("\n", "").encode()
        case 3:
            return text.encode() + rng.choice((b"\x00", b"\x1a", b"\xff\xfe", b" ", b"9", b"#", b"\\")) * 10**6
        case _:
            return text.encode() * rng.choice((2, 1000))


def in_depth(path: Path, content: bytes, rng: Random) -> bytes:
    """A value that is nested as deeply as parsers allow, nearly so, and more deeply, in the place of another one or of all."""
    depth = rng.choice((50, 99, 101, 300, 900, 960, 980, 990, 1000, 100_000))
    nested = rng.choice((b"[" * depth + b"]" * depth, b"[" * depth, b'{"a":' * depth + b"1" + b"}" * depth))
    if path.suffix in (".yaml", ".toml"):
        nested = nested.replace(b'{"a":', b"{a = " if path.suffix == ".toml" else b"{a: ")
    values = list(re.finditer(rb"(?<=[:=] )[^\n,]+", content))
    if not values or rng.random() < 0.3:
        return nested
    value = rng.choice(values)
    made = content[: value.start()] + nested + content[value.end() :]
    try:
        # A manifest that deeply nested has the right checksum as well.
        return _sealed(path, json.loads(made))
    except (ValueError, RecursionError):
        return made


def with_aliases(content: bytes, rng: Random) -> bytes:
    """YAML of which a value is a list of lists of lists, each ten times the one below: small in memory, endless if written out."""
    levels = rng.choice((3, 9, 30))
    lines = ["b0: &b0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"b{at}: &b{at} [{', '.join([f'*b{at - 1}'] * 10)}]" for at in range(1, levels)]
    values = list(re.finditer(r"(?<=: )[^\n,{}]+", text := content.decode()))
    value = rng.choice(values)
    return "\n".join([*lines, text[: value.start()] + f"*b{levels - 1}" + text[value.end() :]]).encode()


def in_gzip(path: Path, rng: Random) -> dict[Path, bytes]:
    """Damage the text of a compressed file, or what stands after it."""
    content = path.read_bytes()
    text = gzip.decompress(content)
    match rng.randrange(8):
        case 0:
            return {path: content + rng.choice((content, b"junk", bytes(100), content[:10]))}
        case 1:
            return {path: gzip.compress(text * rng.choice((100, 100, 100, 20_000)), mtime=0)}
        case 2:
            return {path: gzip.compress(in_encoding(text, rng), mtime=0)}
        case _:
            return {path: gzip.compress(in_words(text, rng), mtime=0)}


def in_json(path: Path, rng: Random) -> dict[Path, bytes]:
    """Change one entry of a JSON document; a checksum of the document over itself is made anew."""
    body = changed(json.loads(path.read_bytes()), rng)
    return {path: _sealed(path, body) if rng.random() < 0.9 else json.dumps(body).encode()}


def _sealed(path: Path, body: Any) -> bytes:
    """JSON with the checksum that documents of its name have over themselves."""
    if isinstance(body, dict) and path.name == MANIFEST_FILE:
        body.pop("manifest_crc32", None)
        body["manifest_crc32"] = _self_checksum(body)
    if isinstance(body, dict) and path.name == "state.json" and "content" in body:
        body["checksum"] = digest(json.dumps(body["content"]).encode())
    return json.dumps(body).encode()


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


def in_stored_array(path: Path, rng: Random) -> dict[Path, bytes]:
    """Other numbers, another type or another shape of an array of a dataset, with right checksums in the manifest."""
    manifest = path.with_name(MANIFEST_FILE)
    body = json.loads(manifest.read_bytes())
    array = torch.from_numpy(np.load(path))
    match rng.randrange(6):
        case 0:
            array = array.to(rng.choice((torch.int32, torch.int64, torch.float32, torch.float64, torch.bool)))
        case 1:
            array = rng.choice((array[:-1], torch.cat([array, array]), array[:0], array[None], array.reshape(-1)))
        case 2:
            array = array.flip(0)
        case _:
            flat = array.reshape(-1).clone()
            if flat.numel():
                value = torch.tensor(float(rng.choice((*NUMBERS, float("nan"), float("inf"), N, N - 1))))
                flat[rng.randrange(flat.numel())] = value.to(flat.dtype)
            array = flat.reshape(array.shape)
    aside = Path("array.tmp")
    spec = write_npy(aside, array.contiguous())
    content = aside.read_bytes()
    aside.unlink()
    body["arrays"][path.stem] = {**asdict(spec), "file_bytes": spec.file_bytes}
    return {path: content, manifest: _sealed(manifest, body)}


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
    at = rng.randrange(len(members))
    name, content = members[at]
    method = zipfile.ZIP_DEFLATED
    match rng.randrange(9):
        case 0:
            del members[at]
        case 3:
            members[at] = (
                rng.choice(("../x.npy", "/x.npy", "", "a/b.npy", "x" * 60_000, "\x00.npy", "labels")),
                content,
            )
        case 4:
            method = rng.choice((zipfile.ZIP_STORED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA))
        case 5 if rng.random() < 0.2:
            array = np.load(io.BytesIO(content))
            members[at] = (name, _saved(np.zeros((rng.choice((1, 10**6)), *array.shape[1:], 3), array.dtype)))
        case 1:
            members[at] = (rng.choice(members)[0], content)
        case 2:
            members[at] = (name, rng.choice(members)[1])
        case _:
            members[at] = (name, npy_changed(content, rng))
    out = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(out, "w", method) as archive:
        # Of names that stand there twice.
        warnings.simplefilter("ignore")
        for name, content in members:
            archive.writestr(zipfile.ZipInfo(name), content, method)
    return {path: out.getvalue()}


def in_parquet(path: Path, rng: Random) -> dict[Path, bytes]:
    """A Parquet file with a column of another type, other values, null values, another name, or stored in another way."""
    table = pq.read_table(path)
    names, columns = list(table.column_names), [column.to_pylist() for column in table.columns]
    at = rng.randrange(len(names))
    match rng.randrange(8):
        case 6:
            kind = rng.choice(
                (
                    pa.timestamp("ns"),
                    pa.date64(),
                    pa.duration("s"),
                    pa.large_string(),
                    pa.binary(),
                    pa.null(),
                    pa.int32(),
                )
            )
            with suppress(pa.ArrowException):
                column = (
                    pa.array([None] * len(columns[at]), pa.null())
                    if kind == pa.null()
                    else table.column(at).cast(kind)
                )
                return {path: _parquet(names, [*table.columns[:at], column, *table.columns[at + 1 :]])}
        case 7:
            column = pa.array([str(value) for value in columns[at]]).dictionary_encode()
            struct = pa.array([{"a": value} for value in columns[at]])
            chosen = rng.choice((column, struct, table.column(at)))
            stored = {
                "row_group_size": rng.choice((1, 7, 100)),
                "compression": rng.choice(("none", "gzip", "zstd")),
            }
            return {path: _parquet(names, [*table.columns[:at], chosen, *table.columns[at + 1 :]], **stored)}
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


def _parquet(names: list[str], columns: list[Any], **stored: Any) -> bytes:
    out = io.BytesIO()
    pq.write_table(pa.Table.from_arrays(columns, names=names), out, **stored)
    return out.getvalue()


def in_tensors(path: Path, rng: Random) -> dict[Path, bytes]:
    """Tensors of which one has another type, shape, name or value, or is gone; files with their checksum have the new one."""
    from safetensors.torch import load_file, save

    if rng.random() < 0.3:
        return _with_checksum_of(path, _header_changed(path.read_bytes(), rng))
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
    return _with_checksum_of(path, save({key: value.contiguous() for key, value in tensors.items()}))


def _header_changed(content: bytes, rng: Random) -> bytes:
    """Tensors whose header has other names, types, shapes or places than their bytes."""
    size = int.from_bytes(content[:8], "little")
    header = json.dumps(changed(json.loads(content[8 : 8 + size]), rng)).encode()
    stated = rng.choice((len(header), len(header), len(header), 2**63, len(header) - 1, 0))
    return stated.to_bytes(8, "little") + header + content[8 + size :]


def _with_checksum_of(path: Path, content: bytes) -> dict[Path, bytes]:
    """Tensors, and the files beside them with the right checksum."""
    changes = {path: content}
    summary, state = path.with_name("metrics.json"), path.with_name("state.json")
    checksum = _digest_of(content)
    if summary.exists():
        changes[summary] = json.dumps({**json.loads(summary.read_bytes()), "weights_checksum": checksum}).encode()
    if state.exists():
        body = json.loads(state.read_bytes())
        body["content"]["tensors_checksum"] = checksum
        changes[state] = _sealed(state, body)
    return changes


def _digest_of(content: bytes) -> str:
    path = Path("content.tmp")
    path.write_bytes(content)
    found = file_digest(path)
    path.unlink()
    return found


def in_torch(path: Path, rng: Random) -> dict[Path, bytes]:
    """Damage a file of ``torch.save``: its pickle, its members, or a tensor that it holds; the archive's own checksums are right."""
    if rng.random() < 0.3:
        return {path: _tensor_changed(path, rng)}
    with zipfile.ZipFile(path) as archive:
        members = [(name, archive.read(name)) for name in archive.namelist()]
    at = rng.randrange(len(members))
    pickled = next(place for place, (name, _) in enumerate(members) if name.endswith("data.pkl"))
    match rng.randrange(8):
        case 0:
            del members[at]
        case 1:
            members[at] = (rng.choice(("x", "../x", "a/data/0", members[0][0], members[-1][0])), members[at][1])
        case 2:
            members[at] = (members[at][0], rng.choice(members)[1])
        case 3:
            members[at] = (members[at][0], in_bytes(members[at][1], rng))
        case _:
            members[pickled] = (members[pickled][0], _instructions_changed(members[pickled][1], rng))
    out = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(out, "w") as archive:
        # Of names that stand there twice.
        warnings.simplefilter("ignore")
        for name, content in members:
            archive.writestr(zipfile.ZipInfo(name), content)
    return {path: out.getvalue()}


def _instructions_changed(content: bytes, rng: Random) -> bytes:
    """A pickle of which one instruction is gone, repeated, exchanged for another one, or has another argument."""
    found = [(operation.name, place or 0) for operation, _, place in pickletools.genops(content)]
    ends = [place for _, place in found[1:]] + [len(content)]
    parts = [content[place:end] for (_, place), end in zip(found, ends, strict=True)]
    at = rng.randrange(1, len(parts))
    match found[at][0]:
        case "BININT" | "BININT1" | "BININT2" | "LONG1" if rng.random() < 0.7:
            parts[at] = pickle.dumps(int(rng.choice(NUMBERS[:20])), 2)[2:-1]
        case "BINUNICODE" if rng.random() < 0.7:
            word = rng.choice((*WORDS[:18], "edge_index", "x", "y", "0", "7", "cuda:0")).encode()
            parts[at] = b"X" + len(word).to_bytes(4, "little") + word
        case "GLOBAL" if rng.random() < 0.7:
            parts[at] = rng.choice((b"cos\nsystem\n", b"ctorch\nBoolStorage\n", b"c__builtin__\ndict\n", b"c\n\n"))
        case _:
            other = rng.choice(parts)
            parts[at : at + 1] = rng.choice(
                ([], [parts[at]] * 2, [other], [parts[at], other], [parts[at]] * 10_000)
            )
    return b"".join(parts)


def _tensor_changed(path: Path, rng: Random) -> bytes:
    """The graph of a file with another tensor, or something else, in the place of one of its attributes."""
    saved = torch.load(path, weights_only=True)
    fields = saved[0] if isinstance(saved, tuple) else saved
    name = rng.choice([name for name, value in fields.items() if isinstance(value, torch.Tensor)])
    tensor = fields[name]
    others: tuple[Callable[[], Any], ...] = (
        lambda: tensor.to(rng.choice((torch.bool, torch.uint8, torch.float16, torch.bfloat16, torch.complex64))),
        lambda: tensor.to(rng.choice((torch.int32, torch.float64, torch.float32, torch.int64))),
        lambda: rng.choice((tensor[:-1], tensor[:0], tensor[None], tensor.reshape(-1), tensor.new_zeros(()))),
        lambda: tensor.double() * rng.choice((float("nan"), float("inf"), 1e300, -1.0, 0.5)),
        lambda: rng.choice((tensor.T, tensor.flip(0), tensor[::2], torch.cat([tensor, tensor]))),
        lambda: tensor.new_zeros(1).expand(10**9),
        lambda: tensor.to_sparse() if tensor.ndim else tensor,
        lambda: torch.nn.Parameter(tensor.float()),
        lambda: rng.choice((*NUMBERS, *WORDS, None, [], {}, [tensor], {name: tensor}, fields)),
    )
    with warnings.catch_warnings():
        # Of views that PyTorch is going to refuse.
        warnings.simplefilter("ignore")
        fields[rng.choice((name, name, name, *fields, "edge_x", "num_nodes"))] = rng.choice(others)()
    out = io.BytesIO()
    torch.save(saved, out)
    return out.getvalue()


_STRUCTURED: dict[str, Callable[[Path, Random], dict[Path, bytes]]] = {
    ".json": in_json,
    ".jsonl": in_json_lines,
    ".npy": in_npy,
    ".npz": in_npz,
    ".gz": in_gzip,
    ".parquet": in_parquet,
    ".pt": in_torch,
    ".safetensors": in_tensors,
}
"Damage to the structure of files, by the ending of their names."
