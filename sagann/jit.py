"""Functions that Numba compiles, and the folder that keeps generated sources and machine code from process to process.

To load machine code is to run what its writer wished, so the folder belongs to this user and nobody else may write to it. Nothing
depends on what lies there: files that are missing or damaged are compiled again, and the folder may be removed at any time.
"""

from __future__ import annotations

import atexit
import os
import shutil
import stat
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypeVar

import numba
import numpy as np
import torch
from filelock import FileLock, Timeout
from numba import njit, types
from numba.core import sigutils, typed_passes, untyped_passes
from numba.core.caching import CompileResultCacheImpl, FunctionCache, _CacheLocator, _SourceFileBackedLocatorMixin
from numba.core.ccallback import CFunc
from numba.core.compiler import Compiler
from numba.core.compiler_lock import global_compiler_lock
from numba.core.compiler_machinery import PassManager
from numba.core.dispatcher import Dispatcher

from sagann.errors import InputError, first_line
from sagann.processes import require_own_threads

F = TypeVar("F", bound=Callable[..., Any])
Array: TypeAlias = np.ndarray[Any, Any]
"What compiled functions take."
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def cache_folder() -> Path:
    """The folder of kernels: below $SAGANN_CACHE, $XDG_CACHE_HOME or ~/.cache, with mode 0700.

    Where that cannot be made or written to, or others own it or may write to it, a warning says so and a temporary folder takes its place.
    """
    if stated := os.environ.get("SAGANN_CACHE"):
        return _checked(Path(stated) / "kernels")
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return _checked(Path(home) / "sagann" / "kernels")


def _checked(folder: Path) -> Path:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.stat()
    except OSError as error:
        return _temporary_folder(f"'{folder}': {error.strerror}")
    if found.st_uid != os.geteuid():
        return _temporary_folder(f"'{folder}', which belongs to another user (id {found.st_uid})")
    if found.st_mode & _OTHERS_WRITE:
        return _temporary_folder(
            f"'{folder}', to which other users may write (mode {stat.S_IMODE(found.st_mode):04o})"
        )
    # Nobody else writes into folders and files inside, whatever the umask.
    folder.chmod(0o700)
    if not os.access(folder, os.W_OK):
        return _temporary_folder(f"'{folder}', to which you may not write")
    return folder


@cache
def _temporary_folder(unused: str) -> Path:
    """A folder that goes with its process, after a warning that names the folder it stands for."""
    warnings.warn(
        f"Compiled code is not kept in {unused}. Set SAGANN_CACHE to a folder that belongs to you and that nobody else may write to.",
        stacklevel=4,
    )
    folder = tempfile.mkdtemp(prefix="sagann-kernels-")
    atexit.register(_remove, folder, os.getpid())
    return Path(folder)


def _remove(folder: str, owner: int) -> None:
    # A forked child does not own the folder.
    if os.getpid() == owner:
        shutil.rmtree(folder, ignore_errors=True)


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
    """Have one process at a time compile functions of one source file. Functions that are kept already need no turn."""
    compiles = dispatcher.compile

    def compile_in_turn(signature: Any) -> Any:
        kept = dispatcher._cache
        if not isinstance(kept, _Kept) or kept.has(signature, dispatcher.targetctx):
            return compiles(signature)
        with _one_at_a_time(dispatcher.py_func):
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


def compiled_callback(function: Callable[..., None]) -> CFunc:
    """Compile a C function of numbers and intrinsics that takes one pointer, or load its kept machine code."""
    signature = sigutils.normalize_signature(types.void(types.voidptr))
    callback = CFunc(function, signature, {}, {}, pipeline_class=_Plain)
    _keep(callback, function)
    with _one_at_a_time(function):
        callback.compile()
    return callback


_LONGEST_WAIT_S = 30.0
"Longest time that a process waits for another one that compiles the same function. The other one may be stopped."


@contextmanager
def _one_at_a_time(function: Callable[..., Any]) -> Iterator[None]:
    """Let one process at a time compile what a source has, so that the next ones load what the first one keeps.

    Workers of a run, and test processes, come to the same kernels at the same moment. Where a file cannot be locked, each compiles.
    """
    with ExitStack() as held:
        # The thread that has the compiler's lock takes the source's after it: in the other order, two threads could wait for each other.
        held.enter_context(global_compiler_lock)
        with suppress(OSError, Timeout):
            lock = Path(_Locator(function).get_cache_path()) / f"{Path(function.__code__.co_filename).stem}.lock"
            # A function that is compiled compiles those of its own source that it calls: one lock object for all of them.
            held.enter_context(FileLock(lock, timeout=_LONGEST_WAIT_S, poll_interval=0.005, is_singleton=True))
        yield


def _keep(compiler: Any, function: Callable[..., Any]) -> None:
    # As enable_caching() of dispatchers and C functions does. Without a writable folder nothing is kept.
    with suppress(OSError, RuntimeError):
        compiler._cache = _Kept(function)


class _Locator(_SourceFileBackedLocatorMixin, _CacheLocator):
    """Keeps machine code in the cache folder."""

    def __init__(self, py_func: Callable[..., Any], py_file: str = "") -> None:
        self._py_file, self._lineno = py_file or py_func.__code__.co_filename, py_func.__code__.co_firstlineno
        self._path = cache_folder() / _CacheLocator.get_suitable_cache_subpath(self._py_file)
        self._path.mkdir(exist_ok=True)

    def get_cache_path(self) -> str:
        return str(self._path)


class _Implementation(CompileResultCacheImpl):
    _locator_classes: list[Any] = [_Locator]


class _Kept(FunctionCache):
    _impl_class = _Implementation

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


@contextmanager
def pytorch_threads() -> Iterator[int]:
    """Run Numba's parallel loops on as many threads as PyTorch uses, and keep PyTorch's number; yields the number of threads.

    Both runtimes are OpenMP. If they share a symbol, setting Numba's number of threads also sets PyTorch's, without a warning.

    Raises:
        InputError: a variable of the environment keeps Numba from starting its threads.
    """
    require_own_threads()
    threads = torch.get_num_threads()
    try:
        numba.set_num_threads(min(threads, numba.config.NUMBA_NUM_THREADS))  # type: ignore[attr-defined]
    except ValueError as error:
        raise InputError(
            f"Numba cannot start its threads: {first_line(error)} (in the environment)",
            hint="Unset NUMBA_NUM_THREADS and NUMBA_THREADING_LAYER, or correct them.",
        ) from error
    try:
        yield numba.get_num_threads()
    finally:
        torch.set_num_threads(threads)
