"""Local ids against those of a dictionary, with tables that grow and tables with a slot for every vertex."""

from __future__ import annotations

import numpy as np
from hypothesis import given, strategies as st

from sagann.sampling import numbering


def numbered(
    indices: np.ndarray, hops: list[np.ndarray], seeds: np.ndarray, num_vertices: int, num_slots: int
) -> tuple[list[int], list[list[int]]]:
    """The ids of all vertices in order of appearance, and the local ids of each hop's sources."""
    ids = np.full(num_vertices + 1, -7)
    table = numbering.new_table(num_slots, indices.dtype)
    table[:] = 77
    repeated, table = numbering.number_seeds(seeds, ids, table, num_vertices)
    assert repeated == -1
    num_ids, found = len(seeds), []
    for positions in hops:
        local = np.full(len(positions), -7, dtype=np.int32)
        num_ids, table = numbering.number_sources(indices, positions, ids, num_ids, table, num_vertices, local)
        found.append(local.tolist())
    assert table.dtype == indices.dtype
    return ids[:num_ids].tolist(), found


def by_dictionary(
    indices: np.ndarray, hops: list[np.ndarray], seeds: np.ndarray
) -> tuple[list[int], list[list[int]]]:
    local = {int(vertex): number for number, vertex in enumerate(seeds)}
    found = [[local.setdefault(int(indices[edge]), len(local)) for edge in positions] for positions in hops]
    return list(local), found


@given(
    st.integers(0, 1000),
    st.sampled_from([5, 300, 5000, 10**6]),
    st.sampled_from([2, 16, 1 << 12, 1 << 20]),
    st.sampled_from([np.int32, np.int64]),
)
def test_local_ids_are_those_of_a_dictionary(seed: int, num_vertices: int, num_slots: int, dtype: type) -> None:
    generator = np.random.default_rng(seed)
    # Ids at equal distances collide most.
    step = generator.choice([1, 4096])
    indices = (generator.integers(num_vertices, size=3000) // step * step).astype(dtype)
    seeds = generator.permutation(num_vertices)[: generator.integers(1, 40)]
    hops = [generator.integers(3000, size=size).astype(np.int32) for size in generator.integers(0, 700, size=3)]
    assert numbered(indices, hops, seeds, num_vertices, num_slots) == by_dictionary(indices, hops, seeds)
