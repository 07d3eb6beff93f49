"""Hops: the number of topologies that a model walks."""

from __future__ import annotations

from torch import nn

from sagann.errors import InputError
from sagann.saga.layer import SagaLayer


def count_hops(model: nn.Module) -> int:
    """Number of topologies a model walks: its ``num_hops``, or its number of SAGA layers.

    Raises:
        InputError: ``num_hops`` is not an integer of at least 0.
    """
    num_hops = getattr(model, "num_hops", None)
    if num_hops is None:
        return sum(isinstance(module, SagaLayer) for module in model.modules())
    if isinstance(num_hops, bool) or not isinstance(num_hops, int) or num_hops < 0:
        raise InputError(
            "a model's num_hops is no count",
            value=f"{num_hops!r}, expected an integer of at least 0",
            where=f"{type(model).__name__}.num_hops",
            fix="Set it to the number of layers that walk the graph, or leave it out.",
        )
    return num_hops
