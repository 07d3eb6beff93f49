"""sagann's sampled epochs on a device: contestants differ in where features lie, in who samples, and in how many threads do.

The graph lies in the host's memory. Features lie there too and are copied batch by batch, or the hottest rows lie on the device and the
others are read in place. The processor samples, or the device does, with a part of the edges in its memory.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bench.device.clock import finish
from bench.epochs.graphs import graph_of
from bench.minibatches.sagann_worker import Training, config_of
from bench.minibatches.several import REQUESTS, Several
from bench.standalone.serve import UnsupportedError, serve
from bench.standalone.stored import Stored, read_stored
from sagann.graph import Graph
from sagann.nn import build_model
from sagann.runtime.device.cuda_devices import Devices
from sagann.runtime.loading.sampling_place import SampleOn
from sagann.runtime.places import device_named
from sagann.runtime.tiered import CudaDevices, DeviceFeatures, DeviceTopology
from sagann.tiering import hottest, score_vertices

AHEAD_OF_A_THREAD = 2
"Batches on their way for each thread that samples, so that its stage and the next one both have work; never fewer than the default of 4."


class DeviceTraining(Training):
    """Epochs whose batches go to a device.

    Args:
        specification: of the model and the batches.
        graph: as the model wants it; its features may be a DeviceFeatures.
        device: where the model is trained.
        threads: threads that sample, and threads that load.
        sample_on: who samples.
    """

    def __init__(
        self, specification: dict, graph: Graph, *, device: torch.device, threads: int, sample_on: SampleOn = "cpu"
    ) -> None:
        options = {"threads": threads, "ahead": max(4, AHEAD_OF_A_THREAD * threads), "sample_on": sample_on}
        super().__init__(specification, graph, device=device, options=options)
        self.store = graph.features if isinstance(graph.features, DeviceFeatures) else None

    def epoch(self) -> dict[str, Any]:
        """One epoch, with the seconds that the loop waited for batches, and the bytes of features by tier."""
        before = self._tier_bytes()
        found = super().epoch()
        tiers = {name: num_bytes - before[name] for name, num_bytes in self._tier_bytes().items()}
        return found | {"waited_s": self.counters[-1].waited_s, "tiers": tiers}

    def _tier_bytes(self) -> dict[str, int]:
        return {} if self.store is None else {name: tier.num_bytes for name, tier in self.store.tiers().items()}

    def alone(self) -> dict[str, float]:
        """Seconds of the stages of an epoch, each by itself: nothing else runs, and the device is done when a stage ends.

        "calls" are the seconds of a step until the host has queued it, "train" those until the device has done it.
        """
        seconds: Counter[str] = Counter()
        device = self.minibatches.device
        making = self.minibatches.stages(self._epoch)
        for number in range(len(self.minibatches)):
            made: Any = number
            for stage in making.stages:
                start = time.perf_counter()
                made = stage.work(made)
                finish(device)
                seconds[stage.name] += time.perf_counter() - start
            batch = self.batch_of(making.receive(made))
            start = time.perf_counter()
            self.step(batch)
            seconds["calls"] += time.perf_counter() - start
            finish(device)
            seconds["train"] += time.perf_counter() - start
        self._epoch += 1
        return dict(seconds)


def devices_of(device: torch.device) -> Devices:
    """What a feature store asks of the device."""
    if device.type != "cuda":
        raise UnsupportedError("rows and edges lie on a CUDA device alone")
    return CudaDevices([device])


def build(specification: dict, stored: Stored) -> Several:
    """The contestants of all tasks, by "task/contestant"."""
    device = device_named(specification["device"])
    tasks: Mapping[str, dict] = specification["tasks"]

    @cache
    def graph(task: str) -> Graph:
        plain = graph_of(stored)
        return build_model(config_of(tasks[task]), plain).prepare(plain)

    @cache
    def order(task: str) -> Tensor:
        fanouts, batch_size = tasks[task]["fanouts"], tasks[task]["batch_size"]
        return hottest(score_vertices(graph(task), "vip", fanouts=fanouts, batch_size=batch_size))

    def made(task: str, hot: str | None, threads: int, edges: str | None = None) -> DeviceTraining:
        found = graph(task)
        if hot is not None:
            devices = devices_of(device)
            assert isinstance(found.features, Tensor)
            # Memory is pinned by one store alone.
            features = found.features.clone()
            found = replace(found, features=DeviceFeatures(features, hot, devices=devices, hottest=order(task)))
        sample_on: SampleOn = "cpu"
        if edges is not None:
            # Memory is pinned once, as for features.
            topology = found.topology.mapped(Tensor.clone)
            found = replace(found, topology=topology)
            sample_on = DeviceTopology(topology, edges, devices=devices_of(device))
        return DeviceTraining(tasks[task], found, device=device, threads=threads, sample_on=sample_on)

    return Several(
        {
            f"{task}/{name}": partial(made, task, **options)
            for task in tasks
            for name, options in specification["contestants"].items()
        }
    )


def load(specification: dict, folder: Path) -> Stored:
    """The graph."""
    return read_stored(folder)


if __name__ == "__main__":
    serve(load, build, REQUESTS)
