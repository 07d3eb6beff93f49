"""The graphs of the epoch benchmark, written once for all contestants."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from bench.standalone.stored import Stored, write_stored
from sagann.graph import Graph, Topology, random_split, remove_self_loops, symmetrise
from sagann.graph.rmat import rmat_edges
from sagann.nn import ModelConfig, build_model
from sagann.storage import read_npz

REHEARSAL_VERTICES = 4_500
"Enough for a vertex of so many edges that a kernel cuts it up, so that what does this is rehearsed too."
SEED = 0


class Shape(NamedTuple):
    """Sizes of a graph. One that is generated is undirected, has power-law degrees, no multi-edges and no self-loops."""

    vertices: int
    edges: int
    "Directed edges; an even number where the graph is generated, because every edge has its reverse."
    features: int
    classes: int


SHAPES = {
    "reddit-small": Shape(vertices=46_600, edges=1_400_000, features=602, classes=41),
    "reddit-middle": Shape(vertices=233_000, edges=23_200_000, features=602, classes=41),
    "tiny": Shape(vertices=200, edges=1_000, features=24, classes=5),
}
"Shapes of the papers' graphs (NGra, Table 1), and one for trying things out."
REAL = ("cora", "pubmed", "amazon_computers", "coauthor_cs", "facebook10")
DATASETS = ("pubmed", "amazon_computers", "facebook10", "reddit-small", "reddit-middle")
USUAL = (*REAL, "reddit-small")
SPARSE_BELOW = 0.5
"Features of a smaller part of non-zeros are sparse to sagann, as its importers give them."


def stored_graph(name: str) -> Stored:
    """A real dataset, or a generated graph by the name of its shape.

    Real graphs are made undirected and lose their self-loops, as in the papers that use them; sparse features
    become dense, and contestants that take them sparse make them so again.
    """
    return generate(SHAPES[name]) if name in SHAPES else _real(name)


def generate(shape: Shape) -> Stored:
    """An R-MAT graph of exactly this shape."""
    pairs = _pairs(shape)
    low, high = (torch.from_numpy(ids.astype(np.int32)) for ids in divmod(pairs, shape.vertices))
    src, dst = torch.cat([low, high]), torch.cat([high, low])
    topology = Topology.from_coo(src=src, dst=dst, num_src=shape.vertices)
    train, val = max(1, shape.vertices * 6 // 10), max(1, shape.vertices // 5)
    return _drawn(topology, shape.features, shape.classes, train, val)


def power_law(
    num_vertices: int, num_edges: int, num_features: int, num_classes: int, *, train: int, scramble: bool = True
) -> Stored:
    """An R-MAT graph as it is drawn, with so many vertices to train on. Unless it is scrambled, its first vertices have most of the edges."""
    src, dst = rmat_edges(num_vertices, num_edges, seed=SEED, scramble=scramble)
    return _drawn(Topology.from_coo(src=src, dst=dst, num_src=num_vertices), num_features, num_classes, train, 1)


def hubs_first(options: argparse.Namespace) -> Graph:
    """An R-MAT graph of the options' size whose first vertices have most of the edges. Half of the vertices are trained."""
    counts = int(options.vertices), int(options.edges), options.features
    return graph_of(power_law(*counts, 10, train=counts[0] // 2, scramble=False))


def _drawn(topology: Topology, num_features: int, num_classes: int, train: int, val: int) -> Stored:
    """A topology with random features, labels, and numbers of training and validation vertices."""
    n, generator = topology.num_dst, torch.Generator().manual_seed(SEED)
    features = torch.randn(n, num_features, generator=generator)
    labels = torch.randint(num_classes, (n,), generator=generator)
    order = torch.randperm(n, generator=generator)
    parts = order[:train].sort().values, order[train : train + val].sort().values
    return _stored(topology, features, labels, *parts, num_classes)


def _stored(
    topology: Topology, features: Tensor, labels: Tensor, train: Tensor, val: Tensor, num_classes: int
) -> Stored:
    indptr, src = topology.indptr, topology.indices.int()
    return Stored(indptr, src, features, labels, train, val, num_classes)


def _pairs(shape: Shape) -> np.ndarray:
    """As many different pairs low < high as the shape wants, each as low * vertices + high, in the order drawn."""
    wanted, drawn = shape.edges // 2, shape.edges // 2
    while True:
        # Multi-edges and self-loops fall out, so more are drawn until enough are left.
        drawn = int(drawn * 1.3) + 16
        src, dst = (ids.numpy().astype(np.int64) for ids in rmat_edges(shape.vertices, drawn, seed=SEED))
        keys = np.minimum(src, dst) * shape.vertices + np.maximum(src, dst)
        _, first = np.unique(keys[src != dst], return_index=True)
        if len(first) >= wanted:
            return keys[src != dst][np.sort(first)[:wanted]]


def graph_of(stored: Stored) -> Graph:
    """A stored graph as sagann's."""
    splits = {}
    for name in ("train", "val"):
        splits[name] = torch.zeros(stored.num_vertices, dtype=torch.bool)
        splits[name][getattr(stored, name)] = True
    return Graph(
        topology=Topology(indptr=stored.indptr, indices=stored.src, num_src=stored.num_vertices),
        features=stored.features,
        labels=stored.labels,
        num_classes=stored.num_classes,
        splits=splits,
    )


def _real(name: str) -> Stored:
    folder = os.environ.get("SAGANN_DATA")
    if folder is None:
        raise SystemExit(f"nothing says where '{name}.npz' is: set SAGANN_DATA to the folder of the graphs")
    graph = symmetrise(remove_self_loops(read_npz(Path(folder) / f"{name}.npz")))
    if "train" not in graph.splits:
        graph = random_split(graph, seed=SEED)
    features, labels = graph.features, graph.labels
    assert features is not None
    assert labels is not None
    dense = features.to_dense() if features.layout == torch.sparse_csr else features
    parts = [graph.splits[name].nonzero().squeeze(1) for name in ("train", "val")]
    return _stored(graph.topology, dense.float().contiguous(), labels, *parts, graph.num_classes)


def has_sparse_features(stored: Stored) -> bool:
    """Whether so many features are zero that sagann's importers would keep them sparse."""
    return int(stored.features.count_nonzero()) < SPARSE_BELOW * stored.features.numel()


def write_graph(folder: Path, stored: Stored) -> None:
    """Write a graph, and beside it a small one with the same widths, for rehearsing."""
    write_stored(folder, stored)
    write_stored(folder / "rehearsal", rehearsal(stored.features.shape[1], stored.num_classes))


def rehearsal(num_features: int, num_classes: int) -> Stored:
    """A hub, joined to all other vertices, each of which is joined to the next."""
    n = REHEARSAL_VERTICES
    others = torch.arange(1, n)
    low, high = torch.cat([torch.zeros_like(others), others[:-1]]), torch.cat([others, others[1:]])
    topology = Topology.from_coo(src=torch.cat([low, high]), dst=torch.cat([high, low]), num_src=n)
    generator = torch.Generator().manual_seed(SEED)
    features, ids = torch.randn(n, num_features, generator=generator), torch.arange(n)
    return _stored(topology, features, ids % num_classes, ids[::2].clone(), ids[1::2].clone(), num_classes)


def write_task(folder: Path, dataset: str, models: Iterable[str], hidden: int) -> Stored:
    """Write a graph and the first weights of models of two layers; gives the graph."""
    stored = stored_graph(dataset)
    write_graph(folder, stored)
    configs = [ModelConfig(model=model, layers=2, hidden=hidden, heads=8, dropout=0.0) for model in models]
    write_weights(folder, configs, stored.features.shape[1], stored.num_classes)
    return stored


def specification_of(model: str, **others: Any) -> dict[str, Any]:
    """The specification of a model for a worker, by default two layers without dropout. Callers add ``hidden``, ``threads`` and ``folder``."""
    return {
        "model": model,
        "variant": "",
        "layers": 2,
        "heads": 8,
        "defaults": False,
        "dropout": 0.0,
        "sparse": False,
        **others,
    }


def write_weights(folder: Path, configs: Iterable[ModelConfig], num_features: int, num_classes: int) -> None:
    """Draw and write the first weights of models, which every contestant starts with."""
    graph = Graph(
        topology=Topology(
            indptr=torch.zeros(2, dtype=torch.int64), indices=torch.zeros(0, dtype=torch.int32), num_src=1
        ),
        features=torch.zeros(1, num_features),
        num_classes=num_classes,
    )
    for config in configs:
        torch.manual_seed(SEED)
        weights = build_model(config, graph).state_dict()
        np.savez(folder / f"{config.model}.npz", **{name: value.numpy() for name, value in weights.items()})
