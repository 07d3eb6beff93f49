"""Shares as one piece of memory: whatever they hold comes back, and a transfer that was cut short is seen."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from sagann.hybrid.parcel import checksum, parcel_of, share_in
from sagann.hybrid.trainer import Share
from sagann.runtime.loading import MiniBatch, MiniBatches
from tests.graphs import labelled_graph
from tests.hybrid.replicas import shares_of
from tests.runtime.loading.batches import arrays_of
from tests.train.runs import sparse_graph, values_graph


def share_with(batch: MiniBatch) -> Share:
    return Share(batch=batch, weight=0.25, seed=9, iteration="epoch 1, batch 2")


@pytest.mark.parametrize("kind", ["dense", "sparse", "targets", "edge types", "no features"])
def test_a_share_comes_back(kind: str) -> None:
    graph = {"sparse": sparse_graph, "targets": values_graph, "edge types": lambda: labelled_graph(types=2)}.get(
        kind, lambda: labelled_graph()
    )()
    batch = next(iter(MiniBatches(graph, fanouts=(4, 3), batch_size=6)))
    share = share_with(replace(batch, features=None) if kind == "no features" else batch)
    parcel = parcel_of(share)
    piece = torch.full((parcel.num_bytes + 100,), 7, dtype=torch.uint8)
    parcel.write(piece)
    found = share_in(parcel.text, piece)
    assert (found.weight, found.seed, found.iteration) == (0.25, 9, "epoch 1, batch 2")
    assert (found.batch.features is None) == (kind == "no features")
    for ours, theirs in zip(arrays_of(found.batch), arrays_of(share.batch), strict=True):
        assert ours.dtype == theirs.dtype
        assert torch.equal(ours, theirs)
        assert piece.data_ptr() <= ours.data_ptr() < piece.data_ptr() + parcel.num_bytes
    assert [block.num_src for block in found.batch.blocks] == [block.num_src for block in batch.blocks]
    assert (piece[parcel.num_bytes :] == 7).all()


def test_a_checksum_covers_every_array() -> None:
    (share,) = shares_of(20)
    parcel = parcel_of(share)
    piece = torch.zeros(parcel.num_bytes, dtype=torch.uint8)
    expected = parcel.write(piece)
    assert checksum(piece, parcel.num_bytes) == expected
    for offset, array in zip(parcel.offsets, parcel.arrays, strict=True):
        if array.numel():
            piece[offset] += 1
            assert checksum(piece, parcel.num_bytes) != expected
            piece[offset] -= 1
