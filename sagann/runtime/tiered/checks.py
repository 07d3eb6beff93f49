"""Checks of what a store with tiers is given: features, ids, and an order of rows."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from sagann.errors import InputError, require_type
from sagann.graph.checks import check_ids, numbered, wrong_form
from sagann.graph.feature_store import Features, require_no_gradient
from sagann.graph.rows import is_sparse
from sagann.tiering.cache import Array


def require_on_host(features: Features, where: str) -> None:
    """Refuse features that have no tiers: sparse ones, those that lie on a device, and those that learn."""
    if is_sparse(features):
        raise InputError(
            f"sparse features have no tiers: rows of different sizes (in {where})",
            hint="Make them dense with .to_dense(), or train with the sparse ones in memory.",
        )
    if isinstance(features, Tensor) and features.device.type != "cpu":
        raise InputError(
            "features are not in memory of the processor: a tensor on a device of type "
            f"'{features.device.type}' (in {where})",
            hint="Index the tensor itself, or move it with .to('cpu').",
        )
    require_no_gradient(features, where=where)


def checked_ids(ids: Tensor, num_rows: int, where: str) -> Array:
    """Ids of rows, int64 [n], as an array."""
    require_type(ids, Tensor, where=where, hint="Convert the ids with torch.as_tensor.")
    if ids.dtype != torch.int64 or ids.ndim != 1:
        raise wrong_form(ids, "torch.int64 [n]", where=where, hint="Pass ids with .to(torch.int64).")
    found: Array = ids.detach().cpu().contiguous().numpy()
    check_ids(found, num_rows, "vertex", where=numbered(where, "position"))
    return found


def checked_order(hottest: Tensor, num_rows: int, where: str) -> Array:
    """Distinct ids of rows, the hottest first, as an array."""
    hint = "Pass distinct ids of vertices as int64 [n], the hottest first."
    require_type(hottest, Tensor, where=where, hint=hint)
    if hottest.dtype != torch.int64 or hottest.ndim != 1:
        raise wrong_form(hottest, "torch.int64 [n]", where=where, hint=hint)
    order: Array = hottest.detach().cpu().contiguous().numpy()
    check_ids(order, num_rows, "vertex", where=numbered(where, "position"))
    is_known = np.zeros(num_rows, np.bool_)
    is_known[order] = True
    if np.count_nonzero(is_known) != len(order):
        raise InputError(
            f"vertex repeated: {len(order) - np.count_nonzero(is_known)} of {len(order)} ids stand a second "
            f"time (in {where})",
            hint=hint,
        )
    return order
