"""Random numbers inside a seeded block, and outside of it."""

from __future__ import annotations

import torch

from sagann.kernels.seeds import NUM_SEEDS, drawn_seed, seeded

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
