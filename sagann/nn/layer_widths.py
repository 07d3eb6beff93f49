"""Widths of layers, numbers of heads and relations, and shares: refused where a layer can do nothing with them."""

from __future__ import annotations

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
    for name, value in widths.items():
        if isinstance(value, Integral) and int(value) >= 0:
            continue
        kind = type(layer).__name__
        right = ", ".join(_OF_GRAPH.get(each, "64") for each in widths)
        raise InputError(
            f"the width of a layer is not a number of columns: {name} = {shown(value)}, expected an integer of "
            f"at least 0 (in {kind})",
            hint=f"Pass every width, as {kind}({right}): a layer makes its parameters when it is made, and finds out no width "
            "later, as PyG's -1 does. Sources and destinations have one width.",
        )


def require_counts(layer: nn.Module, *, of: str, hint: str, **counts: object) -> None:
    """Refuse numbers of heads or of relations that are no integers from 1 to 2^31 - 1.

    Args:
        layer: the layer that is being made.
        of: what is counted, for errors.
        hint: the advice of errors.
        counts: values by the names of the constructor's arguments.
    Raises:
        InputError: a count is refused.
    """
    for name, value in counts.items():
        if not isinstance(value, Integral) or not 1 <= int(value) < 2**31:
            raise InputError(
                f"the layer needs {of}: {name} = {shown(value)}, expected an integer from 1 to 2^31 - 1 (in "
                f"{type(layer).__name__})",
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
