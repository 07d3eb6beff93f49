"""sagann's sampled epochs: "ahead" makes four batches ahead by the pipeline, "calling" on the calling thread."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch

from bench.epochs.graphs import graph_of
from bench.standalone.minibatches import REQUESTS, Batch, SampledTraining
from bench.standalone.serve import serve
from bench.standalone.stored import read_stored
from bench.standalone.training import read_weights
from sagann import MiniBatches
from sagann.graph import Graph
from sagann.nn import ModelConfig, build_model
from sagann.runtime.loading import MiniBatch, StageCounters

PROCESSOR = torch.device("cpu")
OPTIONS: dict[str, dict[str, int]] = {"ahead": {"ahead": 4}, "calling": {"ahead": 0}}


class Training(SampledTraining):
    """The usual loop over MiniBatches.

    Args:
        specification: of the model and the batches.
        graph: as the model wants it.
        device: where the model is trained.
        options: of MiniBatches; those of the variant by default.
    """

    def __init__(
        self,
        specification: dict,
        graph: Graph,
        *,
        device: torch.device = PROCESSOR,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        model = build_model(config_of(specification), graph)
        model.load_state_dict(read_weights(Path(specification["folder"]), specification["model"]))
        self.model = model.to(device)
        self.minibatches = MiniBatches(
            graph,
            fanouts=specification["fanouts"],
            batch_size=specification["batch_size"],
            device=device,
            **(OPTIONS[specification["variant"]] if options is None else options),
        )
        self.counters: tuple[StageCounters, ...] = ()
        super().__init__(self.model, self._batches_of)

    def _batches_of(self, epoch: int) -> Iterator[Batch]:
        with self.minibatches.batches(epoch) as found:
            yield from map(self.batch_of, found)
            self.counters = found.counters

    def batch_of(self, batch: MiniBatch) -> Batch:
        """A batch as all contestants have it."""
        assert batch.labels is not None
        num_edges = sum(block.num_edges for block in batch.blocks)
        return Batch(partial(self.model, batch.blocks, batch.features), batch.labels, num_edges)

    def epoch(self) -> dict[str, Any]:
        """One epoch, with the seconds of work of each stage."""
        found = super().epoch()
        return found | {"stages": {each.name: each.busy_s for each in self.counters[:-1]}}


def config_of(specification: dict) -> ModelConfig:
    """The zoo's model that the specification asks for."""
    names = ("model", "layers", "hidden", "heads")
    return ModelConfig(dropout=0.0, encoder="none", **{name: specification[name] for name in names})


def load(specification: dict, folder: Path) -> Graph:
    """The graph as the model wants it."""
    graph = graph_of(read_stored(folder))
    return build_model(config_of(specification), graph).prepare(graph)


if __name__ == "__main__":
    serve(load, Training, REQUESTS)
