"""sagann's sampled epochs: contestants differ in how far batches are made ahead, where features lie, and who samples.

Features lie in the host's memory and go to the device batch by batch, or the hottest rows lie on the device and it reads the others in
place. The processor samples, or the device does, with a part of the edges in its memory.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bench.epochs.graphs import graph_of
from bench.epochs.sagann_worker import config_of, model_of
from bench.standalone.minibatches import REQUESTS, Batch, SampledTraining
from bench.standalone.serve import UnsupportedError, serve
from bench.standalone.stored import read_stored
from bench.timing import finish
from sagann import MiniBatches
from sagann.graph import Graph
from sagann.nn import build_model
from sagann.runtime.loading import MiniBatch
from sagann.runtime.loading.minibatches import SampleOn
from sagann.runtime.places import device_named
from sagann.runtime.tiered import CudaDevices, DeviceFeatures, DeviceTopology
from sagann.tiering import hottest, score_vertices


def batch_of(model: nn.Module, batch: MiniBatch) -> Batch:
    """A batch as all contestants have it."""
    assert batch.labels is not None
    num_edges = sum(block.num_edges for block in batch.blocks)
    return Batch(partial(model, batch.blocks, batch.features), batch.labels, num_edges, len(batch.src_ids))


class Training(SampledTraining):
    """The usual loop over MiniBatches."""

    def __init__(self, specification: dict, graph: Graph) -> None:
        self.device = device_named(specification["device"])
        self.model = model_of(specification, graph).to(self.device)
        batches = {"fanouts": specification["fanouts"], "batch_size": specification["batch_size"]}
        graph, sample_on = self._placed(graph, specification, batches)
        self.minibatches = MiniBatches(
            graph,
            device=self.device,
            ahead=specification["ahead"],
            threads=specification["sampling_threads"],
            sample_on=sample_on,
            **batches,
        )
        super().__init__(self.model, self._batches_of)

    def _placed(self, graph: Graph, specification: dict, batches: dict[str, Any]) -> tuple[Graph, SampleOn]:
        """The graph with its hot rows on the device, and who samples."""
        hot, edges = specification.get("hot"), specification.get("edges")
        sample_on: SampleOn = "cpu"
        if hot is not None:
            assert isinstance(graph.features, Tensor)
            order = hottest(score_vertices(graph, "vip", **batches))
            store = DeviceFeatures(graph.features, hot, devices=devices_of(self.device), hottest=order)
            graph = replace(graph, features=store)
        if edges is not None:
            sample_on = DeviceTopology(graph.topology, edges, devices=devices_of(self.device))
        return graph, sample_on

    def _batches_of(self, epoch: int) -> Iterator[Batch]:
        with self.minibatches.batches(epoch) as found:
            yield from (batch_of(self.model, each) for each in found)

    def alone(self) -> dict[str, float]:
        """Seconds of the stages of an epoch, each by itself: nothing else runs, and the device is done when a stage ends.

        "calls" are the seconds of a step until the host has queued it, "train" those until the device has done it.
        """
        seconds: Counter[str] = Counter()
        stages, receive = self.minibatches.stages(self._epoch)
        for number in range(len(self.minibatches)):
            made: Any = number
            for stage in stages:
                start = time.perf_counter()
                made = stage.work(made)
                finish(self.device)
                seconds[stage.name] += time.perf_counter() - start
            batch = batch_of(self.model, receive(made))
            start = time.perf_counter()
            self.step(batch)
            seconds["calls"] += time.perf_counter() - start
            finish(self.device)
            seconds["train"] += time.perf_counter() - start
        self._epoch += 1
        return dict(seconds)


def devices_of(device: torch.device) -> CudaDevices:
    """The devices of a store; refuses the processor."""
    if device.type != "cuda":
        raise UnsupportedError("rows and edges lie on a CUDA device alone")
    return CudaDevices([device])


def load(specification: dict, folder: Path) -> Graph:
    graph = graph_of(read_stored(folder))
    return build_model(config_of(specification), graph).prepare(graph)


if __name__ == "__main__":
    serve(load, Training, {**REQUESTS, "alone": lambda training, _: training.alone()})
