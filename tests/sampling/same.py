"""Samples, compared."""

from __future__ import annotations

from sagann.graph import Topology
from sagann.sampling import MiniBatch


def assert_same_block(ours: Topology, expected: Topology) -> None:
    """Equal edges, ids and data; ids may be wider in one."""
    assert (ours.num_src, ours.num_dst) == (expected.num_src, expected.num_dst)
    assert ours.indptr.equal(expected.indptr)
    assert ours.indices.long().equal(expected.indices.long())
    assert ours.edge_ids.long().equal(expected.edge_ids.long())
    assert ours.edge_data.keys() == expected.edge_data.keys()
    for name, rows in ours.edge_data.items():
        assert rows.dtype == expected.edge_data[name].dtype
        assert rows.equal(expected.edge_data[name])


def assert_same(ours: MiniBatch, expected: MiniBatch) -> None:
    """Equal seeds, sources and blocks, in every bit and type."""
    assert ours.src_ids.equal(expected.src_ids)
    assert ours.seeds.equal(expected.seeds)
    assert len(ours.blocks) == len(expected.blocks)
    for block, other in zip(ours.blocks, expected.blocks, strict=True):
        assert_same_block(block, other)
        for name in ("indptr", "indices", "edge_ids"):
            assert getattr(block, name).dtype == getattr(other, name).dtype
