"""BatchNorm in a layer's functions: while it is trained, its means are those of all rows that the layer computes.

In ``apply_edge`` that is a mean over edges, in ``apply_vertex`` over vertices. It is the one way in which rows may depend on each other, so
a layer in which it happens is computed with all rows at once, as it is written. In evaluation running means take their place, and rows are
independent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from sagann.errors import LayerError


def batch_norms_over_rows(module: nn.Module) -> dict[str, _BatchNorm]:
    """The BatchNorms of a module, by name, that compute means over the rows that they are given."""
    return {
        name: each
        for name, each in module.named_modules()
        if isinstance(each, _BatchNorm) and (each.training or each.running_mean is None)
    }


@contextmanager
def replaced_forwards(norms: Mapping[str, nn.Module], run: Callable[[Any, str, Tensor], Tensor]) -> Iterator[None]:
    """Inside the ``with`` block, calls of the modules run ``run(module, name, x)``."""
    for name, norm in norms.items():
        vars(norm)["forward"] = partial(run, norm, name)
    try:
        yield
    finally:
        for norm in norms.values():
            del vars(norm)["forward"]


def check_rows(norm: Any, x: Tensor) -> None:
    """Refuse rows that do not fit a BatchNorm."""
    norm._check_input_dim(x)
    if x.shape[1] != norm.num_features:
        raise RuntimeError(f"a BatchNorm of {norm.num_features} features got {x.shape[1]}")


def normalised(norm: Any, x: Tensor, means: Tensor, scales: Tensor) -> Tensor:
    """What a BatchNorm makes of rows, from the means and the reciprocals of the standard deviations by channel, [C] each."""
    channels = [x.shape[1]] + [1] * (x.ndim - 2)
    scale = scales if norm.weight is None else scales * norm.weight
    out = (x - means.view(channels)) * scale.view(channels)
    return (out if norm.bias is None else out + norm.bias.view(channels)).to(x.dtype)


@contextmanager
def with_running_means(module: nn.Module) -> Iterator[None]:
    """Inside the ``with`` block, BatchNorms that have running means use them, as in evaluation."""
    trained = [each for each in batch_norms_over_rows(module).values() if each.training]
    for each in trained:
        each.training = False
    try:
        yield
    finally:
        for each in trained:
            each.training = True


@contextmanager
def naming_few_rows(where: str) -> Iterator[None]:
    """Inside the ``with`` block, the error of a BatchNorm that has one row to compute means of names the layer, or the model."""
    try:
        yield
    except ValueError as error:
        if "more than 1 value per channel" not in str(error):
            raise
        raise too_few_rows(where) from error


def batch_size_without_rest(model: nn.Module, num_rows: int, batch_size: int) -> int:
    """The batch size, or a larger one where a BatchNorm would get a last batch of one row, which has no deviation."""
    has_norms = any(isinstance(each, _BatchNorm) for each in model.modules())
    while has_norms and batch_size < num_rows and num_rows % batch_size == 1:
        batch_size += 1
    return batch_size


def too_few_rows(where: str) -> LayerError:
    """What is said where a BatchNorm has one row to compute means of."""
    return LayerError(
        f"a BatchNorm that is trained needs two rows at least: one row, of an edge, a vertex or a graph (in {where})",
        hint="Take larger mini-batches, or use LayerNorm.",
    )
