"""Balancer: measures what epochs take each worker, and moves vertices between workers where that pays.

After an epoch, workers tell each other the seconds of their own computing, by kind of operation. The first worker alone learns the cost
model from the medians of the last epochs' seconds and decides; the others move as it says. The first epoch after a start or a move teaches
nothing: in it kernels are compiled, and results are computed that later epochs keep.

References:
    Jia et al., ROC, MLSys 2020, Sec. 4: the cost model is fitted after each epoch, and the graph is divided anew. We differ in that vertices
    move only where that pays within :data:`REPAY_EPOCHS` epochs.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from sagann.errors import CheckpointError
from sagann.graph.rows import row_arrays
from sagann.graph.topology import Topology
from sagann.partition import (
    CostFeatures,
    CostModel,
    Measurement,
    MoveCosts,
    RecentEpochs,
    Repartition,
    balanced_bounds,
    count_cost_features,
    decide_repartition,
    widths_to_count,
)
from sagann.runtime.team import START_TIMEOUT_S
from sagann.runtime.workers import WorkerPart
from sagann.train.checkpoint import Position
from sagann.train.run_folder import RunFolder

if TYPE_CHECKING:
    from sagann.runtime.workers import Workers


REPAY_EPOCHS = 20
"Number of epochs within which a move has to pay for itself."
_PROBE_BYTES = 4 << 20


class Balancer:
    """Balances the workers of a run by what its epochs take. Every worker has one for its part; all call its methods at the same time."""

    def __init__(self, part: WorkerPart, *, say: Callable[[str], None] = lambda text: None) -> None:
        self.part, self._say = part, say
        self.model = CostModel()
        "What the first worker has learned; nothing at the others."
        self.operations: dict[str, int] = {}
        "Kinds of the operations of an epoch, with the bytes of a source's row in each; 0 for work on vertices alone."
        self._bounds = part.first_bounds
        "Bounds of the next epoch. After a checkpoint was loaded, the part moves there when the run begins."
        self._features: CostFeatures | None = None
        "Cost features of the graph, at the first worker."
        self._counted: set[int] = set()
        "Widths of rows that the features are counted for."
        self._recent = RecentEpochs()
        "Seconds of the last epochs with the present parts, at the first worker; the epoch after a move is left out."
        self._before: Repartition | None = None
        "The decision to move to the present parts."
        self._teaches, self._has_moved = False, False
        self._bytes_per_s = 1.0
        self._first_epoch_s: float | None = None
        "Seconds that the first epoch after a move takes in addition; None before the first move."

    def begin(self) -> None:
        """Give the workers the ranges that the run begins or continues with, and measure how fast they send."""
        workers = self.part.workers
        # From this worker's device to the next one's, and at the same time from that of the one before.
        to, of = (workers.rank + 1) % workers.size, (workers.rank - 1) % workers.size
        sent = torch.zeros(_PROBE_BYTES, dtype=torch.uint8, device=self.part.topology.device)
        received, doing = torch.empty_like(sent), "measuring how fast workers send"
        # The first transfer waits until the other worker is there; the first worker may have the run folder to prepare.
        workers.transfer({to: sent[:1]}, {of: received[:1]}, doing, timeout_s=START_TIMEOUT_S)
        began_s = time.perf_counter()
        workers.transfer({to: sent}, {of: received}, doing)
        self._bytes_per_s = _PROBE_BYTES / max(time.perf_counter() - began_s, 1e-6)
        if self.part.bounds != self._bounds:
            self.part.move(self._bounds)
        workers.stopwatch.take()
        self._teaches = self._has_moved = False
        self._recent, self._before = RecentEpochs(), None
        if self.operations:
            # A resumed run predicts its first epoch.
            self._count_features()

    def settle(self, epochs_left: int) -> dict[str, Any]:
        """Learn from the epoch that has ended, and move vertices where that pays, for the epochs that are left.

        Returns:
            how the epoch was divided, for its record: bounds of the workers' ranges of vertices and edges of their parts; seconds of each worker's own
            computing, without waits and the optimizer's step, and what the cost model predicted, None before it has learned; bounds from the
            next epoch on and seconds of the move, None where vertices stay.
        """
        part, workers = self.part, self.part.workers
        laps = workers.stopwatch.take()
        mine = {
            "operations": {kind: lap.row_bytes for kind, lap in laps.items()},
            "seconds": {kind: lap.seconds for kind, lap in laps.items()},
            "edges": part.topology.num_edges,
            "made_s": part.made_s,
            "bytes_per_s": self._bytes_per_s,
        }
        doing = "comparing the seconds of an epoch"
        told = [json.loads(text) for text in workers.texts(json.dumps(mine), doing, timeout_s=None)]
        if self._teaches:
            self.operations = told[0]["operations"]
            self._count_features()
        content = json.dumps(self._decision(told, epochs_left)).encode() if workers.is_first else None
        doing = "waiting for the decision to move vertices"
        predicted_s, moved_to = json.loads(workers.from_first(content, doing, timeout_s=None))
        bounds, moves = part.bounds, moved_to is not None
        self._teaches, self._has_moved = not moves, moves
        if moves:
            self._bounds = tuple(moved_to)
            part.move(self._bounds)
        return {
            "worker_bounds": list(bounds),
            "worker_edges": [each["edges"] for each in told],
            "worker_s": [sum(each["seconds"].values()) for each in told],
            "predicted_worker_s": predicted_s,
            "moved_to": moved_to,
            "move_s": part.made_s if moves else None,
        }

    def state_dict(self) -> dict[str, Any]:
        """The balancer's part of a checkpoint: the ranges of the next epoch, and what was learned."""
        return {"bounds": list(self._bounds), "operations": dict(self.operations), "model": self.model.to_plain()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue with the ranges and the model of a checkpoint, unless another number of workers made it."""
        if len(state["bounds"]) == len(self.part.bounds):
            self._bounds = tuple(state["bounds"])
            self.operations, self.model = read_learned(state)

    @property
    def _knows(self) -> bool:
        has_all = self.operations.keys() <= self.model.kinds.keys()
        return self._features is not None and bool(self.operations) and has_all

    def _decision(
        self, told: Sequence[Mapping[str, Any]], epochs_left: int
    ) -> tuple[list[float] | None, list[int] | None]:
        """What was predicted for the epoch, seconds by worker, and where vertices move; None for nothing."""
        part, features, predicted_s = self.part, self._features, None
        slowest_s = max(sum(each["seconds"].values()) for each in told)
        if features is not None and self._knows:
            predicted_s = list(self.model.seconds_of_parts(features, self.operations, part.bounds))
            if self._has_moved:
                self._first_epoch_s = max(0.0, slowest_s - max(predicted_s))
        if not self._teaches:
            return predicted_s, None
        assert features is not None
        self._recent = self._recent.followed_by(
            {kind: [each["seconds"][kind] for each in told] for kind in self.operations}
        )
        measured = [
            Measurement(
                kind=kind,
                worker=worker,
                features=features.of_part(first, stop, self.operations[kind]).tolist(),
                seconds=seconds,
            )
            for kind, usual in self._recent.usual.items()
            for worker, ((first, stop), seconds) in enumerate(
                zip(pairwise(part.bounds), usual.tolist(), strict=True)
            )
            if seconds > 0
        ]
        self.model = self.model.updated(measured)
        if not self._knows:
            return predicted_s, None
        rows, edge_data = row_arrays(part.features)[-1], part.topology.edge_data.values()
        costs = MoveCosts(
            # Offsets of in-edges take 8 bytes.
            vertex_bytes=8 + rows.nbytes // max(1, len(part.features)),
            edge_bytes=part.topology.indices.element_size() + sum(data[:1].nbytes for data in edge_data),
            bytes_per_s=min(each["bytes_per_s"] for each in told),
            horizon_epochs=min(REPAY_EPOCHS, epochs_left),
            fixed_s=max(each["made_s"] for each in told)
            + (slowest_s if self._first_epoch_s is None else self._first_epoch_s),
        )
        given = part.bounds, features, self.operations, self.model, costs, self._recent
        found = decide_repartition(*given, before=self._before)
        if not found.moves:
            return predicted_s, None
        self._recent, self._before = RecentEpochs(), found
        self._say(f"Vertices move between the workers: {str(found).removeprefix('move: ')}.")
        return predicted_s, list(found.bounds)

    def _count_features(self) -> None:
        """Count the cost features of the graph for the widths of the operations, each worker those of its part."""
        widths = widths_to_count(self.operations)
        if widths <= self._counted:
            return
        own, workers = self.part.halo.part, self.part.workers
        topology = Topology(
            indptr=own.indptr.cpu(), indices=own.sources().cpu(), num_src=own.bounds[-1], validate=False
        )
        counted = count_cost_features(topology, widths, device=own.indptr.device.type)
        doing = "gathering the cost features of the parts"
        rows = workers.rows_at(torch.from_numpy(counted.sums).diff(dim=0), own.bounds, doing, first_only=True)
        self._counted = widths
        if workers.is_first:
            sums = torch.zeros(len(rows) + 1, rows.shape[1], dtype=torch.int64)
            torch.cumsum(rows, 0, out=sums[1:])
            self._features = CostFeatures(sums=sums.numpy(), row_bytes=counted.row_bytes)


def read_learned(state: Mapping[str, Any]) -> tuple[dict[str, int], CostModel]:
    """The operations and the cost model in what :meth:`Balancer.state_dict` gives."""
    return dict(state["operations"]), CostModel.from_plain(state["model"])


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
        forward = {kind: size for kind, size in self.operations.items() if kind.startswith("forward")}
        return replace(self, operations=forward)

    def model_for(self, size: int) -> CostModel:
        """The model, if so many workers were measured; else that of workers of speed 1."""
        return self.model if len(self.model.speeds) == size else self.model.with_speeds((1.0,) * size)

    def unknown_text(self, size: int) -> str:
        """In words, that another number of workers was measured; empty where so many were."""
        known = len(self.model.speeds)
        text = f"Not {size} workers were measured, but {known}: each is taken to have speed 1."
        return text if known != size else ""

    def count(self, topology: Topology) -> CostFeatures:
        """The cost features of a graph for the operations: about 40 bytes for each vertex."""
        return count_cost_features(topology, widths_to_count(self.operations), device=self.device)

    def bounds(self, features: CostFeatures, size: int) -> tuple[int, ...]:
        """Bounds of the parts of so many workers, of equal seconds as the model predicts them for a graph with these features."""
        fitting = self.model_for(size)
        return balanced_bounds(fitting.part_costs(features, self.operations), fitting.speeds_of(size))

    def cut(self, topology: Topology, workers: Workers) -> tuple[int, ...]:
        """Bounds of the workers' parts of a graph. All workers call this at the same time; the first one counts and decides."""
        content = None
        if workers.is_first:
            content = json.dumps(self.bounds(self.count(topology), workers.size)).encode()
        return tuple(json.loads(workers.from_first(content, "cutting the graph by learned costs")))


def learned_costs(run_dir: str | os.PathLike[str]) -> Learned:
    """The cost model in the newest checkpoint of a run whose workers are balanced by cost; a CheckpointError where there is none."""
    folder = RunFolder(Path(run_dir))
    device = folder.read_run().device
    checkpoint = folder.checkpoints.newest(on_damaged=lambda text: None)
    state = None if checkpoint is None else checkpoint["source"].get("balance")
    if state is None or not state["operations"]:
        found = "no checkpoint" if checkpoint is None else f"none in the checkpoint of {Position.of(checkpoint)}"
        raise CheckpointError(
            f"the run has learned no cost model: {found} (in {folder.path})",
            hint="Name a run of several workers that trained some epochs with --balance cost.",
        )
    operations, model = read_learned(state)
    return Learned(model=model, operations=operations, device=device)
