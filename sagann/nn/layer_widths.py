"""Widths of layers: refused where a layer cannot make its parameters of them."""

from __future__ import annotations

from numbers import Integral

from torch import nn

from sagann.errors import InputError, shown


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
        raise InputError(
            "the width of a layer is not a number of columns",
            value=f"{name} = {shown(value)}, expected an integer of at least 0",
            where=kind,
            fix=f"Pass both widths, as {kind}(graph.num_features, 64): a layer makes its parameters when it is made, and finds out no width "
            "later, as PyG's -1 does. Sources and destinations have one width.",
        )
