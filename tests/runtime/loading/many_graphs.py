"""Several graphs in one, for tests: some without edges, one without vertices, of sizes that differ."""

from __future__ import annotations

import torch
from torch import Tensor

from sagann.graph import Graph, Topology
from sagann.graph.rows import offsets_of

SIZES = (3, 1, 0, 5, 2, 7, 4, 1, 6, 3, 8)


def many_graphs(sizes: tuple[int, ...] = SIZES, *, types: int = 3, seed: int = 0) -> Graph:
    """Graphs of these numbers of vertices, with about two in-edges per vertex, features, labels and targets of graphs, and splits."""
    generator = torch.Generator().manual_seed(seed)
    ptr = offsets_of(torch.tensor(sizes, dtype=torch.int64))
    ends: list[Tensor] = []
    for start, size in zip(ptr.tolist(), sizes, strict=False):
        # A single vertex has no edge.
        count = 2 * size if size > 1 else 0
        ends.append(torch.randint(max(size, 1), (2, count), generator=generator) + start)
    src, dst = torch.cat(ends, 1)
    # Sizes are in the order of time; edges are not.
    shuffled = torch.randperm(len(src), generator=generator)
    count, places = len(sizes), torch.arange(len(sizes))
    return Graph(
        topology=Topology.from_coo(
            src=src[shuffled],
            dst=dst[shuffled],
            num_src=int(ptr[-1]),
            edge_data={
                "type": torch.randint(types, (len(src),), generator=generator),
                "weight": torch.rand(len(src), generator=generator),
            },
        ),
        features=torch.randn(int(ptr[-1]), 6, generator=generator),
        graph_ptr=ptr,
        graph_labels=torch.randint(2, (count,), generator=generator),
        num_graph_classes=2,
        graph_targets=torch.randn(count, 2, generator=generator),
        graph_splits={"train": places % 2 == 0, "val": places % 4 == 1, "test": places % 4 == 3},
        num_edge_types=types,
        name="many",
    )
