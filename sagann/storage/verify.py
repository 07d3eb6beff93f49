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
from sagann.parent_process import require_own_threads
from sagann.storage.array_map import ArrayMap
from sagann.storage.whole_files import graph_maps, whole_files


def check_graph(graph: Graph) -> None:
    """Check every value of a graph (:func:`sagann.graph.validate_graph`), and the files that it was opened from.

    Raises:
        DatasetError: a file is damaged; the message names the file and the damaged part.
        InputError: a value is wrong; the message names the first offending vertex or edge.
    """
    require_own_threads()
    with whole_files(graph):
        _compare(graph_maps(graph), meanwhile=lambda: validate_graph(graph))


def check_files(graph: Graph) -> None:
    """Check the files that a graph was opened from, and no value: for whoever copies them.

    Raises:
        DatasetError: a file is damaged; the message names the file and the damaged part.
    """
    with whole_files(graph):
        _compare(graph_maps(graph), meanwhile=lambda: None)


def _compare(maps: Iterable[ArrayMap], *, meanwhile: Callable[[], None]) -> None:
    """Compare the checksums of files that have not been compared yet, and do something else ``meanwhile``."""
    maps = [each for each in maps if each.checks and not each.is_checked]
    if not maps:
        meanwhile()
        return
    stop = Event()

    def unless_stopped(check: Callable[[], bool]) -> bool:
        return not stop.is_set() and check()

    # The values take the other cores.
    with ThreadPoolExecutor(max(1, torch.get_num_threads() // 2), thread_name_prefix="sagann-verify") as threads:
        pending = [[(check, threads.submit(unless_stopped, check)) for check in each.checks] for each in maps]
        try:
            meanwhile()
            for each, checks in reversed(list(zip(maps, pending, strict=True))):
                # What no thread has begun is computed by this one.
                each.is_checked = all(
                    check() if future.cancel() else future.result() for check, future in reversed(checks)
                )
        finally:
            stop.set()
