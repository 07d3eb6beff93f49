"""PyG's sampled epochs, where pyg-lib or torch-sparse is installed: "loader" samples on the calling thread, "workers" in two processes."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import torch
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.loader import NeighborLoader
from torch_geometric.typing import WITH_PYG_LIB, WITH_TORCH_SPARSE

from bench.epochs.pyg_worker import RENAMED, SELF_LOOPS, Model
from bench.standalone.minibatches import REQUESTS, Batch, SampledTraining
from bench.standalone.serve import UnsupportedError, serve
from bench.standalone.stored import Stored, read_stored
from bench.standalone.training import copy_weights, read_weights

NUM_WORKERS = {"loader": 0, "workers": 2}


def load(specification: dict, folder: Path) -> Stored:
    """The graph, with the self-loops that the model wants."""
    if not (WITH_PYG_LIB or WITH_TORCH_SPARSE):
        raise UnsupportedError("PyG samples by pyg-lib or torch-sparse, and neither is installed")
    stored = read_stored(folder)
    return stored.with_self_loops() if specification["model"] in SELF_LOOPS else stored


def build(specification: dict, stored: Stored) -> SampledTraining:
    """Model, first weights, and the loader."""
    model = Model(specification, stored.features.shape[1], stored.num_classes)
    weights = read_weights(Path(specification["folder"]), specification["model"])
    copy_weights(weights, model, RENAMED.get(specification["model"], {}))
    data = Data(
        x=stored.features, y=stored.labels, edge_index=torch.stack([stored.src.long(), stored.dst().long()])
    )
    num_workers = NUM_WORKERS[specification["variant"]]
    loader = NeighborLoader(
        data,
        specification["fanouts"],
        input_nodes=stored.train,
        batch_size=specification["batch_size"],
        shuffle=True,
        num_workers=num_workers,
        persistent_workers=num_workers > 0,
    )

    def logits(batch: Data) -> Tensor:
        return model(batch.x, batch.edge_index, None)[: batch.batch_size]

    def batches(epoch: int) -> Iterator[Batch]:
        for batch in loader:
            yield Batch(partial(logits, batch), batch.y[: batch.batch_size], batch.num_edges)

    return SampledTraining(model, batches)


if __name__ == "__main__":
    serve(load, build, REQUESTS)
