"""Sampled runs on a simulated device, with padded batches; run by test_padded.py as a program of its own, which writes what it saw into a JSON file.

python -m tests.train.padded_driver FILE
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch_geometric.nn import GraphSAGE

from sagann.graph import Graph, add_self_loops
from sagann.interop import from_pyg_model
from sagann.kernels import edge, row_dropout
from sagann.nn import ModelConfig, build_model
from sagann.runtime.device import recording
from sagann.runtime.loading import minibatches
from sagann.runtime.tiered.device_sampler import Room
from sagann.saga import Edge, SagaLayer
from sagann.train import device_epochs, saver, session, tiers, trainer as trainers
from sagann.train.batch_epochs import SampledEpochs
from tests import simulated_device
from tests.plain import auto_dialect
from tests.runtime.device.drivers import SimulatedDevices
from tests.simulated_device import SimulatedStreams, queue_kernels, register
from tests.train.recorded_driver import DEVICE, SCHEDULED, Watching, both, changing, run, seeded
from tests.train.runs import CrashError, TwoLayers, community_graph, crash

EPOCHS = 5
SAMPLED: dict[str, Any] = {
    "device": "cuda:0",
    "sample": (3, 2),
    "sample_on": "device",
    "batch_size": 8,
    "batches_ahead": 0,
    "epochs": EPOCHS,
    # No metrics are measured between the batches that are counted.
    "eval_every": EPOCHS,
}


class Devices(SimulatedDevices):
    def __init__(self) -> None:
        super().__init__((1 << 30,))

    def device(self, number: int) -> torch.device:
        return DEVICE[0]

    def streams(self, number: int) -> Any:
        return SimulatedStreams(DEVICE[0])

    def empty(self, number: int, num_bytes: int) -> Tensor:
        return torch.full((num_bytes,), 0xFF, dtype=torch.uint8, device=DEVICE[0])


def model_of(name: str) -> nn.Module:
    graph = community_graph()
    torch.manual_seed(0)
    if name == "PyG":
        return from_pyg_model(GraphSAGE(8, 8, 2, 3, dropout=0.5), graph)
    return build_model(ModelConfig(model=name, hidden=8, dropout=0.5), graph)


def trained(name: str, queued: bool, **options: Any) -> dict[str, Any]:
    return run(model_of(name), queued=queued, **{**SAMPLED, **SCHEDULED, **options})


class WeightedMean(SagaLayer):
    """Divides by a sum that is 0 without in-edges."""

    accumulator = "sum"

    def __init__(self, in_dim: int, out_dim: int) -> None:
        super().__init__()
        self.linear, self.score = nn.Linear(in_dim, out_dim), nn.Linear(in_dim, 1)

    def apply_edge(self, edge: Edge) -> Tensor:
        weight = self.score(edge.src).exp()
        return torch.cat([weight * edge.src, weight], 1)

    def apply_vertex(self, vertex: Tensor, accum: Tensor) -> Tensor:
        return self.linear(accum[:, :-1] / accum[:, -1:])


class WeightedMeans(TwoLayers):
    def __init__(self) -> None:
        super().__init__(dropout=0.0)
        self.first, self.norm, self.second = WeightedMean(8, 8), nn.Identity(), WeightedMean(8, 3)

    @staticmethod
    def prepare(graph: Graph) -> Graph:
        return add_self_loops(graph)


def difference(make: Callable[[], nn.Module] = lambda: model_of("gat")) -> float:
    """Largest difference of a weight of a float64 run from that of the same run without padding."""
    padded, plain = (
        run(make().double(), weights="last", **{**SAMPLED, "sample_on": place}) for place in ("device", "cpu")
    )
    assert [any("launches" in counts for counts in each["counts"]) for each in (padded, plain)] == [True, False]
    pairs = zip(padded["weights"].values(), plain["weights"].values(), strict=True)
    return max(float((torch.tensor(one) - torch.tensor(other)).abs().max()) for one, other in pairs)


def tight(num_src: int, num_edges: int) -> Room:
    """Too little room for the largest batch, which needs a source more, as padding."""
    return Room(num_src, num_edges)


def beyond() -> dict[str, Any]:
    """With the batches that are trained without padding: epochs, and the first number."""
    again: list[tuple[int, int]] = []
    plain = session.TrainSession.results

    def results(self: Any, epoch: int, first: int) -> Any:
        again.append((epoch, first))
        return plain(self, epoch, first)

    with (
        patch.object(Room, "beyond", staticmethod(tight)),
        patch.object(session.TrainSession, "results", results),
    ):
        found = {**both(lambda queued: trained("gcn", queued)), "again": list(again)}
        return {**found, "difference": difference()}


def resumed(folder: Path) -> dict[str, bool]:
    """Whether runs that crash after a batch, after which they were saved, and are resumed, are the whole run."""

    def after(epoch: int, batch: int, name: str) -> dict[str, Any]:
        watching = Watching()
        watching.place, watching.call = (epoch, batch), crash
        always = patch.multiple(saver, _MOST_UNSAVED_S=0.0, _LEAST_SPACING=0)
        with always, suppress(CrashError):
            trained("gcn", False, run_dir=folder / name, watching=watching)
        assert any("-batch-" in each.name for each in (folder / name / "checkpoints").iterdir())
        return trained("gcn", False, run_dir=folder / name, resume=True)

    whole = trained("gcn", False)
    found = {
        f"{epoch}, {batch}": after(epoch, batch, f"{epoch} {batch}") for epoch, batch in ((1, 2), (2, 1), (3, 2))
    }
    return {name: all(each[key] == whole[key] for key in ("history", "weights")) for name, each in found.items()}


def hot(work: Callable[[], Any]) -> Any:
    """With features of which a part lies on the device, and the others in pinned memory."""
    tiered = SampledEpochs._tiered

    def there(self: Any, *given: Any, **options: Any) -> Any:
        return tiered(self, *given, **{**options, "gathers_there": True})

    with patch.object(SampledEpochs, "_tiered", there):
        return work()


def with_kernels(work: Callable[[], Any]) -> Any:
    """With the passes of CUDA devices."""
    with patch.dict(edge._FASTEST, {"simulated": "gpu"}):
        edge.dialect_for.cache_clear()
        found = work()
    edge.dialect_for.cache_clear()
    return found


def cases(folder: Path) -> dict[str, Callable[[], Any]]:
    return {
        "gcn": lambda: both(lambda queued: trained("gcn", queued)),
        "difference": difference,
        "weighted means": lambda: difference(lambda: seeded(WeightedMeans)),
        "beyond": beyond,
        "resumed": lambda: resumed(folder),
        "hot": lambda: hot(lambda: both(lambda queued: trained("gcn", queued, hot="30%"))),
        "a number is read": lambda: both(lambda queued: run(seeded(plain_reading), queued=queued, **SAMPLED)),
        "BatchNorm": lambda: run(seeded(TwoLayers), **SAMPLED)["messages"],
        "RMSprop": lambda: trained("gcn", False, optimizer="RMSprop")["messages"],
        "PyG": lambda: both(lambda queued: trained("PyG", queued)),
        "kernels": lambda: with_kernels(
            lambda: both(lambda queued: trained("gcn", queued, epochs=3, eval_every=3))
        ),
    }


def plain_reading() -> nn.Module:
    model: Any = changing(lambda rows, x: rows + 0 * float(x.sum()))()
    model.norm = nn.Identity()
    return model


@auto_dialect("naive")
def main(path: Path) -> None:
    torch.set_num_threads(1)
    DEVICE.append(register())
    queue_kernels()
    trainers.device_of = lambda config: DEVICE[0]
    device_epochs.GraphStreams = SimulatedStreams
    minibatches.Streams = SimulatedStreams
    minibatches.device_named = lambda device, where: torch.device(device)
    tiers._beside_budget = lambda devices, config: Devices()
    # A tensor on the device is not one of PyTorch's own kinds.
    row_dropout.is_plain = lambda x: True
    # The simulated device calls the line of the user in its own frames.
    recording._NOT_THE_USERS += (simulated_device.__file__,)
    with tempfile.TemporaryDirectory() as folder:
        path.write_text(json.dumps({name: case() for name, case in cases(Path(folder)).items()}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
