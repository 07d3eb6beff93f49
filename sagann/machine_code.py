"""Functions that Numba compiles, whose machine code is kept for later processes.

Numba's own caching fails a call where no folder can be written to, where the disk is full, and where a file that it kept is
damaged. Here each of these costs no more than to compile again.
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
    """Decorate a function that Numba compiles at its first call, and that runs without Python's lock.

    Args:
        parallel: whether Numba's threads share its ``prange`` loops.
        inline: "always" puts it into whatever calls it.
    """

    def decorated(function: F) -> F:
        dispatcher: Any = njit(nogil=True, parallel=parallel, inline=inline)(function)
        # NUMBA_DISABLE_JIT leaves the function itself.
        if isinstance(dispatcher, Dispatcher):
            _keep(dispatcher, function)
        return dispatcher

    return decorated


def compiled_callback(function: Callable[[Any], None]) -> CFunc:
    """Compile a C function of one pointer, or load what was compiled before."""
    callback = CFunc(function, sigutils.normalize_signature(types.void(types.voidptr)), {}, {})
    _keep(callback, function)
    callback.compile()
    return callback


def _keep(compiler: Any, function: Callable[..., Any]) -> None:
    # As enable_caching() of both does. Where nothing can be kept, nothing is.
    with suppress(OSError, RuntimeError):
        compiler._cache = _Kept(function)


class _Locator(_SourceFileBackedLocatorMixin, _CacheLocator):
    """Beside the source, as Numba does, or in the cache folder; where the user has told Numba a folder, there."""

    def __init__(self, py_func: Callable[..., Any], py_file: str, path: Path) -> None:
        self._py_file, self._lineno, self._path = py_file, py_func.__code__.co_firstlineno, path

    def get_cache_path(self) -> str:
        return str(self._path)

    @classmethod
    def from_function(cls, py_func: Callable[..., Any], py_file: str) -> _Locator | None:
        if config.CACHE_DIR or not Path(py_file).exists():  # type: ignore[attr-defined]
            return None
        for folder in (lambda: Path(py_file).parent / "__pycache__", lambda: _subfolder(py_file)):
            with suppress(OSError):
                locator = cls(py_func, py_file, folder())
                locator.ensure_cache_path()
                return locator
        return None


def _subfolder(py_file: str) -> Path:
    return cache_folder() / str(_CacheLocator.get_suitable_cache_subpath(py_file))


class _Implementation(CompileResultCacheImpl):
    _locator_classes: list[Any] = [_Locator, *CompileResultCacheImpl._locator_classes]


class _Kept(FunctionCache):
    _impl_class = _Implementation

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        try:
            return super().load_overload(sig, target_context)
        except Exception:  # noqa: BLE001 - to unpickle what is damaged may raise anything
            # So that what is compiled now is found by the next process.
            with suppress(OSError):
                self.flush()
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        with suppress(OSError):
            super().save_overload(sig, data)
