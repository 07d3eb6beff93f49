"""Widths of layers, numbers of heads and relations, and shares: refused where a layer can do nothing with them."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Integral

from torch import nn

from sagann.errors import InputError, shown

_OF_GRAPH = {"in_dim": "graph.num_features", "edge_dim": "GINE.edge_dim_of(graph)"}
"Where a graph states a width, by the name of the constructor's argument."


def require_widths(layer: nn.Module, **widths: object) -> None:
    """Refuse widths that are no integers of at least 0, such as PyG's -1 and its pair of widths.

    Args:
        layer: the layer that is being made.
        widths: values by the names of the constructor's arguments.
    Raises:
        InputError: a width is refused; the message has the right line.
    """
    kind = type(layer).__name__
    right = ", ".join(_OF_GRAPH.get(each, "64") for each in widths)
    hint = (
        f"Pass every width, as {kind}({right}): a layer makes its parameters when it is made, and finds out no width "
        "later, as PyG's -1 does. Sources and destinations have one width."
    )
    _require_integers(layer, widths, 0, "the width of a layer is not a number of columns", hint)


def require_counts(layer: nn.Module, *, of: str, hint: str, **counts: object) -> None:
    """Refuse numbers of heads or of relations, which errors call ``of``, that are no integers of at least 1."""
    _require_integers(layer, counts, 1, f"the layer needs {of}", hint)


def _require_integers(layer: nn.Module, values: Mapping[str, object], least: int, problem: str, hint: str) -> None:
    for name, value in values.items():
        if not isinstance(value, Integral) or int(value) < least:
            raise InputError(
                f"{problem}: {name} = {shown(value)}, expected an integer of at least {least} (in {type(layer).__name__})",
                hint=hint,
            )


def require_share(layer: nn.Module, **shares: float) -> None:
    """Refuse arguments of a layer's constructor that are no numbers from 0 to 1."""
    for name, value in shares.items():
        if not 0 <= value <= 1:
            raise InputError(
                f"a share out of range: {name} = {value}, expected a number from 0 to 1 (in "
                f"{type(layer).__name__})",
                hint=f"Change {name}.",
            )
