"""Maps that stay on the edges: what a pass reads of their matrices lies as it is read."""

from __future__ import annotations

import torch
from torch import fx

from sagann.compiler.composites import most_entries
from sagann.compiler.operators import LINEAR
from sagann.compiler.rewrite import insert, linear_parts

_aten = torch.ops.aten


def transpose_matrices(module: fx.GraphModule) -> None:
    """Transpose the small matrices that edges multiply by before the pass, not at every vertex; in place.

    Args:
        module: a classified graph, after the passes that take maps off the edges.
    """
    for node in list(module.graph.nodes):
        linear = linear_parts(node)
        if linear is None or node.target is not LINEAR or node.meta["place"] != "edge":
            continue
        x, weight = linear
        if weight.meta["val"].numel() <= most_entries(weight.meta["val"].device):
            with module.graph.inserting_before(node):
                matrix = insert(module, node, _aten.t.default, weight)
                mapped = insert(module, node, _aten.mm.default, x, matrix)
            node.replace_all_uses_with(mapped)
    module.graph.eliminate_dead_code()
