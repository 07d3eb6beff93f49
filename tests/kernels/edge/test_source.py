"""Generated sources: kept for people to read, and never trusted."""

from __future__ import annotations

import ast
import errno
import importlib
import inspect
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import llvmlite
import numba
import pytest

import sagann
from sagann.kernels.edge import cpu
from sagann.kernels.edge.cpu import extremum, launch
from sagann.kernels.edge.cpu.launch import compile_source
from sagann.kernels.edge.source import import_source, library_hash
from tests.kernels.edge.functions import gated

_TEXT = '"""A module."""\n\n\ndef one():\n    return 1\n'


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SAGANN_CACHE", str(tmp_path))
    return tmp_path / "kernels"


@pytest.mark.parametrize("left", [b"", _TEXT.encode() + b"raise", b"\xff\x00"])
def test_a_damaged_source_is_written_anew(folder: Path, left: bytes) -> None:
    import_source(_TEXT, "library")
    (path,) = folder.glob("*")
    path.write_bytes(left)
    assert import_source(_TEXT, "library").one() == 1
    assert path.read_text() == _TEXT
    assert list(folder.glob("*")) == [path]


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o007, 0o660)])
def test_who_may_read_a_source_is_the_umasks_to_say(folder: Path, umask: int, mode: int) -> None:
    before = os.umask(umask)
    try:
        import_source(_TEXT, "library")
    finally:
        os.umask(before)
    (path,) = folder.glob("*")
    assert path.stat().st_mode & 0o777 == mode


def test_a_source_that_cannot_be_kept_is_imported(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def write_text(*args: object, **kwargs: object) -> NoReturn:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_text", write_text)
    module = import_source(_TEXT, "library")
    assert module.one() == 1
    assert inspect.getsource(module.one) == "def one():\n    return 1\n"
    assert not any(folder.glob("*"))


@pytest.fixture
def known_anew() -> Iterator[None]:
    """Neither the library nor its kernels are known from before, nor afterwards."""
    for known in (library_hash, launch.loaded):
        known.cache_clear()
    yield
    for known in (library_hash, launch.loaded):
        known.cache_clear()


@pytest.mark.usefixtures("known_anew")
@pytest.mark.parametrize("changed", ["random.py", "jit.py", "numba", "llvmlite"])
def test_a_changed_library_never_meets_an_old_kernel(
    folder: Path, monkeypatch: pytest.MonkeyPatch, changed: str
) -> None:
    read_bytes = Path.read_bytes
    text = "class kernel:\n    address = 7\n"
    assert compile_source(text) == 7
    (before,) = folder.glob("*.py")
    if changed.endswith(".py"):
        monkeypatch.setattr(Path, "read_bytes", lambda path: read_bytes(path) + b"#" * (path.name == changed))
    else:
        monkeypatch.setattr({"numba": numba, "llvmlite": llvmlite}[changed], "__version__", "0.1")
    library_hash.cache_clear()
    assert compile_source(text) == 7
    assert {before} < set(folder.glob("*.py"))


def imported_by(path: Path) -> set[Path]:
    """The modules of edge functions that a module imports when it runs, theirs included."""
    root = Path(sagann.__file__).parents[1]
    found = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("sagann.kernels.edge"):
            at = root / str(node.module).replace(".", "/")
            files = [at / f"{each.name}.py" for each in node.names] if at.is_dir() else [at.with_suffix(".py")]
            for file in files:
                found |= {file, *imported_by(file)}
    return found


@pytest.mark.parametrize("dialect", ["cpu", "gpu"])
def test_the_hash_is_of_all_that_a_generated_source_imports(tmp_path: Path, dialect: str) -> None:
    if dialect == "gpu":
        pytest.importorskip("triton", reason="triton is not installed: pip install sagann[cuda]")
        run = importlib.import_module("sagann.kernels.edge.gpu.run")
        texts, library = [importlib.import_module("sagann.kernels.edge.gpu.emit").emit(gated(17))], run.LIBRARY
    else:
        texts, library = [cpu.source_of(gated(17)), extremum._SOURCE], launch.LIBRARY
    found: set[Path] = set()
    for number, text in enumerate(texts):
        (tmp_path / f"{number}.py").write_text(text.replace("{", "(").replace("}", ")"))
        found |= imported_by(tmp_path / f"{number}.py")
    assert found
    assert found == {path for path in library if path.name != "jit.py"}
