"""PyG's sampled epochs on a device, by its NeighborLoader with processes that sample and pinned memory.

Features lie in the host's memory, and the processes take the rows of a batch; or features lie on the device, which takes the rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, partial
from pathlib import Path

import torch
from torch import Tensor

from bench.epochs.pyg_worker import SELF_LOOPS
from bench.minibatches.pyg_worker import Resident, edges_of, require_sampler, training_of
from bench.minibatches.several import REQUESTS, Several
from bench.standalone.minibatches import SampledTraining
from bench.standalone.serve import serve
from bench.standalone.stored import Stored, read_stored


def build(specification: dict, stored: Stored) -> Several:
    """The contestants of all tasks, by "task/contestant"."""
    device = torch.device(specification["device"])
    tasks: Mapping[str, dict] = specification["tasks"]

    @cache
    def graph(has_loops: bool) -> tuple[Stored, Tensor]:
        found = stored.with_self_loops() if has_loops else stored
        return found, edges_of(found)

    @cache
    def resident() -> Resident:
        return Resident(stored.features.to(device), stored.labels.to(device))

    def made(task: str, workers: int, is_resident: bool) -> SampledTraining:
        found, edges = graph(tasks[task]["model"] in SELF_LOOPS)
        return training_of(
            tasks[task],
            found,
            edges,
            workers=workers,
            device=device,
            resident=resident() if is_resident else None,
            pin_memory=device.type == "cuda",
            is_sorted=True,
        )

    return Several(
        {
            f"{task}/{name}": partial(made, task, **options)
            for task in tasks
            for name, options in specification["contestants"].items()
        }
    )


def load(specification: dict, folder: Path) -> Stored:
    """The graph.

    Raises:
        UnsupportedError: PyG has no sampler here.
    """
    require_sampler()
    return read_stored(folder)


if __name__ == "__main__":
    serve(load, build, REQUESTS)
