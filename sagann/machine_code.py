"""Functions that Numba compiles, with machine code kept for later processes.

Numba's own cache raises where no folder is writable, where the disk is full, and where a kept file is damaged. Here the function
is compiled again instead. Numba unpickles kept files wherever they lie; here they lie in private folders (sagann.private_folder).
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, Literal, TypeVar
from uuid import uuid4

from numba import njit, types
from numba.core import config, sigutils, typed_passes, untyped_passes
from numba.core.caching import (
    CompileResultCacheImpl,
    FunctionCache,
    IndexDataCacheFile,
    _CacheLocator,
    _SourceFileBackedLocatorMixin,
)
from numba.core.ccallback import CFunc
from numba.core.compiler import Compiler
from numba.core.compiler_lock import global_compiler_lock
from numba.core.compiler_machinery import PassManager
from numba.core.dispatcher import Dispatcher

from sagann.cache_folder import cache_folder, limit_if_added, usable_folder, warn_of_unused
from sagann.cache_limit import mark_used
from sagann.private_folder import private_folder, require_private

F = TypeVar("F", bound=Callable[..., Any])


def compiled(*, parallel: bool = False, inline: Literal["never", "always"] = "never") -> Callable[[F], F]:
    """Decorate a function: Numba compiles it at its first call, and it runs without Python's lock.

    With ``parallel`` Numba's threads share the function's ``prange`` loops. Processes that come to the same function at the same
    moment do not compile it twice: one compiles, and the others load what it keeps.
    """

    def decorated(function: F) -> F:
        dispatcher: Any = njit(nogil=True, parallel=parallel, inline=inline)(function)
        # NUMBA_DISABLE_JIT leaves the function itself.
        if isinstance(dispatcher, Dispatcher):
            _keep(dispatcher, function)
            _take_turns(dispatcher)
        return dispatcher

    return decorated


def _take_turns(dispatcher: Any) -> None:
    """Have one process at a time compile functions of one source file. Nobody waits whose function is kept already, or cannot be kept."""
    compiles = dispatcher.compile

    def compile_in_turn(signature: Any) -> Any:
        kept = dispatcher._cache
        if not isinstance(kept, _Kept) or kept.has(signature, dispatcher.targetctx):
            return compiles(signature)
        with _one_at_a_time(Path(dispatcher.py_func.__code__.co_filename)):
            return compiles(signature)

    dispatcher.compile = compile_in_turn


_PASSES = (
    untyped_passes.TranslateByteCode,
    untyped_passes.FixupArgs,
    untyped_passes.IRProcessing,
    untyped_passes.ReconstructSSA,
    typed_passes.NopythonTypeInference,
    typed_passes.PreLowerStripPhis,
    typed_passes.IRLegalization,
    typed_passes.AnnotateTypes,
    typed_passes.NativeLowering,
    typed_passes.NoPythonBackend,
)


class _Plain(Compiler):
    """Compiles what has numbers and intrinsics alone: without closures, rewrites of arrays and inlined functions.

    Numba's own list has twice as many passes. Most of them find nothing here, and each goes through the whole function.
    """

    def define_pipelines(self) -> list[PassManager]:
        passes = PassManager("plain")
        for each in _PASSES:
            passes.add_pass(each, each.__name__)
        passes.finalize()
        return [passes]


_OF_ONE_POINTER = types.void(types.voidptr)


def compiled_callback(function: Callable[..., None], signature: Any = _OF_ONE_POINTER) -> CFunc:
    """Compile a C function of numbers and intrinsics, by default of one pointer, or load its kept machine code."""
    callback = CFunc(function, sigutils.normalize_signature(signature), {}, {}, pipeline_class=_Plain)
    _keep(callback, function)
    with _one_at_a_time(Path(function.__code__.co_filename)):
        callback.compile()
    return callback


_locked = set[Path]()
"Sources of which this process compiles: it has locked them, or has waited too long. The thread with the lock of Numba's compiler changes it."
_LONGEST_WAIT_S = 30.0
"Longest time that a process waits for another one that compiles the same function. The other one may be stopped."


@contextmanager
def _one_at_a_time(source: Path) -> Iterator[None]:
    """Let one process at a time compile what a source has, so that the next ones load what the first one keeps.

    Workers of a run, and test processes, come to the same kernels at the same moment. Where a file cannot be locked, each compiles.
    """
    with ExitStack() as held:
        # The thread that has the compiler's lock takes the source's after it: in the other order, two threads could wait for each other.
        held.enter_context(global_compiler_lock)
        # A function that is compiled compiles those of its own source that it calls.
        if source not in _locked:
            with suppress(OSError):
                held.enter_context(_locked_file(source))
        yield


@contextmanager
def _locked_file(source: Path) -> Iterator[None]:
    """Lock a source for this process; after _LONGEST_WAIT_S, go on without the lock."""
    with source.open("rb") as file:
        ends_s = time.monotonic() + _LONGEST_WAIT_S
        while not _is_locked(file) and time.monotonic() < ends_s:
            time.sleep(0.005)
        _locked.add(source)
        try:
            yield
        finally:
            _locked.remove(source)
            # Forks of this process have the lock too until it is given back.
            with suppress(OSError):
                fcntl.flock(file, fcntl.LOCK_UN)


def _is_locked(file: BinaryIO) -> bool:
    """Whether this process has now locked the file; False while another one holds the lock."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _keep(compiler: Any, function: Callable[..., Any]) -> None:
    # As enable_caching() of dispatchers and C functions does. Without a writable folder nothing is kept.
    with suppress(OSError, RuntimeError):
        compiler._cache = _Kept(function)


class _Locator(_SourceFileBackedLocatorMixin, _CacheLocator):
    """Keeps machine code in a folder that the user has told Numba, else beside the source, else in sagann's cache folder.

    Folders that other users may write to are passed over.
    """

    def __init__(self, py_func: Callable[..., Any], py_file: str, path: Path) -> None:
        self._py_file, self._lineno, self._path = py_file, py_func.__code__.co_firstlineno, path

    def get_cache_path(self) -> str:
        return str(self._path)

    def ensure_cache_path(self) -> None:
        usable_folder(self._path)

    @classmethod
    def from_function(cls, py_func: Callable[..., Any], py_file: str) -> _Locator | None:
        if not Path(py_file).exists():
            return None
        subpath = str(_CacheLocator.get_suitable_cache_subpath(py_file))
        if told := config.CACHE_DIR:  # type: ignore[attr-defined]
            folder = Path(told) / subpath
            try:
                return cls(py_func, py_file, usable_folder(folder))
            except OSError as error:
                warn_of_unused(folder, error)
        for at in (lambda: Path(py_file).parent / "__pycache__", lambda: cache_folder() / subpath):
            with suppress(OSError):
                return cls(py_func, py_file, usable_folder(at()))
        return None


class _Implementation(CompileResultCacheImpl):
    _locator_classes: list[Any] = [_Locator]


class _Files(IndexDataCacheFile):
    """The kept files of a function. None is unpickled that another user may have written, and others may write to none."""

    def _load_index(self) -> Any:
        path = Path(self._index_path)
        require_private(path)
        mark_used(path)
        return super()._load_index()

    def _load_data(self, name: str) -> Any:
        path = Path(self._data_path(name))
        require_private(path)
        mark_used(path)
        return super()._load_data(name)

    @contextmanager
    def _open_for_write(self, filepath: str) -> Iterator[BinaryIO]:
        aside = f"{filepath}.tmp.{uuid4().hex[:16]}"
        try:
            with open(aside, "xb", opener=_opened) as file:
                yield file
            os.replace(aside, filepath)
        finally:
            Path(aside).unlink(missing_ok=True)


def _opened(path: str, flags: int) -> int:
    # Other users may not write to the file, whatever the umask.
    return os.open(path, flags, 0o644)


class _Kept(FunctionCache):
    _impl_class = _Implementation

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)
        # Checked here, because NUMBA_CACHE_LOCATOR_CLASSES may choose the folder.
        folder, files = private_folder(Path(self._cache_path)), self._cache_file
        self._cache_file = _Files(str(folder), self._impl.filename_base, files._source_stamp)

    def has(self, sig: Any, target_context: Any) -> bool:
        """Whether the index names machine code for a signature."""
        try:
            return self._index_key(sig, target_context.codegen()) in self._cache_file._load_index()
        except Exception:  # noqa: BLE001 - unpickling a damaged file may raise any error
            return False

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        try:
            return super().load_overload(sig, target_context)
        except Exception:  # noqa: BLE001 - unpickling a damaged file may raise any error
            # An empty index lets the next process find the machine code that is compiled now.
            with suppress(OSError):
                self.flush()
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        with suppress(OSError):
            super().save_overload(sig, data)
        limit_if_added(Path(self._cache_path))
