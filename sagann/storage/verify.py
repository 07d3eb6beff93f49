"""What is checked before a graph is trained on: every value, and the checksums of the files that the graph is mapped from.

A flipped bit mostly leaves a value that could be one. Checksums are computed in threads while values are checked, so that both
wait for the disk together, and each file is compared once in a process. They also tell one graph from another
(:mod:`sagann.storage.array_checksums`), so that comparing them takes no time that a run with a folder would not need anyway.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch

from sagann.graph import Graph, validate_graph
from sagann.graph.graph import named_arrays
from sagann.parent_process import require_own_threads
from sagann.storage.npy import map_of


def check_graph(graph: Graph) -> None:
    """Check every value of a graph (:func:`sagann.graph.validate_graph`), and the files that it was opened from.

    Raises:
        DatasetError: a file is damaged; the message names the file and the damaged part.
        InputError: a value is wrong; the message names the first offending vertex or edge.
    """
    require_own_threads()
    check_files(graph, meanwhile=lambda: validate_graph(graph))


def check_files(graph: Graph, *, meanwhile: Callable[[], None] = lambda: None) -> None:
    """Compare the checksums of the files that a graph was opened from, unless they were compared before; do something else ``meanwhile``.

    Raises:
        DatasetError: a file is damaged; the message names the file and the damaged part.
    """
    found = dict.fromkeys(map_of(array) for _, array in named_arrays(graph) if isinstance(array, torch.Tensor))
    maps = [each for each in found if each is not None and each.verify and not each.is_checked]
    # The values take the other cores.
    threads = ThreadPoolExecutor(max(1, torch.get_num_threads() // 2), thread_name_prefix="sagann-verify")
    try:
        parts = [threads.submit(each.compare, part) for each in maps for part in range(each.spec.num_parts)]
        meanwhile()
        for part in parts:
            part.result()
    finally:
        threads.shutdown(cancel_futures=True)
    for each in maps:
        each.is_checked = True
