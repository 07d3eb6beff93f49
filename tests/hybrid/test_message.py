"""Shares as one piece of memory: whatever they hold comes back."""

from __future__ import annotations

import pickle
from dataclasses import replace

import pytest
import torch

from sagann.hybrid.message import layout_views, message_of
from sagann.hybrid.trainer import Share
from sagann.runtime.loading import MiniBatch, MiniBatches
from tests.graphs import labelled_graph
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
    message, arrays = message_of(share)
    message = pickle.loads(pickle.dumps(message))
    num_bytes = message.layout.num_bytes
    piece = torch.full((num_bytes + 100,), 7, dtype=torch.uint8)
    for memory, array in zip(layout_views(message.layout, piece), arrays, strict=True):
        memory.copy_(array)
    found = message.share_in(piece)
    assert (found.weight, found.seed, found.iteration) == (0.25, 9, "epoch 1, batch 2")
    assert (found.batch.features is None) == (kind == "no features")
    for ours, theirs in zip(arrays_of(found.batch), arrays_of(share.batch), strict=True):
        assert ours.dtype == theirs.dtype
        assert torch.equal(ours, theirs)
        assert piece.data_ptr() <= ours.data_ptr() < piece.data_ptr() + num_bytes
    assert [block.num_src for block in found.batch.blocks] == [block.num_src for block in batch.blocks]
    assert (piece[num_bytes:] == 7).all()
