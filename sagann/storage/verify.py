"""What is checked before a graph is trained on: every value, and the checksums of the files that the graph is mapped from.

A flipped bit mostly leaves a value that could be one. Checksums are computed in threads while values are checked, so that both
wait for the disk together, and each file is compared once in a process.

Checksums also tell one array from another: two arrays of one shape and type with the same checksums hold the same numbers, whether they
were opened from a dataset or made in memory. A file that was compared has those of its manifest, and is not read again.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

from sagann.graph import Graph, validate_graph
from sagann.graph.feature_store import Features, feature_store, read_pieces, version_of
from sagann.graph.graph import named_arrays
from sagann.graph.rows import flat_bytes
from sagann.processes import require_own_threads
from sagann.storage.npy import PartChecksums, map_of


def check_graph(graph: Graph) -> None:
    """Check every value of a graph (:func:`sagann.graph.validate_graph`), and the files that it was opened from."""
    require_own_threads()
    check_files(graph, meanwhile=lambda: validate_graph(graph))


def check_files(graph: Graph, *, meanwhile: Callable[[], None] = lambda: None) -> None:
    """Compare the checksums of the files that a graph was opened from, unless they were compared before; do something else ``meanwhile``."""
    found = dict.fromkeys(map_of(array) for _, array in named_arrays(graph) if isinstance(array, Tensor))
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


def array_checksums(array: Features, *, as_stated: bool = False) -> tuple[int, ...]:
    """The CRC-32 of each 64 MiB of an array's numbers, row by row; () for an empty array.

    With ``as_stated``, the checksums that a manifest states are taken though they were not compared with the file.
    """
    if isinstance(array, Tensor) and array.is_contiguous() and not version_of(array):
        known = map_of(array)
        if known is not None and array.nbytes == known.spec.data_bytes and (known.is_checked or as_stated):
            return known.spec.crc32
    found = PartChecksums()
    for _, rows in read_pieces(feature_store(array)):
        found.add(flat_bytes(rows.cpu()).data)
    return found.parts
