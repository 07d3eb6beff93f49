"""Trains some batches with features on disk, as sagann or as PyG, and prints a line of JSON; started by :mod:`bench.minibatches.on_disk`."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from bench.standalone.large import say, seeds_of, specification
from bench.standalone.minibatches import Batch, SampledTraining
from bench.standalone.stored import map_dataset

STARTED_S = time.monotonic()
AHEAD = 4
"Batches that sagann makes ahead."


def train_sagann(asked: dict[str, Any]) -> None:
    """Make a hot tier, and train an epoch through it."""
    from bench.minibatches.sagann_worker import batch_of
    from sagann import MiniBatches, ModelConfig
    from sagann.nn import build_model
    from sagann.runtime.tiered import TieredFeatures
    from sagann.storage import load_graph
    from sagann.tiering import hottest, score_vertices

    graph = load_graph(asked["folder"], verify=False)
    is_train = torch.zeros(graph.num_vertices, dtype=torch.bool)
    is_train[seeds_of(asked, graph.num_vertices)] = True
    graph = replace(graph, splits={"train": is_train})
    preparing = {"open": time.monotonic() - STARTED_S}

    def note(what: str) -> None:
        preparing[what] = time.monotonic() - STARTED_S - sum(preparing.values())

    named = ModelConfig(model="sage", layers=asked["layers"], hidden=asked["hidden"], dropout=0.0, encoder="none")
    fanouts, batch_size = tuple(asked["fanouts"]), asked["batch_size"]
    score = score_vertices(graph, "vip", fanouts=fanouts, batch_size=batch_size)
    assert graph.features is not None
    order = hottest(score)
    del score
    note("score")
    store = TieredFeatures(graph.features, hot=asked["hot_bytes"], cache="look-ahead", hottest=order)
    del order
    note("hot tier")
    graph = replace(graph, features=store)
    minibatches = MiniBatches(graph, fanouts=fanouts, batch_size=batch_size, ahead=AHEAD)
    model = build_model(named, graph)
    stages: dict[str, float] = {}

    def batches(epoch: int) -> Iterator[Batch]:
        with minibatches.batches(epoch) as found:
            for number, batch in enumerate(found):
                yield batch_of(model, batch)
                if epoch == 0 and number == 0:
                    break
            stages.update((each.name, each.busy_s) for each in found.counters[:-1])

    training = SampledTraining(model, batches)
    # The first batch compiles.
    training.epoch()
    note("first batch")
    before = store.traffic()
    told = training.epoch()
    traffic = store.traffic() - before
    say(
        **told,
        batches=asked["batches"],
        ready_s=sum(preparing.values()),
        preparing=preparing,
        stages=stages | {"train": told["step_s"]},
        tiers={"hot": traffic.hot.num_bytes, "cold": traffic.cold.num_bytes},
        reads=traffic.cold_reads,
        read_bytes=traffic.cold_read_bytes,
        hit_rate=traffic.hit_rate,
    )


def train_pyg(asked: dict[str, Any]) -> None:
    """PyG's NeighborLoader over a sparse matrix of torch-sparse, its leanest form; features are mapped."""
    from torch_geometric.data import Data
    from torch_geometric.loader import NeighborLoader
    from torch_sparse import SparseTensor

    from bench.epochs.pyg_worker import Model

    stored = map_dataset(Path(asked["folder"]))
    num_vertices = stored.num_vertices
    adjacency = SparseTensor(
        rowptr=stored.indptr.clone(),
        col=stored.src.long(),
        sparse_sizes=(num_vertices, num_vertices),
        is_sorted=True,
        trust_data=True,
    )
    loader = NeighborLoader(
        Data(adj_t=adjacency, num_nodes=num_vertices),
        asked["fanouts"],
        input_nodes=seeds_of(asked, num_vertices),
        batch_size=asked["batch_size"],
        shuffle=True,
    )
    model: nn.Module = Model(asked, stored.features.shape[1], asked["classes"])

    def batches(epoch: int) -> Iterator[Batch]:
        for batch in loader:
            x = stored.features[batch.n_id]
            destinations, sources, _ = batch.adj_t.coo()
            edges = torch.stack([sources, destinations])
            labels = stored.labels[batch.n_id[: batch.batch_size]]
            forward = lambda x=x, edges=edges, size=batch.batch_size: model(x, edges, None)[:size]  # noqa: E731
            yield Batch(forward, labels, edges.shape[1], len(x))

    training = SampledTraining(model, batches)
    ready_s = time.monotonic() - STARTED_S
    say(**training.epoch(), batches=asked["batches"], ready_s=ready_s)


if __name__ == "__main__":
    specified = specification()
    {"sagann": train_sagann, "pyg": train_pyg}[specified["system"]](specified)
