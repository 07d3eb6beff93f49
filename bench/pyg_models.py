"""Models of PyTorch Geometric as they are: epochs with PyG, and the same models trained by sagann.

    python -m bench.pyg_models [--graphs pubmed reddit-small] [--models GCN GAT ...] > bench/results/pyg_models.md

Two copies of each model take turns: one is called as model(x, edge_index), the other one by sagann. An epoch is forward, cross-entropy on half
of the vertices, backward and a step of Adam, with the model's dropout. The first epoch of sagann includes what comes before: reading the model,
preparing the graph, and loading kernels from the cache, or compiling them.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any

import torch
from torch import nn

from bench.epochs.graphs import SHAPES, graph_of, stored_graph
from bench.pages import command_line, head, parser_of, row
from bench.standalone.training import Training
from bench.timing import alternate, median_ratio
from sagann.graph import Graph
from sagann.interop import from_pyg_model
from sagann.runtime.processor import processor_name

COLUMNS = "graph | model | PyG, s | sagann, s | times as fast | first epoch, s"


def models_for(graph: Graph, hidden: int) -> Mapping[str, Callable[[], nn.Module]]:
    """Models of two layers by name, as PyG has them ready."""
    from torch_geometric.nn import GAT, GCN, GIN, PNA, EdgeCNN, GraphSAGE

    sizes: dict[str, Any] = {
        "in_channels": graph.num_features,
        "hidden_channels": hidden,
        "num_layers": 2,
        "out_channels": graph.num_classes,
        "dropout": 0.5,
    }
    degrees = torch.bincount(graph.topology.in_degrees())
    return {
        "GCN": lambda: GCN(**sizes),
        "GraphSAGE": lambda: GraphSAGE(**sizes),
        "GIN": lambda: GIN(**sizes),
        "GAT": lambda: GAT(**sizes, heads=8),
        "GAT v2": lambda: GAT(**sizes, heads=8, v2=True),
        "EdgeCNN": lambda: EdgeCNN(**sizes),
        "PNA": lambda: PNA(
            **sizes, aggregators=["mean", "max", "std"], scalers=["identity", "amplification"], deg=degrees
        ),
    }


def measured(graph: Graph, make: Callable[[], nn.Module], rounds: int) -> list[str]:
    """Seconds of an epoch with PyG and with sagann, their ratio, and sagann's first epoch."""
    topology, labels = graph.topology, graph.labels
    assert labels is not None
    assert isinstance(graph.features, torch.Tensor)
    mask = torch.arange(graph.num_vertices) % 2 == 0
    edges = torch.stack([topology.indices.long(), topology.edge_dst().long()])
    theirs = make()
    ours = copy.deepcopy(theirs)
    began_s = time.perf_counter()
    model = from_pyg_model(ours, graph)
    prepared = model.prepare(graph)
    hops = prepared.hops(model.num_hops)
    epochs = {
        "PyG": Training(lambda: theirs(graph.features, edges), theirs.train(), labels, mask, lr=0.01).run,
        "sagann": Training(lambda: model(hops, prepared.features), ours.train(), labels, mask, lr=0.01).run,
    }
    epochs["sagann"]()
    first_s = time.perf_counter() - began_s
    found = alternate(epochs, rounds=rounds)
    ratio = median_ratio(found["PyG"], found["sagann"])
    return [f"{median(found['PyG']):.3f}", f"{median(found['sagann']):.3f}", f"{ratio:.2f}", f"{first_s:.1f}"]


def main(arguments: Sequence[str] | None = None) -> None:
    args = parser_of(
        __doc__,
        {"hidden": 128, "rounds": 5, "threads": 2},
        graphs=(["reddit-small"], ", ".join(["pubmed", *SHAPES])),
        models=(["GCN", "GraphSAGE", "GIN", "GAT", "GAT v2"], "models"),
    ).parse_args(arguments)
    torch.set_num_threads(args.threads)
    import torch_geometric

    print(
        f"# Models of PyTorch Geometric, as they are\n\n`{command_line('bench.pyg_models', arguments)}`; {processor_name()}, {args.threads} threads; PyTorch {torch.__version__}, "
        f"PyG {torch_geometric.__version__}.\nModels of `torch_geometric.nn` with 2 layers, hidden {args.hidden}, dropout 0.5; with PyG they are called "
        "with `edge_index`. Ratios are medians of the rounds'.\nThe first epoch of sagann includes reading the model, preparing the graph, and loading or "
        "compiling kernels.\n"
    )
    print(head(COLUMNS, words=("model",)), flush=True)
    for name in args.graphs:
        graph = graph_of(stored_graph(name))
        for model in args.models:
            torch.manual_seed(0)
            cells = measured(graph, models_for(graph, args.hidden)[model], args.rounds)
            print(row([name, model, *cells]), flush=True)


if __name__ == "__main__":
    main()
