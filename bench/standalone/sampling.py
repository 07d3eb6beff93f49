"""The samplers' end of a comparison: a graph without features as the parent wrote it, and batches sampled by some threads.

A thread samples a batch by itself, on one core, so that the number of edges a second and core means the same for every contestant.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

ARRAYS = ("indptr", "indices", "seeds")

Sample = Callable[[Tensor, int], int]
"Samples some seeds, of the batch of some number; gives the number of sampled edges."


@dataclass(frozen=True)
class StoredEdges:
    """In-edges grouped by destination, and the seeds of an epoch."""

    indptr: Tensor
    "int64 [num_vertices + 1]"
    indices: Tensor
    "int32 [num_edges], ascending within a destination"
    seeds: Tensor
    "int64 [num_seeds], in the order in which batches take them"


def read_edges(specification: dict, folder: Path) -> StoredEdges:
    """Read a folder into memory."""
    return StoredEdges(*(torch.from_numpy(np.load(folder / f"{name}.npy")) for name in ARRAYS))


class Batches:
    """The batches of epoch after epoch, sampled by some threads."""

    def __init__(self, sample: Sample, seeds: Tensor, batch_size: int, threads: int) -> None:
        self._sample, self._batches, self._threads = sample, seeds.split(batch_size), threads
        self._pool = ThreadPoolExecutor(threads, initializer=lambda: torch.set_num_threads(1))
        self._next = 0

    def run(self) -> float:
        """Sample a batch in every thread; gives the number of edges."""
        return float(self.sample(self._threads)["edges"])

    def sample(self, count: int) -> dict:
        """Sample the next batches; gives the seconds that they took, by the clock and of all cores, and their edges."""
        numbers = range(self._next, self._next + count)
        self._next += count
        start, core_start = time.perf_counter(), time.process_time()
        edges = sum(self._pool.map(self._one, numbers))
        return {
            "seconds": time.perf_counter() - start,
            "core_s": time.process_time() - core_start,
            "edges": edges,
        }

    def _one(self, number: int) -> int:
        return self._sample(self._batches[number % len(self._batches)], number)

    def result(self) -> dict[str, np.ndarray]:
        """Nothing that contestants could compare: each draws other numbers."""
        return {}


def batches_of(specification: dict, graph: StoredEdges, sample: Sample) -> Batches:
    """The batches that a specification asks for."""
    return Batches(sample, graph.seeds, specification["batch_size"], specification["sampling_threads"])


REQUESTS = {"batches": Batches.sample}
"For the worker's end of the pipe: a request for a number of batches."
