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


def test_the_same_tensors_with_other_rows() -> None:
    layout = Layout({"a": torch.zeros(5, 16), "b": torch.zeros(5)}).of_rows(2)
    assert layout.offset("b") == 128
    assert {name: tuple(view.shape) for name, view in layout.views(layout.allocate()).items()} == {
        "a": (2, 16),
        "b": (2,),
    }
