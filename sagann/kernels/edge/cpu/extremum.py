"""The gradient of a maximum (or minimum) of source rows: each feature of a destination goes back to one source.

The kernel moves one number for every feature of a destination, where a pass would read two rows for every edge. Threads share
out the features, not the rows, so no two threads write to the same number, and the order of additions is fixed.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from sagann.graph.topology import Topology
from sagann.kernels.edge.cpu.launch import compile_source, launch
from sagann.kernels.edge.function import KINDS
from sagann.kernels.memory import empty
from sagann.kernels.naive import has_hubs

# One cache line of float32, so that threads hardly share lines.
FEATURES_OF_ITEM = 16
# Rows ahead of the current row that are prefetched. Rows are too far apart for the processor's own prefetcher.
AHEAD = 8

_SOURCE = '''"""The gradient of an extremum of source rows; generated, and free to be read."""

from sagann.kernels.edge.cpu import block, elementwise
from sagann.jit import compiled_callback

other_end = block.indexer("{index_kind}")
id_at = block.indexer("{id_kind}")
prefetch_ids = block.prefetcher("{id_kind}", {step})
prefetch_grad = block.prefetcher("{kind}", {step})
load = block.loader("{kind}", 1, 1)
load_out = block.loader("{out_kind}", 1, 1)
to_out = elementwise.caster("{out_kind}")
add = elementwise.OPERATIONS["add"]


@compiled_callback
def kernel(p_args):
    p_counter = block.argument(p_args, 0)
    num_items = block.argument(p_args, 1)
    num_rows = block.argument(p_args, 2)
    num_features = block.argument(p_args, 3)
    p_indices = block.argument(p_args, 4)
    p_edge = block.argument(p_args, 5)
    p_grad = block.argument(p_args, 6)
    p_out = block.argument(p_args, 7)
    while True:
        item = block.claim(p_counter)
        if item >= num_items:
            break
        last = block.smaller((item + 1) * {step}, num_features)
        for row in range(num_rows):
            ahead = block.smaller(row + {ahead}, num_rows - 1) * num_features + item * {step}
            prefetch_ids(p_edge, ahead)
            prefetch_grad(p_grad, ahead)
            for at in range(row * num_features + item * {step}, row * num_features + last):
                edge = id_at(p_edge, at)
                if edge >= 0:
                    to = other_end(p_indices, edge) * num_features + at - row * num_features
                    block.store(p_out, to, add(load_out(p_out, to), to_out(load(p_grad, at))))
'''


def scatter_extremum(topology: Topology, edge: Tensor, grad: Tensor) -> Tensor:
    """Add each destination's gradient to the source that the extremum came from, feature by feature: [num_src, ...].

    ``edge`` is the id of the edge that attains the extremum, or -1: int32 or int64 [num_dst, ...]. ``grad`` is float32 or
    float64.
    """
    # Additions to a source of very many edges are as many terms of a sum, one after the other.
    dtype = torch.float64 if has_hubs(topology, "src") else grad.dtype
    out = empty((topology.num_src, *grad.shape[1:]), dtype).zero_()
    num_features = grad[0].numel() if len(grad) else 0
    if grad.numel() == 0 or topology.num_edges == 0:
        return out.to(grad.dtype)
    edge, grad, indices = edge.contiguous(), grad.resolve_neg().contiguous(), topology.indices.contiguous()
    num_items = -(-num_features // FEATURES_OF_ITEM)
    arrays = [indices, edge, grad, out]
    args = [num_items, len(grad), num_features, *(array.data_ptr() for array in arrays)]
    kinds = (KINDS[array.dtype] for array in arrays)
    launch(_kernel(*kinds), args, num_items=num_items)
    return out.to(grad.dtype)


@cache
def _kernel(index_kind: str, id_kind: str, kind: str, out_kind: str) -> int:
    kinds = {"index_kind": index_kind, "id_kind": id_kind, "kind": kind, "out_kind": out_kind}
    return compile_source(_SOURCE.format(**kinds, step=FEATURES_OF_ITEM, ahead=AHEAD))
