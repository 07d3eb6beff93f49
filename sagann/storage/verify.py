"""What is checked before a graph is trained on: every value, and the checksums of the files that the graph is mapped from.

A flipped bit mostly leaves a value that could be one. Checksums are computed in threads while values are checked, so that both
wait for the disk together, and each file is compared once in a process.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import torch

from sagann.graph import Graph, validate_graph
from sagann.storage.array_map import ArrayMap
from sagann.storage.whole_files import graph_maps, whole_files


def check_graph(graph: Graph) -> None:
    """Check every value of a graph (:func:`sagann.graph.validate_graph`), and the files that it was opened from.

    Raises:
        DatasetError: a file is damaged; the message names the file and the damaged part.
        InputError: a value is wrong; the message names the first offending vertex or edge.
    """
    with whole_files(graph):
        _check(graph, [each for each in graph_maps(graph) if not each.is_checked])


def _check(graph: Graph, maps: Sequence[ArrayMap]) -> None:
    checks = [check for each in maps for check in each.checks]
    if not checks:
        validate_graph(graph)
        return
    stop = Event()

    def unless_stopped(check: Callable[[], None]) -> None:
        if not stop.is_set():
            check()

    # The values take the other cores.
    with ThreadPoolExecutor(max(1, torch.get_num_threads() // 2), thread_name_prefix="sagann-verify") as threads:
        pending = [threads.submit(unless_stopped, check) for check in checks]
        try:
            validate_graph(graph)
            for each in pending:
                each.result()
        finally:
            stop.set()
    for each_map in maps:
        each_map.is_checked = True
