"""BatchNorm in a trace: the means of all rows as one node, and what is done with them as operators on rows.

In the trace of a model, or of a layer's ApplyVertex, a BatchNorm that computes means over vertices runs as :func:`_over_vertices`.

In the trace of an ApplyEdge the means are over edges, and :func:`_over_edges` runs. Such means take one more gather, before that of the
layer: each destination gathers the sum of its in-edges' rows, the sum of their squared deviations from their own mean, and their number.
The means over all edges follow from these as means over vertices do from rows. :mod:`sagann.compiler.layer_graph` puts that gather in the graph.
So the passes, chunks and exchanges of gathers serve the means as well, and their backward is that of a gather.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from sagann.compiler.whole_operators import NotShown
from sagann.kernels.edge.builder import arithmetic_dtype
from sagann.saga.batch_norms import batch_norms_over_rows, check_rows, normalised, replaced_forwards


@contextmanager
def traced_batch_norms(module: nn.Module, *, over_edges: bool = False) -> Iterator[None]:
    """Inside the ``with`` block, BatchNorms of the module that compute means over rows leave nodes with their names in the module."""
    computing = batch_norms_over_rows(module)
    own = {name: each for name, each in computing.items() if not _is_plain(each)}
    plain = {name: each for name, each in computing.items() if name not in own}
    # On the edges, the others become pointwise operators, and what depends on their running means alone is computed once.
    others = {
        name: each
        for name, each in module.named_modules()
        if over_edges and _is_plain(each) and name not in computing
    }
    with (
        replaced_forwards(own, _refused),
        replaced_forwards(plain, _over_edges if over_edges else _over_vertices),
        replaced_forwards(others, _evaluated),
    ):
        yield


def _is_plain(module: nn.Module) -> bool:
    """Whether a module is a BatchNorm, and does no more."""
    return isinstance(module, _BatchNorm) and type(module).forward in (_BatchNorm.forward, nn.SyncBatchNorm.forward)


def _refused(norm: Any, name: str, x: Tensor) -> NoReturn:
    raise NotShown(
        f"the {type(norm).__name__} '{name}', which is trained, has a forward of its own; call a torch.nn.BatchNorm1d instead"
    )


def _over_vertices(norm: Any, name: str, x: Tensor) -> Tensor:
    check_rows(norm, x)
    return _normalised(norm, x, torch.ops.sagann.batch_means(x, name))


def _over_edges(norm: Any, name: str, x: Tensor) -> Tensor:
    check_rows(norm, x)
    wide = x.to(arithmetic_dtype(x.dtype))
    return _normalised(norm, x, torch.ops.sagann.edge_means([wide, wide.new_ones(len(wide), 1)], name))


def _evaluated(norm: Any, name: str, x: Tensor) -> Tensor:
    check_rows(norm, x)
    means, variances = (each.to(arithmetic_dtype(each.dtype)) for each in (norm.running_mean, norm.running_var))
    return normalised(norm, x, means, (variances + norm.eps).rsqrt())


def _normalised(norm: Any, x: Tensor, means: Tensor) -> Tensor:
    return normalised(norm, x, means, torch.ops.sagann.batch_scales(means))
