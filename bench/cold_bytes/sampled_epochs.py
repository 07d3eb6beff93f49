"""Graphs and sampled epochs for the tables of cold bytes."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from sagann.errors import DatasetError
from sagann.graph import Graph, Topology, rmat_edges
from sagann.sampling import NeighborSampler, seed_batches
from sagann.storage import load_graph
from sagann.tiering import score_vertices

ROW_BYTES = 512
"Bytes of a row: 128 features of float32."
BATCHES_PER_EPOCH, LARGEST_BATCH = 16, 1024
"A small graph has so many batches in an epoch; a large one has more, of the largest size."


class Case(NamedTuple):
    """A graph, and the vertices that its batches start from."""

    name: str
    topology: Topology
    seeds: Tensor

    def score(self, by: str, fanouts: Sequence[int]) -> Tensor:
        """A score of all vertices, for these batches: float64 [num_vertices]."""
        is_seed = torch.zeros(self.topology.num_src, dtype=torch.bool)
        is_seed[self.seeds] = True
        graph = Graph(topology=self.topology, splits={"train": is_seed})
        return score_vertices(graph, by, fanouts=fanouts, batch_size=self.batch_size)

    @property
    def batch_size(self) -> int:
        return max(1, min(LARGEST_BATCH, len(self.seeds) // BATCHES_PER_EPOCH))

    def batches(self, fanouts: Sequence[int], epochs: Iterable[int]) -> Iterator[np.ndarray]:
        """Ids of the rows that each batch of the epochs of these numbers reads."""
        sampler = NeighborSampler(self.topology, fanouts, seed=0)
        for epoch in epochs:
            for number, ids in enumerate(seed_batches(self.seeds, self.batch_size, seed=0, epoch=epoch)):
                yield sampler.sample(ids, epoch=epoch, batch=number).src_ids.numpy()


def numbers(text: str) -> tuple[int, ...]:
    """Fanouts, or vertices and edges, as they are written on the command line: 25,10 or 5e6,100e6."""
    return tuple(int(float(number)) for number in text.split(","))


OPTIONS = {
    "data": (None, "folder of real graphs, NAME.npz", Path),
    "rmat": (
        [(1_000_000, 20_000_000), (5_000_000, 100_000_000)],
        "vertices and edges of power-law graphs",
        numbers,
    ),
    "labelled": (0.01, "share of seeds in power-law graphs"),
    "share": (0.1, "share of seeds in real graphs"),
}
"Which graphs, how many seeds, and how many epochs."


def cases(options: argparse.Namespace) -> Iterator[Case]:
    """The graphs that the options name, one at a time in memory."""
    for vertices, edges in options.rmat:
        src, dst = rmat_edges(vertices, edges, seed=0)
        topology = Topology.from_coo(src=src, dst=dst, num_src=vertices)
        del src, dst
        yield _case(f"R-MAT, {vertices / 1e6:g}M vertices, {edges / 1e6:g}M edges", topology, options.labelled)
    if options.data is not None:
        for path in sorted(options.data.glob("*.npz")):
            try:
                yield _case(path.stem, load_graph(str(path)).topology, options.share)
            except DatasetError as error:
                print(f"{path.stem} is left out: {error}", file=sys.stderr)


def _case(name: str, topology: Topology, share: float) -> Case:
    generator = torch.Generator().manual_seed(0)
    seeds = torch.randperm(topology.num_src, generator=generator)[: max(1, int(share * topology.num_src))]
    return Case(name=name, topology=topology, seeds=seeds)
