"""PyG's sampled epochs by its NeighborLoader, where pyg-lib or torch-sparse is installed.

Processes sample, or the calling thread does where there are none. Features lie in the host's memory, where the rows of a batch are taken; or
they are resident on the device, which takes the rows.
"""

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
from bench.standalone.training import copy_weights


def load(specification: dict, folder: Path) -> Stored:
    if not (WITH_PYG_LIB or WITH_TORCH_SPARSE):
        raise UnsupportedError("PyG samples by pyg-lib or torch-sparse, and neither is installed")
    stored = read_stored(folder)
    return stored.with_self_loops() if specification["model"] in SELF_LOOPS else stored


def build(specification: dict, stored: Stored) -> SampledTraining:
    device = torch.device(specification["device"])
    model = Model(specification, stored.features.shape[1], stored.num_classes)
    kind = specification["model"]
    copy_weights(specification["folder"], kind, model, RENAMED.get(kind, {}))
    model.to(device)
    edges = torch.stack([stored.src.long(), stored.dst().long()])
    is_resident = specification["is_resident"]
    if is_resident:
        features, labels = stored.features.to(device), stored.labels.to(device)
        data = Data(edge_index=edges, num_nodes=stored.num_vertices)
    else:
        data = Data(x=stored.features, y=stored.labels, edge_index=edges)
    loader = NeighborLoader(
        data,
        specification["fanouts"],
        input_nodes=stored.train,
        batch_size=specification["batch_size"],
        shuffle=True,
        num_workers=specification["workers"],
        persistent_workers=specification["workers"] > 0,
        pin_memory=device.type == "cuda",
        is_sorted=True,
    )

    def logits(x: Tensor, batch: Data) -> Tensor:
        return model(x, batch.edge_index, None)[: batch.batch_size]

    def batches(epoch: int) -> Iterator[Batch]:
        for made in loader:
            batch = made.to(device, non_blocking=True)
            x, y = (features[batch.n_id], labels[batch.n_id]) if is_resident else (batch.x, batch.y)
            yield Batch(partial(logits, x, batch), y[: batch.batch_size], batch.num_edges)

    return SampledTraining(model, batches)


if __name__ == "__main__":
    serve(load, build, REQUESTS)
