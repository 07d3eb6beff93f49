"""A batch is a plain record."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from sagann.runtime.loading import MiniBatches
from tests.graphs import labelled_graph


def test_it_is_frozen_and_has_nothing_but_its_fields() -> None:
    (batch,) = MiniBatches(labelled_graph(), fanouts=[2], batch_size=99, ahead=0)
    assert [field.name for field in dataclasses.fields(batch)] == [
        "blocks",
        "src_ids",
        "seeds",
        "features",
        "labels",
        "targets",
        "links",
    ]
    assert not hasattr(batch, "__dict__")
    assert batch.num_edges == sum(len(block.indices) for block in batch.blocks) > 0
    with pytest.raises(dataclasses.FrozenInstanceError):
        batch.labels = None  # type: ignore[misc]


def test_mapped_changes_every_array() -> None:
    (batch,) = MiniBatches(labelled_graph(types=2), fanouts=[2, 3], batch_size=99, ahead=0)
    before: list[torch.Tensor] = []
    batch.mapped(lambda array: before.append(array) or array)
    # Two blocks with offsets, sources, two edge data, ids, and three arrays of out-edges; ids, features, labels.
    assert len(before) == 2 * 8 + 4
    after: list[torch.Tensor] = []
    batch.mapped(torch.Tensor.clone).mapped(lambda array: after.append(array) or array)
    for old, new in zip(before, after, strict=True):
        assert torch.equal(old, new)
        assert old.data_ptr() != new.data_ptr()
