"""Machine code that is kept, and what is not kept or damaged."""

from __future__ import annotations

import errno
import fcntl
import importlib.util
import os
import pickle
import shutil
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any, NoReturn

import numba
import pytest
from numba.core.caching import _CacheLocator

from tests.other_user import copy_as_other, needs_root

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
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
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
    def usable_folder(folder: Path) -> NoReturn:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr("sagann.machine_code.usable_folder", usable_folder)
    assert [_is_found(module) for _ in range(2)] == [False, False]


class _Evil:
    """Its pickle makes a folder where it is loaded."""

    def __init__(self, mark: Path) -> None:
        self._mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self._mark),)


def _planted(kept: Path, folder: Path, mark: Path) -> None:
    """Another user puts files into a folder: all names of ``kept``, each a pickle that runs code."""
    copies = mark.parent / "copies"
    copies.mkdir()
    copies.chmod(0o755)
    for file in kept.iterdir():
        (copies / file.name).write_bytes(pickle.dumps(_Evil(mark)))
        copy_as_other(copies / file.name, folder / file.name)


@needs_root
@pytest.mark.parametrize(
    "place", ["SAGANN_CACHE", "NUMBA_CACHE_DIR", "beside the source", "NUMBA_CACHE_LOCATOR_CLASSES"]
)
@pytest.mark.tries("planted")
def test_what_another_user_has_put_into_the_folder_is_not_run(
    module: Path, open_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    mark, source = open_folder / "executed", open_folder / "package" / "doubling.py"
    source.parent.mkdir()
    module.rename(source)
    beside, subpath = source.parent / "__pycache__", str(_CacheLocator.get_suitable_cache_subpath(str(source)))
    assert not _is_found(source)
    kept = [path for path in beside.iterdir() if path.suffix in (".nbi", ".nbc")]
    assert {path.suffix for path in kept} == {".nbi", ".nbc"}
    names = tmp_path / "names"
    names.mkdir()
    for path in kept:
        path.rename(names / path.name)
    folder = {"SAGANN_CACHE": open_folder / "kernels" / subpath, "NUMBA_CACHE_DIR": open_folder / subpath}.get(
        place, beside
    )
    if place == "SAGANN_CACHE":
        shutil.rmtree(beside)
        beside.write_text("no folder")
        monkeypatch.setenv("SAGANN_CACHE", str(open_folder))
        open_folder.chmod(0o777)
    elif place == "NUMBA_CACHE_DIR":
        monkeypatch.setattr(numba.config, "CACHE_DIR", str(open_folder))
    elif place == "NUMBA_CACHE_LOCATOR_CLASSES":
        monkeypatch.setattr(numba.config, "CACHE_LOCATOR_CLASSES", "InTreeCacheLocator", raising=False)
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o777)
    _planted(names, folder, mark)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        assert not _is_found(source)
    assert not mark.exists()
    # A folder that the user has named is not passed over in silence.
    named = {"SAGANN_CACHE": open_folder, "NUMBA_CACHE_DIR": folder}
    wrong = [f"other users may write to '{named[place]}' (mode 0777)"] if place in named else []
    assert [text in str(warning.message) for warning, text in zip(said, wrong, strict=True)] == [True] * len(wrong)


@needs_root
@pytest.mark.tries("planted")
def test_files_of_another_user_stay_unread_in_a_folder_that_was_made_safe(
    module: Path, open_folder: Path, tmp_path: Path
) -> None:
    """Whoever follows the advice to take the right to write from others must not run what others wrote before."""
    source = open_folder / "package" / "doubling.py"
    source.parent.mkdir()
    module.rename(source)
    assert [_is_found(source) for _ in range(2)] == [False, True]
    beside, kept = source.parent / "__pycache__", tmp_path / "kept"
    kept.mkdir()
    for path in [path for path in beside.iterdir() if path.suffix in (".nbi", ".nbc")]:
        path.rename(kept / path.name)
    beside.chmod(0o777)
    _planted(kept, beside, open_folder / "executed")
    beside.chmod(0o755)
    assert [_is_found(source) for _ in range(2)] == [False, True]
    assert not (open_folder / "executed").exists()


@pytest.mark.parametrize("suffix", [".nbi", ".nbc"])
@pytest.mark.tries("planted")
def test_a_file_that_others_may_write_to_is_not_read(module: Path, tmp_path: Path, suffix: str) -> None:
    _is_found(module)
    (kept,) = (module.parent / "__pycache__").glob(f"*{suffix}")
    kept.write_bytes(pickle.dumps(_Evil(tmp_path / "executed")))
    kept.chmod(0o664)
    assert [_is_found(module) for _ in range(2)] == [False, True]
    assert not (tmp_path / "executed").exists()


def test_others_may_not_write_to_what_is_kept(module: Path) -> None:
    before = os.umask(0)
    try:
        assert [_is_found(module) for _ in range(2)] == [False, True]
    finally:
        os.umask(before)
    kept = list(module.parents[1].rglob("*.nb[ic]"))
    assert {path.suffix for path in kept} == {".nbi", ".nbc"}
    assert [found.stat().st_mode & 0o022 for path in kept for found in (path, path.parent)] == [0] * 4


_IN_TURN = """
import sys
from sagann import machine_code

machine_code._LONGEST_WAIT_S = float(sys.argv[1])
waits, sleep = [], machine_code.time.sleep


def waited(seconds):
    if not waits:
        print("waits", flush=True)
    waits.append(seconds)
    sleep(seconds)


machine_code.time.sleep = waited
from kernel import is_loaded

print("loaded" if is_loaded() else "compiled", flush=True)
"""

_KERNELS = {
    "C function": """
from sagann.machine_code import compiled_callback


@compiled_callback
def nothing(p_args):
    pass


def is_loaded():
    return nothing.cache_hits
""",
    "function that calls another one": """
from sagann.machine_code import compiled


@compiled()
def doubled(x):
    return 2 * x


@compiled()
def doubled_twice(x):
    return doubled(doubled(x))


def is_loaded():
    assert doubled_twice(21) == 84
    return doubled_twice.stats.cache_hits
""",
}


@pytest.fixture(params=_KERNELS)
def kernel(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A source with a function to compile."""
    (tmp_path / "kernel.py").write_text(_KERNELS[request.param])
    return tmp_path / "kernel.py"


def _start(kernel: Path, *, longest_s: float) -> subprocess.Popen[str]:
    """A process that loads or compiles the function, and waits so long at most; it tells which, and that it waits."""
    path = os.pathsep.join([str(kernel.parent), str(Path(__file__).parents[1])])
    return subprocess.Popen(
        [sys.executable, "-c", _IN_TURN, str(longest_s)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path, "NUMBA_CACHE_DIR": ""},
    )


def test_a_process_waits_for_one_that_compiles_the_same_and_loads_what_that_keeps(kernel: Path) -> None:
    with _start(kernel, longest_s=240.0) as first:
        assert first.communicate(timeout=240)[0] == "compiled\n"
    kept, away = kernel.parent / "__pycache__", kernel.parent / "away"
    kept.rename(away)
    with kernel.open("rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with _start(kernel, longest_s=240.0) as second:
            assert second.stdout is not None
            assert second.stdout.readline() == "waits\n"
            # As if this process had compiled it meanwhile.
            for path in away.iterdir():
                path.replace(kept / path.name)
            fcntl.flock(lock, fcntl.LOCK_UN)
            assert second.communicate(timeout=240)[0] == "loaded\n"


def test_a_process_that_is_stopped_while_it_compiles_keeps_no_other_waiting_for_long(kernel: Path) -> None:
    with kernel.open("rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with _start(kernel, longest_s=0.1) as process:
            assert process.communicate(timeout=240)[0] == "waits\ncompiled\n"
