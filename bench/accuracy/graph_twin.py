"""PyG's twin of a model of whole graphs and of its run: PyG's layers, batches and pooling, a training loop of its own.

Nothing of sagann's layers, kernels, batches, Trainer or metrics is used here, so that a mistake in them shows.
"""

from __future__ import annotations

import copy
import warnings
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench.accuracy.experiments import Experiment
from sagann.graph import Graph
from sagann.nn import ModelConfig

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    from torch_geometric.data import Data
    from torch_geometric.loader import DataLoader
    from torch_geometric.nn import GINConv, global_add_pool


class GraphStack(nn.Module):
    """GIN with sums for pooling, and a head of two linear maps; ReLU between layers."""

    def __init__(self, config: ModelConfig, num_features: int, num_outputs: int) -> None:
        super().__init__()
        width = config.hidden
        dims = [num_features, *[width] * config.layers]
        self.convs = nn.ModuleList(GINConv(_mlp(a, b), train_eps=True) for a, b in pairwise(dims))
        self.head = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, num_outputs))

    def forward(self, batch: Data) -> Tensor:
        x = batch.x
        for hop, conv in enumerate(self.convs):
            x = conv(F.relu(x) if hop else x, batch.edge_index)
        return self.head(global_add_pool(x, batch.batch, batch.num_graphs))


def _mlp(in_dim: int, out_dim: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(in_dim, out_dim), nn.ReLU(), nn.Linear(out_dim, out_dim))


def run_graph_twin(experiment: Experiment, graph: Graph, seed: int) -> float:
    """Train PyG's twin of a GIN that is pooled by sums, and return the mean absolute error of the test graphs, in percent."""
    torch.manual_seed(seed)
    config, train = experiment.model, experiment.train_config(seed)
    assert (config.model, config.pool, config.dropout) == ("gin", "sum", 0.0)
    everything = _separate(graph)
    loaders = {
        name: DataLoader(
            [everything[g] for g in mask.nonzero().squeeze(1).tolist()],
            train.graphs_per_batch,
            shuffle=name == "train",
        )
        for name, mask in graph.graph_splits.items()
    }
    model = GraphStack(config, graph.num_features, graph.graphs.num_targets)
    optimizer = torch.optim.Adam(model.parameters(), lr=train.lr, weight_decay=train.weight_decay)
    best, weights = float("inf"), model.state_dict()
    for epoch in range(1, train.epochs + 1):
        model.train()
        for batch in loaders["train"]:
            optimizer.zero_grad()
            F.mse_loss(model(batch).squeeze(1), batch.y).backward()
            optimizer.step()
        if epoch % train.eval_every == 0 or epoch == train.epochs:
            value = _mean(model, loaders["val"], F.mse_loss)
            if value < best:
                best, weights = value, copy.deepcopy(model.state_dict())
    model.load_state_dict(weights)
    return 100 * _mean(model, loaders["test"], F.l1_loss)


def _separate(graph: Graph) -> list[Data]:
    """Each graph as an object of PyG."""
    assert graph.graph_ptr is not None
    assert graph.graph_targets is not None
    edges = torch.stack([graph.topology.indices.long(), graph.topology.edge_dst().long()])
    bounds = graph.graph_ptr.tolist()
    # Edges are in the order of their destinations.
    ends = graph.topology.indptr[graph.graph_ptr].tolist()
    features = graph.features
    return [
        Data(x=features[first:last], edge_index=edges[:, start:end] - first, y=graph.graph_targets[g])
        for g, ((first, last), (start, end)) in enumerate(zip(pairwise(bounds), pairwise(ends), strict=True))
    ]


@torch.no_grad()
def _mean(model: nn.Module, loader: DataLoader, loss: object) -> float:
    """The mean of a loss over the graphs of a loader."""
    model.eval()
    sums = [float(loss(model(batch).squeeze(1), batch.y, reduction="sum")) for batch in loader]
    return sum(sums) / len(loader.dataset)
