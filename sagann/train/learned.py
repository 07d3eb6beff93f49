"""Learned: what a run has learned of the seconds of its workers, and how it divides any graph, also one that was not trained on.

References:
    Jia et al., ROC, MLSys 2020, Sec. 7.6: the model that was learned while some graphs were trained on divides others for inference.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from sagann.errors import CheckpointError
from sagann.graph.topology import Topology
from sagann.partition import CostFeatures, CostModel, balanced_bounds, count_cost_features, widths_to_count
from sagann.train.balancer import read_learned
from sagann.train.checkpoint import Position
from sagann.train.run_folder import RunFolder

if TYPE_CHECKING:
    from sagann.runtime.workers import Workers

_FORWARD = "forward"


@dataclass(frozen=True, kw_only=True, slots=True)
class Learned:
    """What a run has learned of the seconds of its workers."""

    model: CostModel
    "Weights of the kinds of operations, and speeds of the workers."
    operations: Mapping[str, int]
    "Kinds of the operations of an epoch, with the bytes of a source's row in each; 0 for work on vertices alone."
    device: str
    "Type of the devices that the workers computed on."

    @property
    def forward(self) -> Learned:
        """The same for a forward pass alone, as in an evaluation or a prediction."""
        return replace(
            self,
            operations={kind: size for kind, size in self.operations.items() if kind.startswith(_FORWARD)},
        )

    def for_workers(self, size: int) -> Learned:
        """The same, if so many workers were measured; else with workers of speed 1."""
        return self if self.knows(size) else replace(self, model=self.model.with_speeds((1.0,) * size))

    def knows(self, size: int) -> bool:
        """Whether so many workers were measured."""
        return len(self.model.speeds) == size

    def unknown_text(self, size: int) -> str:
        """That another number of workers was measured, in words."""
        return f"Not {size} workers were measured, but {len(self.model.speeds)}: each is taken to have speed 1."

    def count(self, topology: Topology) -> CostFeatures:
        """The cost features of a graph for the operations: about 40 bytes for each vertex."""
        return count_cost_features(topology, widths_to_count(self.operations), device=self.device)

    def bounds(self, features: CostFeatures, size: int) -> tuple[int, ...]:
        """Bounds of the parts of so many workers, of equal seconds as the model predicts them for a graph with these features."""
        fitting = self.for_workers(size).model
        return balanced_bounds(fitting.part_costs(features, self.operations), fitting.speeds_of(size))

    def cut(self, topology: Topology, workers: Workers) -> tuple[int, ...]:
        """Bounds of the workers' parts of a graph. All workers call this at the same time; the first one counts and decides."""
        content = None
        if workers.is_first:
            content = json.dumps(self.bounds(self.count(topology), workers.size)).encode()
        return tuple(json.loads(workers.from_first(content, "cutting the graph by learned costs")))


def learned_costs(run_dir: str | os.PathLike[str]) -> Learned:
    """The cost model in the newest checkpoint of a run whose workers are balanced by cost.

    Raises:
        CheckpointError: ``run_dir`` is no run folder, has no checkpoint, learned no cost model, or its run.json is damaged.
    """
    folder = RunFolder(Path(run_dir))
    device = folder.read_run().device
    checkpoint = folder.checkpoints.newest(on_damaged=lambda text: None)
    state = None if checkpoint is None else checkpoint.get("source", {}).get("balance")
    if state is None or not state["operations"]:
        found = "no checkpoint" if checkpoint is None else f"none in the checkpoint of {Position.of(checkpoint)}"
        raise CheckpointError(
            f"the run has learned no cost model: {found} (in {folder.path})",
            hint="Name a run of several workers that trained some epochs with --balance cost.",
        )
    operations, model = read_learned(state)
    return Learned(model=model, operations=operations, device=device)
