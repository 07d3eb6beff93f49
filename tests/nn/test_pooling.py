"""Pooling by graph: equal to a plain loop over the graphs, with gradients."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from sagann.errors import InputError, LayerError
from sagann.graph.rows import offsets_of
from sagann.nn import GIN, pool
from sagann.saga.layer import count_hops
from tests.tolerances import assert_close

HOWS = ("sum", "mean", "max", "min", "var", "std", "mul")
SIZES = {
    "some": (3, 1, 5, 2),
    "first empty": (0, 3, 4),
    "last empty": (4, 2, 0),
    "more graphs than vertices": (0, 1, 0, 0, 2, 0),
    "one": (9,),
    "no vertices": (0, 0),
    "no graphs": (),
}


def plain(rows: Tensor, sizes: tuple[int, ...], how: str) -> Tensor:
    """One graph after the other, in PyTorch."""
    of_one: dict[str, Callable[[Tensor], Tensor]] = {
        "sum": lambda part: part.sum(0),
        "mean": lambda part: part.mean(0),
        "max": lambda part: part.amax(0),
        "min": lambda part: part.amin(0),
        "var": lambda part: part.var(0, correction=0),
        "std": lambda part: part.var(0, correction=0).clamp(min=1e-30).sqrt(),
        "mul": lambda part: part.prod(0),
    }
    empty = torch.full(rows.shape[1:], 1.0 if how == "mul" else 0.0, dtype=rows.dtype)
    pooled = [of_one[how](part) if len(part) else empty for part in rows.split(list(sizes))]
    return torch.stack(pooled) if pooled else rows.new_empty((0, *rows.shape[1:]))


def rows_of(sizes: tuple[int, ...], dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    rows = torch.randn(sum(sizes), 5, generator=torch.Generator().manual_seed(1), dtype=dtype)
    return rows, offsets_of(torch.tensor(sizes, dtype=torch.int64))


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
def test_values_and_gradients_are_those_of_a_loop(sizes: tuple[int, ...], how: str) -> None:
    rows, ptr = rows_of(sizes, torch.float64)
    # Of one vertex the deviation is 0, where its gradient is defined by sagann alone.
    if how == "std" and 1 in sizes:
        sizes = tuple(2 * size for size in sizes)
        rows, ptr = rows_of(sizes, torch.float64)
    weights = torch.randn(len(sizes), 5, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    ours, theirs = rows.clone().requires_grad_(), rows.clone().requires_grad_()
    found, expected = pool(ours, ptr, how), plain(theirs, sizes, how)
    assert_close(found, expected)
    (found * weights).sum().backward()
    if expected.requires_grad:
        (expected * weights).sum().backward()
        assert_close(ours.grad, theirs.grad)


def test_several_stand_side_by_side() -> None:
    rows, ptr = rows_of((3, 0, 2))
    both = pool(rows, ptr, ("mean", "max"))
    assert_close(both, torch.cat([pool(rows, ptr, "mean"), pool(rows, ptr, "max")], 1))


def test_of_equal_maxima_the_first_one_gets_the_gradient() -> None:
    rows = torch.zeros(3, 1, requires_grad=True)
    pool(rows, torch.tensor([0, 3]), "max").sum().backward()
    assert rows.grad is not None
    assert rows.grad.flatten().tolist() == [1.0, 0.0, 0.0]


def test_a_model_that_pools_has_no_further_hop() -> None:
    class Pooled(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = GIN(5, 5)

        def forward(self, hops, x, graph_ptr):
            return pool(self.layer(hops[0], x), graph_ptr)

    assert count_hops(Pooled()) == 1


BAD = {
    "decrease": (torch.ones(4, 2), torch.tensor([0, 3, 2, 4]), r"graph offsets decrease: 3 then 2 at position 1"),
    "other ends": (torch.ones(4, 2), torch.tensor([0, 3]), r"from 0 to 3, expected 0 to 4 \(in pool, graph_ptr\)"),
    "a number per vertex": (
        torch.ones(4, 2),
        torch.tensor([0.0, 0.0, 1.0, 1.0]),
        r"torch\.float32 \[4\], expected torch\.int64 \[num_graphs \+ 1\]",
    ),
    "no offset": (
        torch.ones(0, 2),
        torch.empty(0, dtype=torch.int64),
        r"expected torch\.int64 \[num_graphs \+ 1\]",
    ),
    "one dimension": (torch.ones(4), torch.tensor([0, 4]), r"rows\.unsqueeze\(1\)"),
    "no tensor": (torch.ones(4, 2), [0, 4], r"pool, graph_ptr"),
}


@pytest.mark.parametrize(("rows", "ptr", "message"), BAD.values(), ids=BAD)
def test_offsets_that_do_not_fit_are_refused(rows: Tensor, ptr: Tensor, message: str) -> None:
    with pytest.raises(InputError, match=message):
        pool(rows, ptr)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("average", r"unknown accumulator: 'average', expected one of sum, mean"),
        ("softmax", r"an accumulator that cannot pool: 'softmax' .*\(in pool, how\).*weight rows by a score"),
        ("concat", r"an accumulator that cannot pool: 'concat'"),
        (("mean", "softmax"), r"accumulators that cannot be combined: softmax among 2"),
        (["mean"], r"Name an accumulator, or several in a tuple"),
    ],
)
def test_what_cannot_pool_is_refused(how: object, message: str) -> None:
    with pytest.raises((LayerError, InputError), match=message):
        pool(torch.ones(2, 2), torch.tensor([0, 2]), how)
