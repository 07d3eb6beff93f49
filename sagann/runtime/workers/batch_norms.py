"""BatchNorms of workers: while a model is trained, their means are over the vertices, or the edges, of all workers.

References:
    PyTorch's SyncBatchNorm does the same on CUDA devices; it needs NCCL.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from sagann.kernels.first_order import Saved, first_order_only
from sagann.runtime.moments import Moments
from sagann.runtime.workers.group import Workers
from sagann.saga.batch_norms import batch_norms_over_rows, check_rows, normalised, replaced_forwards, too_few_rows


@contextmanager
def batch_norms_over_all(model: nn.Module, workers: Workers) -> Iterator[None]:
    """Inside the ``with`` block, BatchNorms of the model that are trained compute means over the rows of all workers, which run it together."""
    with replaced_forwards(batch_norms_over_rows(model), partial(_run, workers)):
        yield


def _run(workers: Workers, norm: Any, name: str, x: Tensor) -> Tensor:
    if not (norm.training or norm.running_mean is None):
        # The check of a layer evaluates it.
        return type(norm).forward(norm, x)
    check_rows(norm, x)
    moments = Moments(x, norm.eps)
    means: Tensor = _Means.apply(x, moments, workers)  # type: ignore[no-untyped-call]
    if moments.count == 1:
        raise too_few_rows(name)
    with torch.no_grad():
        moments.update(norm)
    return normalised(norm, x, *means)


class _Means(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, moments: Moments, workers: Workers) -> Tensor:
        moments.add(x)
        moments.merge(partial(workers.add_up, doing="adding means of a BatchNorm"))
        ctx.moments, ctx.workers = moments, workers
        ctx.save_for_backward(x)
        return moments.shared()

    @staticmethod
    @first_order_only
    def backward(ctx: Any, saved: Saved, grad: Tensor) -> tuple[Tensor | None, ...]:
        (x,) = saved
        grad = ctx.workers.add_up(grad.flatten(), "adding gradients of a BatchNorm's means").view_as(grad)
        return ctx.moments.gradient(x, grad).to(x.dtype), None, None
