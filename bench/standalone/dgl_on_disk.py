"""DGL's GraphBolt with features mapped from disk, as its on-disk datasets keep them (2.1 has no DiskBasedFeature). Run by DGL's own Python."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

STARTED_S = time.monotonic()

import dgl.graphbolt as graphbolt  # noqa: E402
import torch  # noqa: E402
from dgl_epochs import Model  # noqa: E402
from dgl_minibatches import logits_of  # noqa: E402
from large import say, specification  # noqa: E402
from minibatches import Batch, SampledTraining  # noqa: E402
from stored import map_dataset  # noqa: E402


def main() -> None:
    asked = specification()
    stored = map_dataset(Path(asked["folder"]))
    graph = graphbolt.fused_csc_sampling_graph(stored.indptr.clone(), stored.src.clone())
    features = graphbolt.BasicFeatureStore({("node", None, "x"): graphbolt.TorchBasedFeature(stored.features)})
    order = torch.randperm(len(stored.labels), generator=torch.Generator().manual_seed(0))
    seeds = order[: asked["batches"] * asked["batch_size"]].sort().values
    items = graphbolt.ItemSet((seeds.to(stored.src.dtype), stored.labels[seeds]), names=("seed_nodes", "labels"))
    pipe = graphbolt.ItemSampler(items, batch_size=asked["batch_size"], shuffle=True)
    pipe = pipe.sample_neighbor(graph, asked["fanouts"][::-1]).fetch_feature(features, node_feature_keys=["x"])
    loader = graphbolt.DataLoader(pipe, num_workers=0)
    model = Model(asked, stored.features.shape[1], asked["classes"])
    num_rows = 0

    def batches(epoch: int) -> Iterator[Batch]:
        nonlocal num_rows
        for each in loader:
            blocks, x = each.blocks, each.node_features["x"]
            num_rows += len(x)
            num_edges = sum(block.num_edges() for block in blocks)
            yield Batch(lambda blocks=blocks, x=x: logits_of(model, blocks, x), each.labels, num_edges)

    training = SampledTraining(model, batches)
    ready_s = time.monotonic() - STARTED_S
    say(**training.epoch(), batches=asked["batches"], rows=num_rows, ready_s=ready_s)


if __name__ == "__main__":
    main()
