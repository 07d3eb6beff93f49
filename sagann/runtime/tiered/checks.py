"""Checks of what a store with tiers is given: features, and ids of rows."""

from __future__ import annotations

from torch import Tensor

from sagann.errors import InputError
from sagann.graph.checks import require_distinct, require_ids
from sagann.graph.feature_store import Features, require_no_gradient
from sagann.graph.rows import is_sparse
from sagann.tiering.look_ahead import Array


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


def checked_ids(ids: Tensor, num_rows: int, where: str, *, distinct: bool = False) -> Array:
    """Ids of rows, int64 [n], as an array."""
    (require_distinct if distinct else require_ids)(ids, num_rows, where=where)
    found: Array = ids.detach().cpu().contiguous().numpy()
    return found
