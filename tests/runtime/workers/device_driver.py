"""Workers that compute on a simulated device; run by test_carriers.py as a program of its own, which writes what they computed into FOLDER.

python -m tests.runtime.workers.device_driver FOLDER
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from sagann.nn import GNN, ModelConfig, build_model
from sagann.partition import cost_features
from sagann.runtime.in_memory.engine import CompiledEngine
from sagann.runtime.workers import Workers
from sagann.runtime.workers.carriers import DeviceCarrier, Operation
from sagann.saga import NaiveEngine, using_engine
from sagann.train import TrainConfig, Trainer, balancer, trainer as trainers
from tests.graphs import labelled_graph
from tests.plain import auto_dialect
from tests.runtime.workers.exactness_driver import Case, GatedLayer, Numbers, normed, prepared_by, several, trained
from tests.runtime.workers.processes import run_workers
from tests.simulated_device import SIMULATED, SimulatedTensor, register
from tests.train.runs import community_graph

SIZE = 2
EPOCHS = 6


class SimulatedCarrier(DeviceCarrier):
    """Carries the numbers of tensors on the simulated device, by gloo."""

    def operations(
        self, sends: Mapping[int, Tensor], receives: Mapping[int, Tensor], tag: int
    ) -> Sequence[Operation]:
        sends, receives = ({rank: values(each) for rank, each in given.items()} for given in (sends, receives))
        return super().operations(sends, receives, tag)

    def abort(self) -> None:
        """Do nothing: the group is that of all workers, which ends by itself."""


def values(tensor: Tensor) -> Tensor:
    assert isinstance(tensor, SimulatedTensor)
    assert tensor.is_contiguous()
    return tensor.values


def cases() -> Iterator[Case]:
    graph, compiled = labelled_graph(), CompiledEngine()
    typed = labelled_graph(types=3)
    for name, on in (("gat", graph), ("rgcn", typed)):
        config = ModelConfig(model=name, hidden=8, dropout=0.0)
        yield Case(name, partial(build_model, config, on), on, compiled)
    yield Case("README, naive", gated, graph, NaiveEngine())
    yield Case("several, with edges that are dropped", several, graph, compiled)
    yield Case("batch norms", partial(normed, 0.0), graph, compiled)


def gated() -> GNN:
    return GNN([GatedLayer(8, 16), GatedLayer(16, 3)])


def numbers_of(case: Case, workers: Workers | None, device: torch.device) -> Numbers:
    """Losses, gradients, logits and embeddings; of workers, a part of the epochs after vertices have moved."""
    with using_engine(case.engine):
        predictor, prepared = prepared_by(case, workers, device=device, dtype=torch.float32)
        found = trained(predictor, prepared)
        if (part := prepared.part) is not None:
            require_place(part, device)
            size, num_vertices = part.workers.size, case.graph.num_vertices
            part.move((0, *(num_vertices * number // (size + 1) for number in range(2, size + 1)), num_vertices))
            require_place(part, device)
            assert part.features.device == device
        found |= {f"moved {name}": each for name, each in trained(predictor, prepared).items()}
        found["embeddings"] = predictor.embed(prepared)
    return {name: each.cpu() for name, each in found.items()}


def require_place(worker_part: Any, device: torch.device) -> None:
    topology, halo = worker_part.topology, worker_part.halo
    part = halo.part
    for each in (topology.indptr, topology.indices, part.indptr, part.indices, part.halo, *halo.sent):
        assert each.device == device
    assert all(each.device == device for each in topology.edge_data.values())


def balanced(workers: Workers, device: torch.device) -> list[Any]:
    """What workers that are balanced by cost tell of two epochs."""
    case = Case("balanced", gated, labelled_graph(), CompiledEngine())
    predictor, prepared = prepared_by(case, workers, device=device, dtype=torch.float32)
    settles = balancer.Balancer(prepared.part)
    settles.begin()
    found = []
    for epochs_left in (2, 1, 0):
        trained(predictor, prepared)
        found.append(settles.settle(epochs_left))
    return found


def run_of(
    workers: Workers | None, run_dir: Path | None, *, epochs: int = EPOCHS, resume: bool = False
) -> list[Any]:
    """The lines of metrics of a run, without what a clock says."""
    config = TrainConfig(epochs=epochs, checkpoint_every=2, clip_norm=1.0, device="cpu")
    model = ModelConfig(hidden=8, dropout=0.0)
    trainer = Trainer(model, community_graph(), config, run_dir=run_dir, workers=workers, progress=False)
    history = trainer.fit(resume=resume).history
    lines = [record.to_json() for record in history]
    return [{name: value for name, value in line.items() if name != "epoch_s"} for line in lines]


def runs_of(workers: Workers, folder: Path, device: torch.device) -> dict[str, list[Any]]:
    """Runs of a Trainer: a whole one, one that was stopped and resumed, and at the first worker that of one process."""

    def simulated(name: str, workers: Workers, say: object) -> torch.device:
        return device

    found = {"alone": run_of(None, None)} if workers.is_first else {}
    trainers.device_together = simulated
    found["whole"] = run_of(workers, folder / "whole")
    run_of(workers, folder / "stopped", epochs=EPOCHS // 2)
    found["resumed"] = run_of(workers, folder / "stopped", resume=True)
    return found


def work(workers: Workers, folder: Path) -> None:
    device = torch.device(SIMULATED, 0)
    workers._carriers[SIMULATED] = SimulatedCarrier(dist.group.WORLD)
    travelled: dict[str, set[str]] = {}
    begin = workers.begin

    def watched(sends: Mapping[int, Tensor], receives: Mapping[int, Tensor], doing: str, **options: Any) -> Any:
        for tensor in (*sends.values(), *receives.values()):
            travelled.setdefault(doing, set()).add(tensor.device.type)
        return begin(sends, receives, doing, **options)

    workers.begin = watched
    found = {case.name: numbers_of(case, workers, device) for case in cases()}
    torch.save(found, folder / f"worker {workers.rank}.pt")
    told = balanced(workers, device)
    text = {
        "travelled": {doing: sorted(kinds) for doing, kinds in travelled.items()},
        "balanced": told,
        "runs": runs_of(workers, folder / "runs", device),
    }
    (folder / f"worker {workers.rank}.json").write_text(json.dumps(text))
    if workers.is_first:
        torch.save(
            {case.name: numbers_of(case, None, torch.device("cpu")) for case in cases()}, folder / "alone.pt"
        )


@auto_dialect("naive")
def main(folder: Path) -> None:
    torch.set_num_threads(1)
    register()
    # By the names of this module, so that a device that is simulated has a size of accesses.
    cost_features.ACCESS_BYTES = {**cost_features.ACCESS_BYTES, SIMULATED: 128}
    run_workers(partial(work, folder=folder), SIZE)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
