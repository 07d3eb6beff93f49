"""Machine code that is kept, and what is not kept or damaged."""

from __future__ import annotations

import errno
import importlib.util
import os
from pathlib import Path
from typing import Any, NoReturn

import numba
import pytest

_SOURCE = """
from sagann.machine_code import compiled


@compiled()
def doubled(x):
    return 2 * x
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(numba.config, "CACHE_DIR", "")
    monkeypatch.setenv("SAGANN_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "package"
    folder.mkdir()
    (folder / "doubling.py").write_text(_SOURCE)
    return folder / "doubling.py"


def _loaded(module: Path) -> Any:
    """The function as another process has it."""
    spec = importlib.util.spec_from_file_location("doubling", module)
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded.doubled


def _is_found(module: Path) -> bool:
    """Whether the machine code is kept; the function is right in any case."""
    doubled = _loaded(module)
    assert doubled(21) == 42
    return bool(doubled.stats.cache_hits)


def test_machine_code_is_kept_beside_the_source(module: Path) -> None:
    assert [_is_found(module) for _ in range(2)] == [False, True]
    assert {path.suffix for path in (module.parent / "__pycache__").iterdir()} >= {".nbi", ".nbc"}


def test_machine_code_is_kept_in_the_cache_folder_if_not_beside_the_source(module: Path, tmp_path: Path) -> None:
    (module.parent / "__pycache__").write_text("no folder")
    assert [_is_found(module) for _ in range(2)] == [False, True]
    assert len(list((tmp_path / "cache").rglob("*.nbc"))) == 1


def test_a_folder_that_the_user_has_told_numba_goes_first(
    module: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path / "users"))
    assert [_is_found(module) for _ in range(2)] == [False, True]
    assert len(list((tmp_path / "users").rglob("*.nbc"))) == 1


@pytest.mark.parametrize("suffix", [".nbi", ".nbc"])
@pytest.mark.parametrize("left", [b"", b"\x00" * 500, b"half", b"\x80\x04\x8c\xff"])
def test_damaged_files_are_replaced(module: Path, suffix: str, left: bytes) -> None:
    _is_found(module)
    (kept,) = (module.parent / "__pycache__").glob(f"*{suffix}")
    kept.write_bytes(kept.read_bytes()[:-20] if left == b"half" else left)
    assert [_is_found(module) for _ in range(2)] == [False, True]


def test_a_full_disk_keeps_nothing(module: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def replace(*paths: object) -> NoReturn:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "replace", replace)
    assert [_is_found(module) for _ in range(2)] == [False, False]


def test_no_folder_at_all_keeps_nothing(module: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def makedirs(*args: object, **kwargs: object) -> NoReturn:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(os, "makedirs", makedirs)
    assert [_is_found(module) for _ in range(2)] == [False, False]
