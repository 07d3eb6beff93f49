"""Damaged files of every kind are accepted, or refused with one message; nothing else may happen."""

from __future__ import annotations

import contextlib
import gzip
import io
import os
import re
import tempfile
import warnings
import zipfile
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from sagann.cli.main import main
from sagann.free_space import Memory
from sagann.storage import open_graph
from tests.damage.kinds import KINDS, SRC, ring
from tests.shared import SharedFolder
from tests.storage.conftest import assert_same_graph

Files = dict[str, bytes]
"Contents by path in a folder, with a mark in place of the folder, which files may name."
_MARK = b"@FOLDER@"
_CORPUS = sorted(Path(__file__).parent.glob("corpus/*.zip"))
_TEXTS = (".csv", ".tsv", ".toml", ".yaml", ".json", ".jsonl")
_WORDS = ["", "9" * 30, *re.findall(r"\S+", "0 1 -1 3 0.5 70000 4294967296 1e39 nan none null true x é [ } \" ' ,")]
_FREE_BYTES = 2**30


@pytest.fixture(autouse=True)
def small_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Damaged numbers may ask for more memory or disk than there is; and nobody cuts the power."""
    memory = Memory(total_bytes=None, available_bytes=_FREE_BYTES, limit_bytes=None, limit_used_bytes=None)
    disk = SimpleNamespace(total=2 * _FREE_BYTES, used=_FREE_BYTES, free=_FREE_BYTES)
    monkeypatch.setattr("sagann.free_space.memory", lambda: memory)
    monkeypatch.setattr("shutil.disk_usage", lambda path: disk)
    monkeypatch.setattr(os, "fsync", lambda handle: None)


def sound(kind: str, shared_folder: SharedFolder) -> Files:
    """The sound files of a kind."""

    def build(folder: Path) -> None:
        with contextlib.chdir(folder), contextlib.redirect_stdout(io.StringIO()):
            KINDS[kind][0]()

    folder = shared_folder(f"damage {kind}", build)
    # Compiled modules name the folder in a form that a mark would break.
    paths = (
        path
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.stat().st_size and path.suffix != ".pyc"
    )
    return {str(p.relative_to(folder)): p.read_bytes().replace(str(folder).encode(), _MARK) for p in paths}


def readers(kind: str, names: list[str]) -> list[tuple[str, list[str]]]:
    """Commands that read files of these names, each with the names that it reads."""
    rows = [reader.split(" | ") for reader in KINDS[kind][1]]
    found = [(command, [name for name in names if fnmatch(name, pattern)]) for pattern, command in rows]
    return [reader for reader in found if reader[1]]


@contextlib.contextmanager
def written(files: Files) -> Iterator[None]:
    """Makes a folder with the files the current one."""
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        for name, content in files.items():
            Path(name).parent.mkdir(parents=True, exist_ok=True)
            Path(name).write_bytes(content.replace(_MARK, folder.encode()))
        yield


def is_accepted(command: str) -> bool:
    """Run a command in the current folder; whether it succeeds. It may only fail with one message, and imports leave nothing then."""
    before, said = set(os.listdir()), io.StringIO()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(said), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        code = main(command.split())
    text = f"sagann {command}\n{said.getvalue()}"
    assert code in (0, 2), text
    assert "Traceback" not in text, text
    if code == 2:
        assert len(re.findall(r"^Error: ", text, re.MULTILINE)) == 1, text
        assert "memory ran out" not in text, text
        assert not command.startswith("data") or set(os.listdir()) == before, text
    return code == 0


def damaged(draw: st.DrawFn, files: Files, name: str) -> Files:
    """The files with one of them damaged."""
    content = files[name]
    is_packed = name.endswith(".gz") and draw(st.booleans())
    if is_packed:
        content = gzip.decompress(content)
    ways = ["flip", "cut", "overwrite", "repeat", "remove", "other"]
    if is_packed or name.endswith(_TEXTS):
        ways += ["word"] * len(ways)
    way, at, length = draw(st.sampled_from(ways)), draw(st.integers(0, len(content) - 1)), draw(st.integers(1, 64))
    head, tail = content[:at], content[at:]
    match way:
        case "flip":
            content = head + bytes([tail[0] ^ 1 << draw(st.integers(0, 7))]) + tail[1:]
        case "cut":
            content = draw(st.sampled_from([head, head + tail[length:]]))
        case "overwrite":
            content = head + draw(st.binary(min_size=1, max_size=32)) + tail[length:]
        case "repeat":
            content = head + tail[:length] * draw(st.integers(2, 9)) + tail[length:]
        case "remove":
            return {other: files[other] for other in files if other != name}
        case "other":
            content = files[draw(st.sampled_from(sorted(files)))]
        case _:
            start, stop = draw(st.sampled_from([word.span() for word in re.finditer(rb"[-+.\w]+", content)]))
            content = content[:start] + draw(st.sampled_from(_WORDS)).encode() + content[stop:]
    return files | {name: gzip.compress(content) if is_packed else content}


@pytest.mark.parametrize("kind", KINDS)
def test_sound_files_are_accepted(kind: str, shared_folder: SharedFolder) -> None:
    files = sound(kind, shared_folder)
    assert len(readers(kind, list(files))) == len(KINDS[kind][1])
    for command, _ in readers(kind, list(files)):
        with written(files):
            assert is_accepted(command), command


@pytest.mark.parametrize("num_examples", [8, pytest.param(300, marks=pytest.mark.thorough)])
@pytest.mark.parametrize("kind", KINDS)
def test_damaged_files(kind: str, num_examples: int, shared_folder: SharedFolder) -> None:
    files = sound(kind, shared_folder)

    @settings(max_examples=num_examples, derandomize=True, deadline=None)
    @given(data=st.data())
    def check(data: st.DataObject) -> None:
        command, names = data.draw(st.sampled_from(readers(kind, list(files))))
        name = data.draw(st.sampled_from(names))
        with written(damaged(data.draw, files, name)):
            if not is_accepted(command):
                return
            if command == "data check dense":
                assert_same_graph(open_graph("dense"), ring())
            if command.startswith("data import"):
                assert is_accepted("data check a")
            if name == "plain.npz" and command.startswith("data import"):
                # An archive has checksums of values, but not of names.
                assert open_graph("a").topology.indices.tolist() == np.roll(SRC, 1).tolist()

    check()


@pytest.mark.parametrize("case", _CORPUS, ids=lambda case: case.stem)
def test_what_failed_once(case: Path, shared_folder: SharedFolder) -> None:
    with zipfile.ZipFile(case) as archive:
        found = {name: archive.read(name) for name in archive.namelist()}
        kind = archive.comment.decode()
    for command, _ in readers(kind, list(found)):
        with written(sound(kind, shared_folder) | found):
            is_accepted(command)
