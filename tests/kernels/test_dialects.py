"""Dialects, packed arrays and seeds."""

from __future__ import annotations

import pytest
import torch

from sagann.errors import InputError
from sagann.kernels import edge
from sagann.kernels.edge import cpu, naive
from sagann.kernels.packed import Layout, packed_bytes
from sagann.kernels.seeds import NUM_SEEDS, drawn_seed, seeded


@pytest.mark.parametrize(
    ("device", "name", "module"), [("cpu", "auto", cpu), ("cpu", "naive", naive), ("mps", "auto", naive)]
)
def test_auto_takes_the_fastest(device: str, name: str, module: object) -> None:
    assert edge.dialect_for(device, name) is module


@pytest.mark.parametrize(("device", "name"), [("cuda", "cpu"), ("mps", "gpu")])
def test_a_dialect_of_another_device_is_refused(device: str, name: str) -> None:
    with pytest.raises(InputError, match=rf"dialect '{name}' read .* device of type '{device}' \(in dialect\)"):
        edge.dialect_for(device, name)


def test_an_unknown_dialect_is_refused() -> None:
    with pytest.raises(
        InputError, match=r"no such dialect of kernels: 'fast', expected one of auto, naive, cpu, gpu"
    ):
        edge.check_dialect("fast")


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


CPU = torch.device("cpu")


def test_a_seeded_block_repeats_and_leaves_the_generator_as_it_was() -> None:
    torch.manual_seed(3)
    expected = [drawn_seed(), drawn_seed()]
    torch.manual_seed(3)
    first = drawn_seed()
    inside = []
    for seed in (5, 5, 5 + NUM_SEEDS):
        with seeded(seed, CPU):
            inside.append(torch.rand(4))
    assert [first, drawn_seed()] == expected
    assert torch.equal(inside[0], inside[1])
    assert torch.equal(inside[0], inside[2])
