"""BatchNorm in a trace: the means of all rows as one node, and what is done with them as operators on rows.

In the trace of a model, or of a layer's ApplyVertex, a BatchNorm that computes means over vertices runs as :func:`_normalised`. In the trace
of an ApplyEdge it is refused: its means would be over edges.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from sagann.compiler.whole_operators import NotShown
from sagann.saga.batch_norms import batch_norms_over_rows


@contextmanager
def traced_batch_norms(module: nn.Module, *, over_edges: bool = False) -> Iterator[None]:
    """Inside the ``with`` block, BatchNorms of the module that compute means over rows leave nodes with their names in the module."""
    norms = batch_norms_over_rows(module)
    for name, norm in norms.items():
        run: Any = _refused if over_edges else _normalised
        vars(norm)["forward"] = partial(run, norm, name)
    try:
        yield
    finally:
        for norm in norms.values():
            del vars(norm)["forward"]


def _normalised(norm: Any, name: str, x: Tensor) -> Tensor:
    norm._check_input_dim(x)
    if x.shape[1] != norm.num_features:
        raise RuntimeError(f"a BatchNorm of {norm.num_features} features got {x.shape[1]}")
    means = torch.ops.sagann.batch_means(x, name)
    channels = [x.shape[1]] + [1] * (x.ndim - 2)
    scale = means[1] if norm.weight is None else means[1] * norm.weight
    out = (x - means[0].view(channels)) * scale.view(channels)
    return (out if norm.bias is None else out + norm.bias.view(channels)).to(x.dtype)


def _refused(norm: Any, name: str, x: Tensor) -> NoReturn:
    raise NotShown(f"the {type(norm).__name__} '{name}', which is trained, computes means over edges")
