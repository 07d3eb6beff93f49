"""PyG's sampled epochs, where pyg-lib or torch-sparse is installed: "loader" samples on the calling thread, "workers" in two processes."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

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

PROCESSOR = torch.device("cpu")
NUM_WORKERS = {"loader": 0, "workers": 2}


def require_sampler() -> None:
    """Refuse to run where PyG has no sampler; it has none in Python."""
    if not (WITH_PYG_LIB or WITH_TORCH_SPARSE):
        raise UnsupportedError("PyG samples by pyg-lib or torch-sparse, and neither is installed")


class Resident(NamedTuple):
    """Features and labels of all vertices on a device."""

    features: Tensor
    labels: Tensor

    def rows(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Features and labels of some vertices."""
        return self.features.index_select(0, ids), self.labels.index_select(0, ids)


def load(specification: dict, folder: Path) -> Stored:
    """The graph, with the self-loops that the model wants."""
    require_sampler()
    stored = read_stored(folder)
    return stored.with_self_loops() if specification["model"] in SELF_LOOPS else stored


def edges_of(stored: Stored) -> Tensor:
    """Sources and destinations, int64 [2, num_edges], ascending by destination."""
    return torch.stack([stored.src.long(), stored.dst().long()])


def build(specification: dict, stored: Stored) -> SampledTraining:
    """Model, first weights, and the loader."""
    return training_of(specification, stored, edges_of(stored), workers=NUM_WORKERS[specification["variant"]])


def training_of(
    specification: dict,
    stored: Stored,
    edges: Tensor,
    *,
    workers: int,
    device: torch.device = PROCESSOR,
    resident: Resident | None = None,
    **options: Any,
) -> SampledTraining:
    """Epochs of one loader.

    Args:
        specification: of the model and the batches.
        stored: the graph.
        edges: its edges, as :func:`edges_of` gives them.
        workers: processes that sample; 0 samples on the calling thread.
        device: where the model is trained.
        resident: features and labels that lie on the device; None has the loader take those of each batch from the host's memory.
        options: more options of the loader.
    """
    model = Model(specification, stored.features.shape[1], stored.num_classes)
    weights = read_weights(Path(specification["folder"]), specification["model"])
    copy_weights(weights, model, RENAMED.get(specification["model"], {}))
    model.to(device)
    if resident is None:
        data = Data(x=stored.features, y=stored.labels, edge_index=edges)
    else:
        data = Data(edge_index=edges, num_nodes=stored.num_vertices)
    loader = NeighborLoader(
        data,
        specification["fanouts"],
        input_nodes=stored.train,
        batch_size=specification["batch_size"],
        shuffle=True,
        num_workers=workers,
        persistent_workers=workers > 0,
        **options,
    )

    def logits(x: Tensor, batch: Data) -> Tensor:
        return model(x, batch.edge_index, None)[: batch.batch_size]

    def batches(epoch: int) -> Iterator[Batch]:
        for made in loader:
            batch = made.to(device, non_blocking=True)
            x, y = (batch.x, batch.y) if resident is None else resident.rows(batch.n_id)
            yield Batch(partial(logits, x, batch), y[: batch.batch_size], batch.num_edges)

    return SampledTraining(model, batches)


if __name__ == "__main__":
    serve(load, build, REQUESTS)
