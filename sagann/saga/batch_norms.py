"""BatchNorm in a layer's functions: while it is trained, its means are those of all rows that the layer computes.

In ``apply_edge`` that is a mean over edges, in ``apply_vertex`` over vertices. It is the one way in which rows may depend on each other, so
a layer in which it happens is computed with all rows at once, as it is written. In evaluation running means take their place, and rows are
independent.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn
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
def naming_few_rows(layer: nn.Module) -> Iterator[None]:
    """Inside the ``with`` block, the error of a BatchNorm that has one row to compute means of names the layer."""
    try:
        yield
    except ValueError as error:
        if "more than 1 value per channel" not in str(error):
            raise
        raise too_few_rows(type(layer).__name__) from error


def too_few_rows(where: str) -> LayerError:
    """What is said where a BatchNorm has one row to compute means of."""
    return LayerError(
        "a BatchNorm that is trained needs two rows at least",
        value="one edge, or one vertex",
        where=where,
        fix="Take larger mini-batches, or use LayerNorm.",
    )
