"""Tensors packed into one piece of memory."""

from __future__ import annotations

import torch

from sagann.kernels.packed import Layout, packed_bytes


def test_views_are_apart_aligned_and_of_their_form() -> None:
    tensors = {"a": torch.zeros(5, 3), "b": torch.zeros(0, 2), "c": torch.zeros(7, dtype=torch.int16)}
    layout = Layout(tensors)
    views = layout.views(layout.allocate())
    for number, (name, view) in enumerate(views.items()):
        assert (view.shape, view.dtype) == (tensors[name].shape, tensors[name].dtype)
        assert layout.offset(name) % 64 == 0
        view.fill_(number)
    assert all(bool((view == number).all()) for number, view in enumerate(views.values()))
    assert layout.num_bytes == packed_bytes(tensor.nbytes for tensor in tensors.values()) == 128
