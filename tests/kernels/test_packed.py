"""Layouts: tensors side by side in one piece of memory."""

from __future__ import annotations

import torch

from sagann.kernels.packed import Layout


def test_tensors_come_back_from_their_places() -> None:
    tensors = {
        "a": torch.arange(5, dtype=torch.int16),
        "": torch.randn(3, 2),
        "none": torch.ones(0, 4),
        "one": torch.tensor(7),
    }
    layout = Layout(tensors)
    memory = layout.allocate()
    for name, view in layout.views(memory).items():
        view.copy_(tensors[name])
        assert layout.offset(name) % 64 == 0
    for name, view in layout.views(memory).items():
        assert torch.equal(view, tensors[name])
        assert view.dtype == tensors[name].dtype
    assert layout.num_bytes == 3 * 64


def test_a_layout_of_fewer_rows_has_the_same_tensors() -> None:
    layout = Layout({"a": torch.ones(9, 3), "b": torch.ones(9, dtype=torch.int64)}).of_rows(2)
    views = layout.views(layout.allocate())
    assert {name: (view.shape, view.dtype) for name, view in views.items()} == {
        "a": ((2, 3), torch.float32),
        "b": ((2,), torch.int64),
    }
    assert layout.num_bytes == 2 * 64
