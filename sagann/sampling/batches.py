"""Seed batches: the seeds of an epoch, in order or shuffled, cut into batches."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from sagann.graph.checks import require_distinct
from sagann.graph.random_numbers import key_of
from sagann.ranges import require_integer
from sagann.sampling.arguments import SHUFFLE, as_ids


def seed_batches(
    seeds: Tensor | Sequence[int],
    batch_size: int,
    *,
    shuffle: bool = True,
    seed: int = 0,
    epoch: int = 0,
    drop_last: bool = False,
) -> tuple[Tensor, ...]:
    """Cut the seeds of an epoch into batches: every seed is in one of them.

    Args:
        seeds: int64 [num_seeds], distinct vertex ids; a tensor, a list or a NumPy array.
        batch_size: number of seeds in a batch; the last batch may have fewer.
        shuffle: take the seeds in a random order, which depends on ``seed``, ``epoch`` and their number alone.
        seed: seed of the run.
        epoch: number of the epoch.
        drop_last: leave out a last batch that is smaller than the others.
    Returns:
        int64 tensors, which share memory.
    Raises:
        InputError: the seeds are no distinct ids, or a number is out of range.
    Example:
        >>> [batch.tolist() for batch in seed_batches(torch.arange(5), 2, shuffle=False)]
        [[0, 1], [2, 3], [4]]
    """
    seeds = as_ids(seeds, where="seed_batches, seeds")
    require_distinct(seeds, where="seed_batches, seeds")
    require_integer(batch_size, "batch_size", where="seed_batches, batch_size")
    return cut_seeds(seeds, batch_size, shuffle=shuffle, seed=seed, epoch=epoch, drop_last=drop_last)


def cut_seeds(
    seeds: Tensor, batch_size: int, *, shuffle: bool, seed: int, epoch: int, drop_last: bool
) -> tuple[Tensor, ...]:
    """The batches of :func:`seed_batches`, for arguments that are known to be right: nothing is checked."""
    if shuffle:
        generator = torch.Generator().manual_seed(int(key_of(seed, SHUFFLE, epoch)))
        seeds = seeds[torch.randperm(len(seeds), generator=generator)]
    batches = seeds.split(batch_size) if len(seeds) else ()
    return batches[:-1] if drop_last and batches and len(batches[-1]) < batch_size else batches
