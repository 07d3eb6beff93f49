"""PyG's twin of a model and of a run: the same architecture and settings, PyG's layers, batches and pooling, a training loop of its own.

Nothing of sagann's layers, kernels, batches, Trainer or metrics is used here, so that a mistake in them shows.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator
from itertools import pairwise

import scipy.sparse
import torch
import torch.nn.functional as F
from sklearn.metrics import roc_auc_score
from torch import Tensor, nn

from bench.accuracy.experiments import Experiment
from sagann.graph import Graph
from sagann.nn import ModelConfig
from sagann.train import TrainConfig

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    from torch_geometric import EdgeIndex
    from torch_geometric.data import Data
    from torch_geometric.loader import DataLoader, NeighborLoader
    from torch_geometric.nn import GCNConv, GINConv, RGCNConv, SAGEConv, global_add_pool

Inputs = tuple[Tensor | None, Tensor, Tensor | None]
"Features, edges, and the types of edges."
Step = tuple[Inputs, Tensor, Tensor]
"The model's inputs, the rows of its outputs that a step trains, and their labels."


class Encoder(nn.Module):
    """Linear in the features, dense or sparse, or a row per vertex."""

    def __init__(self, config: ModelConfig, graph: Graph) -> None:
        super().__init__()
        rows = graph.num_features or graph.num_vertices
        self.weight = nn.Parameter(torch.empty(rows, config.hidden))
        nn.init.xavier_uniform_(self.weight)
        self.bias = nn.Parameter(torch.zeros(config.hidden)) if graph.num_features else None

    def forward(self, x: Tensor | None) -> Tensor:
        if x is None:
            return self.weight
        assert self.bias is not None
        return x @ self.weight + self.bias


class Stack(nn.Module):
    """PyG layers with dropout before, and ReLU after each but the last."""

    def __init__(self, config: ModelConfig, graph: Graph) -> None:
        super().__init__()
        self.config = config
        encoded = config.encoder == "linear" or not graph.num_features
        self.encoder = Encoder(config, graph) if encoded else None
        in_dim = config.hidden if encoded else graph.num_features
        dims = [in_dim, *[config.hidden] * (config.layers - 1), graph.num_classes]
        layer = SAGEConv if config.model == "sage" else GCNConv
        self.convs = nn.ModuleList(layer(*pair) for pair in pairwise(dims))

    def forward(self, x: Tensor | None, edge_index: Tensor, edge_type: Tensor | None) -> Tensor:
        if self.encoder is not None:
            x = F.relu(self.encoder(x))
        assert x is not None
        for hop, conv in enumerate(self.convs):
            x = conv(F.dropout(x, self.config.dropout, self.training), edge_index)
            x = x if hop == len(self.convs) - 1 else F.relu(x)
        return x


class ResidualStack(Stack):
    """ROC, Sec. 7.5, of GCNConv: no activation but the convolution's own."""

    def __init__(self, config: ModelConfig, graph: Graph) -> None:
        super().__init__(config, graph)
        sizes = [(conv.in_channels, conv.out_channels) for conv in self.convs]
        self.shortcuts = nn.ModuleList(nn.Identity() if a == b else nn.Linear(a, b, bias=False) for a, b in sizes)

    def forward(self, x: Tensor | None, edge_index: Tensor, edge_type: Tensor | None) -> Tensor:
        assert x is not None
        last = len(self.convs) - 1
        for hop, (conv, shortcut) in enumerate(zip(self.convs, self.shortcuts, strict=True)):
            x = F.dropout(x, self.config.dropout, self.training)
            convolved = conv(x, edge_index)
            x = (convolved if hop == last else F.relu(convolved)) + shortcut(x)
        return x


class TypedGatedStack(nn.Module):
    """GG-NN with edge types: PyG has no such layer, but the sum of RGCNConv and a GRU cell make it."""

    def __init__(self, config: ModelConfig, graph: Graph) -> None:
        super().__init__()
        self.config = config
        self.encoder = Encoder(config, graph)
        width = config.hidden
        self.messages = RGCNConv(width, width, graph.num_edge_types, aggr="add", root_weight=False, bias=False)
        self.gru = nn.GRUCell(width, width)
        self.decoder = nn.Linear(width, graph.num_classes)

    def forward(self, x: Tensor | None, edge_index: Tensor, edge_type: Tensor | None) -> Tensor:
        h = self.encoder(x)
        for _ in range(self.config.layers):
            h = F.dropout(h, self.config.dropout, self.training)
            h = self.gru(self.messages(h, edge_index, edge_type), h)
        return self.decoder(F.dropout(h, self.config.dropout, self.training))


class GraphStack(nn.Module):
    """GIN with sums for pooling, and a head of two linear maps; ReLU between layers."""

    def __init__(self, config: ModelConfig, num_features: int, num_outputs: int) -> None:
        super().__init__()
        width = config.hidden

        def mlp(in_dim: int, out_dim: int) -> nn.Sequential:
            return nn.Sequential(nn.Linear(in_dim, width), nn.ReLU(), nn.Linear(width, out_dim))

        dims = [num_features, *[width] * config.layers]
        self.convs = nn.ModuleList(GINConv(mlp(a, b), train_eps=True) for a, b in pairwise(dims))
        self.head = mlp(width, num_outputs)

    def forward(self, batch: Data) -> Tensor:
        x = batch.x
        for hop, conv in enumerate(self.convs):
            x = conv(F.relu(x) if hop else x, batch.edge_index)
        return self.head(global_add_pool(x, batch.batch, batch.num_graphs)).squeeze(1)


def run_twin(experiment: Experiment, graph: Graph, seed: int) -> float:
    """Train PyG's twin and return its test metric, in percent, at the best validation epoch."""
    torch.manual_seed(seed)
    config, train = experiment.model, experiment.train_config(seed)
    if experiment.section == "graphs":
        return _run_graphs(config, train, graph)
    model = {"ggnn": TypedGatedStack, "residual-gcn": ResidualStack}.get(config.model, Stack)(config, graph)
    inputs = _inputs(graph, dense=not (graph.features is None or config.encoder == "linear"))
    assert graph.labels is not None
    mask = graph.splits["train"]
    whole: list[Step] = [(inputs, mask, graph.labels[mask])]
    batches = (lambda: whole) if train.sample is None else (lambda: _sampled(inputs, graph, train))

    def losses() -> Iterator[Tensor]:
        for batch, seeds, labels in batches():
            yield _loss(model(*batch)[seeds], labels)

    def measure(split: str, metric: str) -> float:
        return _measure(model(*inputs), graph, split, metric)

    metric = (train.monitor or "val/accuracy").partition("/")[2]
    _fit(model, train, losses, (lambda: measure("val", metric)) if "val" in graph.splits else None)
    with torch.no_grad():
        return 100 * measure("test", experiment.metric)


def _run_graphs(config: ModelConfig, train: TrainConfig, graph: Graph) -> float:
    """The mean absolute error of the test graphs, in percent, of a GIN that is pooled by sums."""
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

    def mean(split: str, loss: Callable[..., Tensor]) -> float:
        sums = [float(loss(model(batch), batch.y, reduction="sum")) for batch in loaders[split]]
        return sum(sums) / len(loaders[split].dataset)

    def losses() -> Iterator[Tensor]:
        return (F.mse_loss(model(batch), batch.y) for batch in loaders["train"])

    _fit(model, train, losses, lambda: -mean("val", F.mse_loss))
    with torch.no_grad():
        return 100 * mean("test", F.l1_loss)


def _fit(
    model: nn.Module, train: TrainConfig, losses: Callable[[], Iterator[Tensor]], value: Callable[[], float] | None
) -> None:
    """Train, and leave the model in evaluation with the weights of the highest value; without one, with the last weights."""
    optimizer = torch.optim.Adam(model.parameters(), lr=train.lr, weight_decay=train.weight_decay)
    best, weights = -float("inf"), model.state_dict()
    for epoch in range(1, train.epochs + 1):
        model.train()
        for loss in losses():
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        model.eval()
        if value is not None and (epoch % train.eval_every == 0 or epoch == train.epochs):
            with torch.no_grad():
                found = value()
            if found >= best:
                best, weights = found, copy.deepcopy(model.state_dict())
    model.load_state_dict(weights)


def _sampled(inputs: Inputs, graph: Graph, train: TrainConfig) -> Iterator[Step]:
    """An epoch of PyG's NeighborLoader. Rows of sparse features are taken by SciPy."""
    x, labels = inputs[0], graph.labels
    assert train.sample is not None
    assert labels is not None
    assert x is not None
    features = scipy.sparse.csr_matrix((x.values(), x.col_indices(), x.crow_indices()), shape=tuple(x.shape))
    loader = NeighborLoader(
        Data(edge_index=_edges(graph), num_nodes=graph.num_vertices),
        list(train.sample),
        input_nodes=graph.splits["train"],
        batch_size=train.seeds_per_batch,
        shuffle=True,
    )
    for batch in loader:
        rows = features[batch.n_id.numpy()]
        arrays = (torch.from_numpy(array).long() for array in (rows.indptr, rows.indices))
        x = torch.sparse_csr_tensor(*arrays, torch.from_numpy(rows.data), size=rows.shape)
        seeds = torch.arange(batch.batch_size)
        yield (x, batch.edge_index, None), seeds, labels[batch.n_id[seeds]]


def _separate(graph: Graph) -> list[Data]:
    """Each graph as an object of PyG."""
    assert graph.graph_ptr is not None
    assert graph.graph_targets is not None
    edges, bounds = _edges(graph), graph.graph_ptr.tolist()
    # Edges are in the order of their destinations.
    ends = graph.topology.indptr[graph.graph_ptr].tolist()
    return [
        Data(x=graph.features[first:last], edge_index=edges[:, start:end] - first, y=graph.graph_targets[g])
        for g, ((first, last), (start, end)) in enumerate(zip(pairwise(bounds), pairwise(ends), strict=True))
    ]


def _inputs(graph: Graph, *, dense: bool) -> Inputs:
    edges = _edges(graph)
    size = (graph.num_vertices, graph.num_vertices)
    edge_type = graph.topology.edge_data.get("type")
    # PyG's fast form where it may be used: sorted by destination.
    edge_index = edges if edge_type is not None else EdgeIndex(edges, sparse_size=size, sort_order="col")
    x = graph.features.to_dense() if dense and graph.features is not None else graph.features
    return x, edge_index, None if edge_type is None else edge_type.long()


def _edges(graph: Graph) -> Tensor:
    """Sources and destinations, int64 [2, num_edges], ordered by destination."""
    return torch.stack([graph.topology.indices.long(), graph.topology.edge_dst().long()])


def _loss(logits: Tensor, labels: Tensor) -> Tensor:
    if labels.ndim == 2:
        return F.binary_cross_entropy_with_logits(logits, labels.float())
    return F.cross_entropy(logits, labels)


def _measure(logits: Tensor, graph: Graph, split: str, metric: str) -> float:
    assert graph.labels is not None
    mask = graph.splits[split]
    logits, labels = logits[mask], graph.labels[mask]
    if metric == "accuracy":
        return float((logits.argmax(1) == labels).float().mean())
    if labels.ndim == 1:
        return float(roc_auc_score(labels.numpy(), logits.softmax(1)[:, 1].numpy()))
    # A class that nobody, or everybody, here belongs to has no curve.
    defined = (labels != labels[0]).any(0)
    return float(roc_auc_score(labels[:, defined].numpy(), logits[:, defined].sigmoid().numpy(), average="macro"))
