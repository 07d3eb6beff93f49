"""Widths of which a layer cannot make its parameters are refused, with the right line."""

from __future__ import annotations

from typing import Any

import pytest

from sagann.errors import InputError
from sagann.nn import GAT, GCN, GGNN, GIN, GINE, RGCN, SAGE, CommNet, EdgeConv, GatedGCN, GATv2, TransformerConv


@pytest.mark.parametrize("widths", [(-1, 64), ((8, 8), 64), (8, None), (8.0, 64)])
@pytest.mark.parametrize("kind", [CommNet, EdgeConv, GAT, GATv2, GatedGCN, GCN, GIN, SAGE, TransformerConv])
def test_widths_that_pyg_would_find_out_are_refused(kind: Any, widths: tuple[Any, Any]) -> None:
    name = kind.__name__
    message = rf"width of a layer is not a number .*\(in {name}\).*{name}\(graph.num_features, 64\)"
    with pytest.raises(InputError, match=message):
        kind(*widths)


@pytest.mark.parametrize("edge_dim", [-1, None, 2.0])
def test_a_width_of_edges_is_refused_as_others_are(edge_dim: Any) -> None:
    with pytest.raises(InputError, match=r"edge_dim = .*GINE\(graph.num_features, 64, GINE.edge_dim_of\(graph\)\)"):
        GINE(16, 16, edge_dim=edge_dim)


@pytest.mark.parametrize("count", [-1, 0, None, 2.0])
def test_counts_that_are_no_counts_are_refused(count: Any) -> None:
    for kind in (GAT, GATv2, TransformerConv):
        with pytest.raises(InputError, match=rf"needs heads: num_heads = {count}, .*{kind.__name__}"):
            kind(8, 4, num_heads=count)
    with pytest.raises(InputError, match=rf"needs edge types: num_edge_types = {count}, "):
        GGNN(8, num_edge_types=count)
    with pytest.raises(InputError, match=rf"needs edge types: num_relations = {count}, "):
        RGCN(8, 4, num_relations=count)
