"""DGL's sampled epochs, with its own layers: "dataloading" samples on the calling thread, "workers" in two processes of its own,
and "graphbolt" is its newer loader. Run by DGL's own Python, without sagann.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import dgl
import dgl.graphbolt as graphbolt
import torch
from dgl_epochs import RENAMED, SELF_LOOPS, TRANSPOSED, Model
from minibatches import REQUESTS, Batch, SampledTraining
from serve import UnsupportedError, serve
from stored import Stored, read_stored
from torch import Tensor
from training import copy_weights

NUM_WORKERS = {"dataloading": 0, "workers": 2}


class Hop(NamedTuple):
    """What a layer of :mod:`dgl_epochs` reads of a graph."""

    graph: dgl.DGLGraph


def load(specification: dict, folder: Path) -> Stored:
    stored = read_stored(folder)
    return stored.with_self_loops() if specification["model"] in SELF_LOOPS else stored


def logits_of(model: Model, blocks: list[dgl.DGLGraph], x: Tensor) -> Tensor:
    """The model over the blocks of a batch."""
    for number, (layer, block) in enumerate(zip(model.layers, blocks, strict=True)):
        x = layer(x, Hop(block))
        if number < len(blocks) - 1:
            x = model.activation(x)
    return x


def of_dataloading(specification: dict, stored: Stored, model: Model) -> Callable[[int], Iterator[Batch]]:
    """The loader that DGL had before GraphBolt."""
    # Its sampler wants ids of edges.
    edge_ids = torch.arange(len(stored.src), dtype=torch.int32)
    graph = dgl.graph(("csc", (stored.indptr.int(), stored.src, edge_ids)), idtype=torch.int32).formats("csc")
    num_workers = NUM_WORKERS[specification["variant"]]
    loader = dgl.dataloading.DataLoader(
        graph,
        stored.train.int(),
        # The first number is that of the hop farthest from the seeds.
        dgl.dataloading.NeighborSampler(specification["fanouts"][::-1]),
        batch_size=specification["batch_size"],
        shuffle=True,
        num_workers=num_workers,
    )

    def batches(epoch: int) -> Iterator[Batch]:
        for src_ids, seeds, blocks in loader:
            x = stored.features[src_ids.long()]
            num_edges = sum(block.num_edges() for block in blocks)
            yield Batch(
                lambda blocks=blocks, x=x: logits_of(model, blocks, x), stored.labels[seeds.long()], num_edges
            )

    return batches


def of_graphbolt(specification: dict, stored: Stored, model: Model) -> Callable[[int], Iterator[Batch]]:
    """GraphBolt's pipe, as its documentation builds it."""
    graph = graphbolt.fused_csc_sampling_graph(stored.indptr, stored.src)
    features = graphbolt.BasicFeatureStore({("node", None, "x"): graphbolt.TorchBasedFeature(stored.features)})
    seeds = stored.train.to(stored.src.dtype)
    items = graphbolt.ItemSet((seeds, stored.labels[stored.train]), names=("seed_nodes", "labels"))
    pipe = graphbolt.ItemSampler(items, batch_size=specification["batch_size"], shuffle=True)
    pipe = pipe.sample_neighbor(graph, specification["fanouts"][::-1])
    pipe = pipe.fetch_feature(features, node_feature_keys=["x"])
    loader = graphbolt.DataLoader(pipe, num_workers=0)

    def batches(epoch: int) -> Iterator[Batch]:
        for each in loader:
            blocks, x = each.blocks, each.node_features["x"]
            num_edges = sum(block.num_edges() for block in blocks)
            forward = lambda blocks=blocks, x=x: logits_of(model, blocks, x)  # noqa: E731
            yield Batch(forward, each.labels, num_edges, len(x))

    return batches


VARIANTS = {"dataloading": of_dataloading, "workers": of_dataloading, "graphbolt": of_graphbolt}


def build(specification: dict, stored: Stored) -> SampledTraining:
    """Model, first weights, and the loader of the variant."""
    kind = specification["model"]
    if specification["variant"] not in VARIANTS:
        raise UnsupportedError(f"DGL has no loader '{specification['variant']}'")
    model = Model(specification, stored.features.shape[1], stored.num_classes)
    copy_weights(specification["folder"], kind, model, RENAMED.get(kind, {}), TRANSPOSED.get(kind, ()))
    return SampledTraining(model, VARIANTS[specification["variant"]](specification, stored, model))


if __name__ == "__main__":
    serve(load, build, REQUESTS)
