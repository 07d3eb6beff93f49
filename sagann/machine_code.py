"""Functions that Numba compiles, with machine code kept for later processes.

Numba's own cache raises where no folder is writable, where the disk is full, and where a kept file is damaged. Here the function
is compiled again instead.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, TypeVar

from numba import njit, types
from numba.core import config, sigutils
from numba.core.caching import CompileResultCacheImpl, FunctionCache, _CacheLocator, _SourceFileBackedLocatorMixin
from numba.core.ccallback import CFunc
from numba.core.dispatcher import Dispatcher

from sagann.cache_folder import cache_folder

F = TypeVar("F", bound=Callable[..., Any])


def compiled(*, parallel: bool = False, inline: Literal["never", "always"] = "never") -> Callable[[F], F]:
    """Decorate a function: Numba compiles it at its first call, and it runs without Python's lock.

    With ``parallel`` Numba's threads share the function's ``prange`` loops.
    """

    def decorated(function: F) -> F:
        dispatcher: Any = njit(nogil=True, parallel=parallel, inline=inline)(function)
        # NUMBA_DISABLE_JIT leaves the function itself.
        if isinstance(dispatcher, Dispatcher):
            _keep(dispatcher, function)
        return dispatcher

    return decorated


_OF_ONE_POINTER = types.void(types.voidptr)


def compiled_callback(function: Callable[..., None], signature: Any = _OF_ONE_POINTER) -> CFunc:
    """Compile a C function, by default of one pointer, or load its kept machine code."""
    callback = CFunc(function, sigutils.normalize_signature(signature), {}, {})
    _keep(callback, function)
    callback.compile()
    return callback


def _keep(compiler: Any, function: Callable[..., Any]) -> None:
    # As enable_caching() of dispatchers and C functions does. Without a writable folder nothing is kept.
    with suppress(OSError, RuntimeError):
        compiler._cache = _Kept(function)


class _Locator(_SourceFileBackedLocatorMixin, _CacheLocator):
    """Keeps machine code in a folder that the user has told Numba, else beside the source, else in sagann's cache folder."""

    def __init__(self, py_func: Callable[..., Any], py_file: str, path: Path) -> None:
        self._py_file, self._lineno, self._path = py_file, py_func.__code__.co_firstlineno, path

    def get_cache_path(self) -> str:
        return str(self._path)

    @classmethod
    def from_function(cls, py_func: Callable[..., Any], py_file: str) -> _Locator | None:
        if config.CACHE_DIR or not Path(py_file).exists():  # type: ignore[attr-defined]
            return None
        subpath = str(_CacheLocator.get_suitable_cache_subpath(py_file))
        for folder in (lambda: Path(py_file).parent / "__pycache__", lambda: cache_folder() / subpath):
            with suppress(OSError):
                locator = cls(py_func, py_file, folder())
                locator.ensure_cache_path()
                return locator
        return None


class _Implementation(CompileResultCacheImpl):
    _locator_classes: list[Any] = [_Locator, *CompileResultCacheImpl._locator_classes]


class _Kept(FunctionCache):
    _impl_class = _Implementation

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
