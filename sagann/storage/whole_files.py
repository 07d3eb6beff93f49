"""Work on graphs whose files may be cut meanwhile: it ends with an error that names the file, not with the death of the process.

Arrays of a dataset are mapped, and a page of a file that was cut is gone for whoever touches it. While such work runs, lost pages
are replaced (:mod:`sagann.storage.bus_error`), and the work is refused before its numbers are used. Size and time of
the files are compared as well: a file that has become shorter is refused before a page is missed, and the checksums of a file that was
written to are compared again.

Files that are imported may be mapped too. They are watched from when they are mapped until the import ends.
"""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from pathlib import Path
from threading import Lock
from typing import Any, BinaryIO, Literal

import numpy as np
from torch import Tensor

from sagann.errors import DatasetError
from sagann.graph import Graph
from sagann.graph.graph import named_arrays
from sagann.storage.array_map import ArrayMap, maps_of, remember
from sagann.storage.npy import cut_short

_CAN_WATCH = sys.platform == "linux" and platform.machine() in ("x86_64", "aarch64")
"Whether lost pages can be replaced here. Elsewhere only size and time of the files are compared, and a lost page ends the process."
_LOCK = Lock()
_SOURCES: ContextVar[tuple[list[ArrayMap], ExitStack] | None] = ContextVar("sources", default=None)
"Maps of the files that are being imported, and the watches on them."


def graph_maps(*graphs: Graph) -> list[ArrayMap]:
    """The maps of the files that graphs were opened from."""
    arrays = (array for graph in graphs for _, array in named_arrays(graph))
    return maps_of(array for array in arrays if isinstance(array, Tensor))


@contextmanager
def whole_files(*graphs: Graph) -> Iterator[Callable[[], None]]:
    """Inside the block, files that the graphs are mapped from may be cut or written to: the block then ends with a DatasetError.

    Yields a function that raises the error at once, to be called before results are kept.
    """
    maps = graph_maps(*graphs)
    with _watched(maps):
        require_whole(maps)
        try:
            yield lambda: require_whole(maps)
        except DatasetError:
            raise
        except Exception:
            # Lost pages are the reason, not what the numbers in their place have led to.
            require_whole(maps)
            raise
        require_whole(maps)


@contextmanager
def whole_sources() -> Iterator[None]:
    """Inside the block, files of :func:`map_source` may be cut: the block then ends with a DatasetError. Decorates functions, too."""
    maps: list[ArrayMap] = []
    with ExitStack() as watches:
        before = _SOURCES.set((maps, watches))
        try:
            yield
        except Exception:
            # Lost pages are the reason, not what the numbers in their place have led to.
            require_whole(maps)
            raise
        finally:
            _SOURCES.reset(before)
        require_whole(maps)


def require_whole_sources() -> None:
    """Inside :func:`whole_sources`, raise the error at once; to be called before results are kept."""
    if (sources := _SOURCES.get()) is not None:
        require_whole(sources[0])


def map_source(
    file: BinaryIO,
    path: str | os.PathLike[str],
    dtype: np.dtype[Any],
    shape: tuple[int, ...],
    *,
    is_fortran: bool = False,
) -> np.ndarray[Any, Any]:
    """Map the array that lies in a file from its position on, to be read only, and watch it inside :func:`whole_sources`."""
    state = os.fstat(file.fileno())
    order: Literal["F", "C"] = "F" if is_fortran else "C"
    array = np.memmap(file, dtype=dtype, mode="r", offset=file.tell(), shape=shape, order=order)
    sources = _SOURCES.get()
    if sources is not None and array.nbytes:
        maps, watches = sources
        maps.append(remember(array, Path(path).absolute(), state))
        watches.enter_context(_watched(maps[-1:]))
    return array


def require_whole(maps: Iterable[ArrayMap]) -> None:
    """Refuse files that have lost pages or become shorter, or that were written to and no longer have their checksums."""
    for each in maps:
        try:
            state = os.stat(each.path)
        except OSError:
            state = each.state
        # A file that was replaced or removed stays whole for those who have mapped it.
        if not os.path.samestat(state, each.state):
            state = each.state
        if state.st_size < each.state.st_size:
            raise cut_short(each.path, f"{state.st_size} bytes are left of {each.state.st_size}")
        if each.has_lost_pages():
            raise cut_short(each.path, "pages of it could not be read")
        if state.st_mtime_ns != each.state.st_mtime_ns:
            for check in each.checks:
                check()
            each.state = state


@contextmanager
def _watched(maps: Iterable[ArrayMap]) -> Iterator[None]:
    if not _CAN_WATCH or not maps:
        yield
        return
    # Imported here: it loads Numba, which those who only open a dataset need not wait for.
    from sagann.storage.bus_error import Watch

    with _LOCK:
        for each in maps:
            each.watch = each.watch or Watch(each.begin, each.end, each.fill)
            each.num_watchers += 1
    try:
        yield
    finally:
        with _LOCK:
            for each in maps:
                each.num_watchers -= 1
                if not each.num_watchers and each.watch is not None:
                    each.is_lost |= each.watch.end()
                    each.watch = None
