"""Widths of which a layer cannot make its parameters are refused, with the right line."""

from __future__ import annotations

from typing import Any

import pytest

from sagann.errors import InputError
from sagann.nn import GAT, GCN, GIN, SAGE, CommNet, EdgeConv, GatedGCN, GATv2, TransformerConv


@pytest.mark.parametrize("widths", [(-1, 64), ((8, 8), 64), (8, None), (8.0, 64)])
@pytest.mark.parametrize("kind", [CommNet, EdgeConv, GAT, GATv2, GatedGCN, GCN, GIN, SAGE, TransformerConv])
def test_widths_that_pyg_would_find_out_are_refused(kind: Any, widths: tuple[Any, Any]) -> None:
    name = kind.__name__
    message = rf"width of a layer is not a number .*\(in {name}\).*{name}\(graph.num_features, 64\)"
    with pytest.raises(InputError, match=message):
        kind(*widths)
