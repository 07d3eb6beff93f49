"""Accesses: how often sampled mini-batches read each vertex's features, measured, and how many of the reads the hottest rows take.

References:
    Graph Neural Network Training with Data Tiering, 2021, Sec. 5.2 and Fig. 7.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from sagann.errors import InputError
from sagann.graph.topology import Topology
from sagann.sampling import NeighborSampler, seed_batches
from sagann.tiering.scores import hottest


def measured_accesses(
    topology: Topology, seeds: Tensor, fanouts: Sequence[int], *, batch_size: int, seed: int = 0, epoch: int = 0
) -> Tensor:
    """Count how often each vertex's features are read in a sampled epoch: the number of batches that read it, int64 [num_vertices].

    As a score, these counts are the oracle: no other choice of hot rows takes more of the epoch's reads.
    """
    sampler = NeighborSampler(topology, fanouts, seed=seed)
    counts = torch.zeros(topology.num_src, dtype=torch.int64)
    for number, batch in enumerate(seed_batches(seeds, batch_size, seed=seed, epoch=epoch)):
        counts[sampler.sample(batch, epoch=epoch, batch=number).src_ids] += 1
    return counts


def access_curve(score: Tensor, counts: Tensor) -> Tensor:
    """The share of all reads that the k rows of the highest scores take, for each k: a curve of Data Tiering's figure 7, float64 [num_vertices + 1].

    Example:
        >>> access_curve(torch.tensor([0.5, 0.1, 0.9]), torch.tensor([3, 0, 1])).tolist()
        [0.0, 0.25, 1.0, 1.0]
    """
    if score.shape != counts.shape:
        raise InputError(
            f"scores and counts differ in number: {list(score.shape)} and {list(counts.shape)} (in access_curve)",
            hint="Pass one score and one count for each vertex.",
        )
    total = int(counts.sum())
    if total == 0:
        raise InputError(
            f"no row was read: 0 reads of {len(counts)} rows (in access_curve, counts)",
            hint="Count the reads of at least one batch.",
        )
    curve = torch.zeros(len(counts) + 1, dtype=torch.float64)
    torch.cumsum(counts[hottest(score)], 0, dtype=torch.float64, out=curve[1:])
    return curve.div_(total)
