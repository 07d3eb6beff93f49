"""Random numbers that can be drawn again."""

from __future__ import annotations

import pytest
import torch

from sagann.kernels.edge.random import random_rows


def test_a_row_is_the_same_wherever_it_is_drawn() -> None:
    ids = torch.tensor([5, 2**33 + 1, 0])
    together = random_rows(ids, (3, 4), 0.5, 1, 7, torch.float32)
    apart = [random_rows(ids[row : row + 1], (3, 4), 0.5, 1, 7, torch.float32) for row in range(3)]
    assert torch.equal(together, torch.cat(apart))


@pytest.mark.parametrize(("salt", "seed"), [(2, 7), (1, 8)])
def test_salt_and_seed_give_other_values(salt: int, seed: int) -> None:
    ids = torch.arange(100)
    first = random_rows(ids, (8,), 0.5, 1, 7, torch.float32)
    assert not torch.equal(first, random_rows(ids, (8,), 0.5, salt, seed, torch.float32))
