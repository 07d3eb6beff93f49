from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from sagann.errors import InputError
from sagann.sampling import seed_batches

SEEDS = torch.arange(100, 203)


@pytest.mark.parametrize(("batch_size", "sizes"), [(50, [50, 50, 3]), (200, [103])])
def test_every_seed_is_in_one_batch_and_a_smaller_last_one_may_be_left_out(
    batch_size: int, sizes: list[int]
) -> None:
    batches = seed_batches(SEEDS, batch_size)
    assert torch.cat(batches).sort().values.equal(SEEDS)
    assert [len(batch) for batch in batches] == sizes
    assert torch.cat(seed_batches(SEEDS, batch_size, shuffle=False)).equal(SEEDS)
    assert [len(batch) for batch in seed_batches(SEEDS, batch_size, drop_last=True)] == sizes[:-1]
    assert seed_batches(SEEDS[:0], batch_size) == ()


def test_the_order_depends_on_seed_and_epoch_alone() -> None:
    def order(seed: int, epoch: int, batch_size: int = 10) -> list[int]:
        return torch.cat(seed_batches(SEEDS, batch_size, seed=seed, epoch=epoch)).tolist()

    first = order(3, 4)
    torch.manual_seed(99)
    assert order(3, 4) == order(3, 4, batch_size=7) == first
    assert len({tuple(order(seed, epoch)) for seed in range(5) for epoch in range(5)}) == 25


@pytest.mark.parametrize(
    ("use", "named"),
    [
        (lambda: seed_batches(torch.tensor([1, 2, 1]), 2), "1 stands more than once (in seed_batches, seeds)"),
        (lambda: seed_batches(torch.tensor([True]), 2), "nonzero().squeeze(1) for a mask"),
        (lambda: seed_batches("12", 2), "a str, expected Tensor or list or tuple or ndarray"),
        (lambda: seed_batches(SEEDS, 0), "0, expected an integer from 1 to 2^63 - 1 (in seed_batches, batch_size)"),
    ],
)
def test_wrong_arguments_are_named(use: Callable[[], object], named: str) -> None:
    with pytest.raises(InputError) as error:
        use()
    assert named in str(error.value)
