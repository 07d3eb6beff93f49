"""What is checked before a graph is trained on: every value, and the checksums of the files that the graph is mapped from.

A flipped bit mostly leaves a value that could be one. Checksums are computed in threads while values are checked, so that both
wait for the disk together, and each file is compared once in a process. They also tell one graph from another
(:mod:`sagann.storage.array_checksums`), so that comparing them takes no time that a run with a folder would not need anyway.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import torch

from sagann.graph import Graph, validate_graph
from sagann.graph.graph import named_arrays
from sagann.parent_process import require_own_threads
from sagann.storage.npy import ArrayMap, maps_of


def check_graph(graph: Graph) -> None:
    """Check every value of a graph (:func:`sagann.graph.validate_graph`), and the files that it was opened from.

    Raises:
        DatasetError: a file is damaged; the message names the file and the damaged part.
        InputError: a value is wrong; the message names the first offending vertex or edge.
    """
    require_own_threads()
    _compare(_maps(graph), meanwhile=lambda: validate_graph(graph))


def check_files(graph: Graph) -> None:
    """Check the files that a graph was opened from, and no value: for whoever copies them.

    Raises:
        DatasetError: a file is damaged; the message names the file and the damaged part.
    """
    _compare(_maps(graph), meanwhile=lambda: None)


def _maps(graph: Graph) -> list[ArrayMap]:
    """The maps of the files that a graph was opened from."""
    return maps_of(array for _, array in named_arrays(graph) if isinstance(array, torch.Tensor))


def _compare(maps: Iterable[ArrayMap], *, meanwhile: Callable[[], None]) -> None:
    """Compare the checksums of files that have not been compared yet, and do something else ``meanwhile``."""
    maps = [each for each in maps if each.verify and not each.is_checked]
    if not maps:
        meanwhile()
        return
    stop = Event()

    def unless_stopped(array: ArrayMap, part: int) -> bool:
        return not stop.is_set() and array.compare(part)

    # The values take the other cores.
    with ThreadPoolExecutor(max(1, torch.get_num_threads() // 2), thread_name_prefix="sagann-verify") as threads:
        pending = [
            [(part, threads.submit(unless_stopped, each, part)) for part in range(each.spec.num_parts)]
            for each in maps
        ]
        try:
            meanwhile()
            for each, parts in reversed(list(zip(maps, pending, strict=True))):
                # What no thread has begun is computed by this one.
                each.is_checked = all(
                    each.compare(part) if future.cancel() else future.result() for part, future in reversed(parts)
                )
        finally:
            stop.set()
