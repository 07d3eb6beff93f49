"""DGL on a graph that may be larger than memory: unweighted sums over 32-bit ids. Run by DGL's own Python, without sagann.

Rows are scaled before and after the sum, on the narrow side, which is DGL's fastest and leanest form of a GCN layer; the
scales are those of in-degrees at both ends, as the model wants them.
"""

from __future__ import annotations

import dgl
import dgl.function as fn
import torch
import torch.nn.functional as F
from large import destinations, open_dataset, specification, train, weights_of
from torch import Tensor, nn


class Layer(nn.Module):
    """One layer, with its first weights."""

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(weight), nn.Parameter(bias)

    def forward(self, graph: dgl.DGLGraph, scale: Tensor, x: Tensor) -> Tensor:
        """The scaled sum of mapped rows."""
        with graph.local_scope():
            graph.srcdata["h"] = F.linear(x, self.weight) * scale
            graph.update_all(fn.copy_u("h", "m"), fn.sum("m", "h"))
            return graph.dstdata["h"] * scale + self.bias


def main() -> None:
    """Load, and train."""
    asked = specification()
    dataset = open_dataset(asked["dataset"])
    graph = dgl.graph((dataset.indices, destinations(dataset, torch.int32)), num_nodes=len(dataset.labels))
    graph = dgl.add_self_loop(graph)
    scale = graph.in_degrees().to(torch.float32).rsqrt()[:, None]
    first, second = (Layer(weight, bias) for weight, bias in weights_of(asked["weights"]))
    parameters = [*first.parameters(), *second.parameters()]
    train(lambda: second(graph, scale, F.relu(first(graph, scale, dataset.features))), parameters, dataset, asked)


if __name__ == "__main__":
    main()
