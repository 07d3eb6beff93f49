"""The folder of kernels, machine code that is kept there, and what is not kept or damaged."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn, TextIO

import pytest

from sagann.jit import cache_folder
from tests.other_user import OTHER, ROOT, needs_root

_SOURCE = """
from sagann.jit import compiled


@compiled()
def doubled(x):
    return 2 * x
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
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
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded.doubled


def _is_found(module: Path) -> bool:
    """Whether the machine code is kept; the function is right in any case."""
    doubled = _loaded(module)
    assert doubled(21) == 42
    return bool(doubled.stats.cache_hits)


def _kept(module: Path) -> list[Path]:
    """The files of machine code."""
    return sorted((module.parents[1] / "cache").rglob("*.nb[ic]"))


def test_machine_code_is_kept_in_the_cache_folder(module: Path) -> None:
    assert [_is_found(module) for _ in range(2)] == [False, True]
    assert [path.suffix for path in _kept(module)] == [".nbc", ".nbi"]


@pytest.mark.parametrize(("suffix", "left"), [(".nbi", b""), (".nbi", b"\x80\x04\x8c\xff"), (".nbc", b"half")])
def test_damaged_files_are_replaced(module: Path, suffix: str, left: bytes) -> None:
    _is_found(module)
    (kept,) = [path for path in _kept(module) if path.suffix == suffix]
    kept.write_bytes(kept.read_bytes()[:-20] if left == b"half" else left)
    assert [_is_found(module) for _ in range(2)] == [False, True]


def test_without_a_folder_functions_run(module: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def mkdir(*given: object, **options: object) -> NoReturn:
        raise OSError(errno.EROFS, "Read-only file system")

    cache_folder()
    monkeypatch.setattr(Path, "mkdir", mkdir)
    with pytest.warns(UserWarning, match="Read-only file system"):
        assert [_is_found(module) for _ in range(2)] == [False, False]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home folder, where no other folder is stated."""
    monkeypatch.delenv("SAGANN_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def test_the_stated_folder_goes_before_the_users(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cache_folder() == home / ".cache" / "sagann" / "kernels"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_folder() == tmp_path / "xdg" / "sagann" / "kernels"
    monkeypatch.setenv("SAGANN_CACHE", str(tmp_path / "stated"))
    assert cache_folder() == tmp_path / "stated" / "kernels"
    assert cache_folder().stat().st_mode & 0o777 == 0o700


def _others_may_write(folder: Path) -> None:
    folder.mkdir(parents=True)
    folder.chmod(0o777)


def _belongs_to_another(folder: Path) -> None:
    folder.mkdir(parents=True)
    os.chown(folder, OTHER, OTHER)


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (lambda folder: folder.parent.write_text(""), "'.*kernels': Not a directory"),
        (_others_may_write, r"other users may write \(mode 0777\)"),
        pytest.param(_belongs_to_another, rf"belongs to another user \(id {OTHER}\)", marks=needs_root),
    ],
)
def test_code_is_loaded_from_no_folder_that_others_may_write_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spoil: Any, why: str
) -> None:
    spoil(tmp_path / "cache" / "kernels")
    monkeypatch.setenv("SAGANN_CACHE", str(tmp_path / "cache"))
    with pytest.warns(UserWarning, match=f"not kept in .*{why}.*Set SAGANN_CACHE"):
        found = cache_folder()
    assert tmp_path not in found.parents
    assert found.stat().st_mode & 0o777 == 0o700
    # The same is said once.
    assert cache_folder() == found


def test_the_temporary_folder_goes_with_its_process(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    code = (
        "import os; from sagann.jit import cache_folder; folder = cache_folder(); print(folder, flush=True)\n"
        "if child := os.fork(): os.waitpid(child, 0); assert folder.exists()"
    )
    environment = dict(os.environ, SAGANN_CACHE=str(tmp_path / "file"))
    command = [sys.executable, "-c", code]
    told = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=True)
    assert not Path(told.stdout.strip()).exists()


_IN_TURN = """
import sys, time
from sagann import jit

jit._LONGEST_WAIT_S = float(sys.argv[1])
waits, sleep = [], time.sleep


def waited(seconds):
    if not waits:
        print("waits", flush=True)
    waits.append(seconds)
    sleep(seconds)


time.sleep = waited
from kernel import is_loaded

print("loaded" if is_loaded() else "compiled", flush=True)
"""

_KERNELS = {
    "C function": """
from sagann.jit import compiled_callback


@compiled_callback
def nothing(p_args):
    pass


def is_loaded():
    return nothing.cache_hits
""",
    "function that calls another one": """
from sagann.jit import compiled


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
    path = os.pathsep.join([str(kernel.parent), str(ROOT)])
    return subprocess.Popen(
        [sys.executable, "-c", _IN_TURN, str(longest_s)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path, "SAGANN_CACHE": str(kernel.parent / "cache")},
    )


@contextlib.contextmanager
def _compiling(kernel: Path) -> Iterator[tuple[TextIO, Path, list[Path]]]:
    """As if this process compiled: the file that it locks, the folder where code is kept, and the code, which is away."""
    with _start(kernel, longest_s=240.0) as first:
        assert first.communicate(timeout=240)[0] == "compiled\n"
    (lock,) = (kernel.parent / "cache").rglob("*.lock")
    away = kernel.parent / "away"
    away.mkdir()
    code = [path.replace(away / path.name) for path in lock.parent.glob("*.nb[ic]")]
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield file, lock.parent, code


def test_a_process_waits_for_one_that_compiles_the_same_and_loads_what_that_keeps(kernel: Path) -> None:
    with _compiling(kernel) as (lock, folder, code), _start(kernel, longest_s=240.0) as second:
        assert second.stdout.readline() == "waits\n"
        for path in code:
            path.replace(folder / path.name)
        fcntl.flock(lock, fcntl.LOCK_UN)
        assert second.communicate(timeout=240)[0] == "loaded\n"


def test_a_process_that_is_stopped_while_it_compiles_keeps_no_other_waiting_for_long(kernel: Path) -> None:
    with _compiling(kernel), _start(kernel, longest_s=0.1) as process:
        assert process.communicate(timeout=240)[0] == "waits\ncompiled\n"
