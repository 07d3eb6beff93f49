"""BatchNorm in a trace: the means of all rows as one node, and what is done with them as operators on rows.

In the trace of a model, or of a layer's ApplyVertex, a BatchNorm that computes means over vertices runs as :func:`_traced`. In the trace
of an ApplyEdge it is refused: its means would be over edges.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from sagann.compiler.whole_operators import NotShown
from sagann.saga.batch_norms import batch_norms_over_rows, check_rows, normalised, replaced_forwards


@contextmanager
def traced_batch_norms(module: nn.Module, *, over_edges: bool = False) -> Iterator[None]:
    """Inside the ``with`` block, BatchNorms of the module that compute means over rows leave nodes with their names in the module."""
    with replaced_forwards(batch_norms_over_rows(module), _refused if over_edges else _traced):
        yield


def _traced(norm: Any, name: str, x: Tensor) -> Tensor:
    check_rows(norm, x)
    return normalised(norm, x, torch.ops.sagann.batch_means(x, name))


def _refused(norm: Any, name: str, x: Tensor) -> NoReturn:
    raise NotShown(
        f"the {type(norm).__name__} '{name}', which is trained, computes means over edges; a BatchNorm in apply_vertex, or a LayerNorm, is accepted"
    )
