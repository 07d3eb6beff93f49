"""Features of a streamed model: a tensor, or a feature store; both are read by intervals."""

from __future__ import annotations

import torch
from torch import Tensor

from sagann.errors import InputError, require_type
from sagann.graph.feature_store import Features, FeatureStore, is_constant, version_of
from sagann.graph.rows import is_sparse
from sagann.runtime.places import require_on_host

_HINT = "Pass features with a row for every vertex of the graph that the model is streamed over."


def check_features(x: Features, num_vertices: int, device: torch.device) -> None:
    """Refuse features with another number of rows, a layout that is not streamed, or on a device."""
    require_type(x, (Tensor, FeatureStore), where="StreamedModel.x", hint=_HINT)
    if isinstance(x, Tensor):
        require_on_host(x.device, "features")
        is_read = x.layout == torch.strided or (is_sparse(x) and device.type == "cpu" and not x.requires_grad)
        if is_read and x.dim() > 0 and len(x) == num_vertices:
            return
        value = f"{list(x.shape)} of layout {x.layout}"
    else:
        if x.num_rows == num_vertices:
            return
        value = f"{[x.num_rows, *x.row_shape]} of a {type(x).__name__}"
    raise InputError(
        f"vertex features do not fit the graph: {value}, expected rows of {num_vertices} vertices, dense or "
        "(on the CPU, without a gradient) torch.sparse_csr (in StreamedModel.x)",
        hint=_HINT,
    )


def needs_gradient(x: Features | None) -> bool:
    """Whether the features get a gradient; the rows of a feature store never do."""
    return isinstance(x, Tensor) and x.requires_grad


def are_constant(x: Features) -> bool:
    """Whether results that depend on the features may be kept: their owner has declared them constant, and changes are counted."""
    return is_constant(x) and feature_version(x) >= 0


def feature_version(x: Features) -> int:
    """:func:`version_of` the features; 0 for a feature store."""
    return version_of(x) if isinstance(x, Tensor) else 0


def like_on(x: Features, device: torch.device) -> Tensor:
    """A tensor of the form of the features, to capture a model with on the device that computes."""
    if isinstance(x, Tensor):
        return x if x.device == device else x.new_empty((1, *x.shape[1:]), device=device)
    return torch.empty((1, *x.row_shape), dtype=x.dtype, device=device)
