"""Runs on a simulated device, recorded and queued; run by test_recorded.py as a program of its own, which writes what it saw into a JSON file.

python -m tests.train.recorded_driver FILE
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sagann.errors import InputError
from sagann.graph import Graph, Topology
from sagann.kernels import row_dropout
from sagann.nn import ModelConfig
from sagann.runtime.device import recording
from sagann.train import EpochRecord, TrainConfig, Trainer, device_epochs, trainer as trainers
from tests import simulated_device
from tests.plain import auto_dialect
from tests.simulated_device import COUNTED, FAULTS, SimulatedStreams, SimulatedTensor, register
from tests.train.runs import Heard, TwoLayers, community_graph, numbers_of, values_graph

EPOCHS = 6
MODELS = ("gcn", "gat", "sage", "gin", "commnet", "maxpool-gcn", "gated-gcn")
SCHEDULED: dict[str, Any] = {"clip_norm": 1.0, "scheduler": "ExponentialLR", "scheduler_options": {"gamma": 0.9}}
OPTIONS: dict[str, dict[str, Any]] = {
    "sgd": {"optimizer": "SGD", "lr": 0.1, "optimizer_options": {"momentum": 0.9}, **SCHEDULED},
    "class weights": {"optimizer": "AdamW", "class_weights": "balanced"},
    "rmsprop": {"optimizer": "RMSprop", "weights": "last"},
    "every second epoch": {"eval_every": 2, "epochs": 9},
    "plateau": {"scheduler": "ReduceLROnPlateau", "scheduler_options": {"patience": 0, "mode": "min"}},
    "patience": {"patience": 2, "epochs": 40, "lr": 0.3},
    "metric of the processor": {"monitor": "val/roc_auc"},
    "cycled betas": {"scheduler": "OneCycleLR", "scheduler_options": {"max_lr": 0.1, "total_steps": EPOCHS}},
    "cycled betas, every third epoch": {
        "scheduler": "OneCycleLR",
        "scheduler_options": {"max_lr": 0.1, "total_steps": 10},
        "eval_every": 3,
        "epochs": 10,
    },
    "decay of some": {"decay": "matrices", "scheduler": "StepLR", "scheduler_options": {"step_size": 2}},
}


class Watching(Heard):
    """Is content with numbers, and keeps what the host has queued from one report to the next."""

    def __init__(self, after: dict[int, Callable[[], object]] | None = None) -> None:
        super().__init__()
        self.after, self.counts = after or {}, list[dict[str, int]]()

    def needs_weights(self, epoch: int) -> bool:
        return False

    def on_epoch(self, record: EpochRecord) -> None:
        super().on_epoch(record)
        self.counts.append({name: count for name, count in COUNTED.items() if count})
        COUNTED.clear()
        if record.epoch in self.after:
            self.after[record.epoch]()


def changing(change: Callable[[Tensor, Tensor], Tensor]) -> type[nn.Module]:
    """A model whose outputs are changed: by what, is given them and the features."""

    class Changing(TwoLayers):
        def forward(self, hops: Sequence[Topology], x: Tensor) -> Tensor:
            return change(super().forward(hops, x), x)

    return Changing


class Counting(TwoLayers):
    calls = 0

    def forward(self, hops: Sequence[Topology], x: Tensor) -> Tensor:
        self.calls += 1
        return super().forward(hops, x) / self.calls


class Remembering(TwoLayers):
    def __init__(self) -> None:
        super().__init__()
        self.last: Tensor | None = None

    def forward(self, hops: Sequence[Topology], x: Tensor) -> Tensor:
        rows = super().forward(hops, x)
        found = rows if self.last is None else rows + 0.1 * self.last
        self.last = rows.detach()
        return found


class Dropping(TwoLayers):
    """Draws a seed more in each epoch; the count is hidden from those who look at numbers of the model."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[int] = []

    def forward(self, hops: Sequence[Topology], x: Tensor) -> Tensor:
        self.told += [1] * self.training
        for _ in self.told if self.training else ():
            x = row_dropout.dropout(x, 0.1)
        return super().forward(hops, x)


class Growing(TwoLayers):
    """Counts its calls in a list, and keeps a buffer from its second epoch on."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[int] = []

    def forward(self, hops: Sequence[Topology], x: Tensor) -> Tensor:
        self.told += [1] * self.training
        if len(self.told) == 2:
            self.register_buffer("late", torch.full((3,), 0.5, device=x.device))
        return super().forward(hops, x) / (1 + len(self.told))


class Odd(TwoLayers):
    """Has attributes whose content is not compared, or is unequal to itself."""

    def __init__(self) -> None:
        super().__init__()
        self.links, self.fill, self.names = torch.eye(8).to_sparse(), torch.nan, list(range(2000))


class Thawing(TwoLayers):
    """Begins to use a layer in its second epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[int] = []
        self.late = nn.Linear(8, 3)

    def forward(self, hops: Sequence[Topology], x: Tensor) -> Tensor:
        self.told += [1] * self.training
        rows = super().forward(hops, x)
        return rows + self.late(x) if len(self.told) > 1 else rows


def hooked() -> nn.Module:
    model = TwoLayers()
    model.first.register_forward_hook(lambda module, args, result: None)
    return model


def plain_adam(groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
    return torch.optim.Adam(groups, lr=0.01)


CAUSES: dict[str, tuple[Callable[[], nn.Module], dict[str, Any]]] = {
    "a number is read": (changing(lambda rows, x: rows + 0 * float(x.sum())), {}),
    "pageable memory is copied": (
        changing(lambda rows, x: rows * torch.tensor([1.0, 1.0, 2.0], device=x.device)),
        {},
    ),
    "shapes depend on data": (changing(lambda rows, x: rows + x[x[:, 0] > 0].mean()), {}),
    "numbers of Python": (changing(lambda rows, x: rows * (1.0 if random.random() < 0.5 else 1.5)), {}),
    "numbers of torch": (changing(lambda rows, x: rows * (1.0 if torch.rand(()).tolist() < 0.5 else 1.5)), {}),
    "a count of calls": (Counting, {}),
    "a tensor that is kept": (Remembering, {}),
    "a seed more": (Dropping, {}),
    "a layer more": (Thawing, {}),
    "a list that grows": (Growing, {}),
    "hooks": (hooked, {}),
    "an optimizer of the host": (TwoLayers, {"optimizer": plain_adam}),
    "lbfgs": (TwoLayers, {"optimizer": "LBFGS"}),
}


def run(
    model: nn.Module | ModelConfig,
    graph: Graph | None = None,
    *,
    queued: bool = False,
    watching: Watching | None = None,
    run_dir: Path | None = None,
    resume: bool = False,
    **options: Any,
) -> dict[str, Any]:
    """A run's history, final weights, messages and counts; with ``queued``, of a driver that has no graphs."""
    FAULTS.clear()
    FAULTS.update({"no graphs"} if queued else ())
    simulated_device.reset()
    watching = watching or Watching()
    given = {name: options.pop(name) for name in ("optimizer", "loss") if callable(options.get(name))}
    config = TrainConfig(**{"epochs": EPOCHS, "device": "cpu", **options})
    trainer = Trainer(model, graph or community_graph(), config, reporter=watching, run_dir=run_dir, **given)
    RUNNING[:] = [trainer]
    result = trainer.fit(resume=resume)
    return {
        "history": numbers_of(result),
        "weights": weights_of(trainer),
        "metrics": result.metrics,
        "messages": watching.messages,
        "counts": watching.counts,
        "best": result.best_epoch,
        "interrupted": result.interrupted,
    }


def weights_of(trainer: Trainer) -> dict[str, Any]:
    return {name: each.to("cpu").tolist() for name, each in trainer.model.state_dict().items()}


RUNNING: list[Trainer] = []
"The trainer that runs."


def seeded(kind: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    return kind()


def both(make: Callable[[bool], dict[str, Any]]) -> dict[str, Any]:
    """A run that may be recorded, and whether it is bitwise the run that is queued."""
    found, queued = make(False), make(True)
    same = [found[name] == queued[name] for name in ("history", "weights", "metrics", "best")]
    kept = {name: found[name] for name in ("messages", "counts", "best")}
    return {**kept, "same": all(same), "epochs": len(found["history"])}


def of_model(name: str) -> ModelConfig:
    return ModelConfig(model=name, hidden=8, dropout=0.5)


def resumed(queued: bool, folder: Path) -> dict[str, Any]:
    folder = folder / f"queued {queued}"
    run(of_model("gcn"), run_dir=folder, queued=queued, epochs=4, checkpoint_every=3, **SCHEDULED)
    return run(of_model("gcn"), run_dir=folder, queued=queued, epochs=9, resume=True, **SCHEDULED)


def resumed_whole(folder: Path) -> bool:
    """Whether a run that was resumed, recorded, is the run in one piece."""
    part, whole = resumed(False, folder / "again"), run(of_model("gcn"), epochs=9, **SCHEDULED)
    return part["history"] == whole["history"] and part["weights"] == whole["weights"]


def own_reporter() -> bool:
    """Whether a reporter that needs weights sees those of its epoch, which a shorter run ends with."""
    seen: list[dict[str, Any]] = []
    watching = Watching({4: lambda: seen.append(weights_of(RUNNING[0]))})
    with patch.object(Watching, "needs_weights", lambda self, epoch: True):
        run(of_model("gcn"), watching=watching, weights="last")
    return seen == [run(of_model("gcn"), epochs=4, weights="last")["weights"]]


def interrupted(folder: Path) -> dict[str, Any]:
    """A run that gets Ctrl-C while the device runs its third launch, and the same run resumed."""
    launches = [0]

    def press() -> None:
        launches[0] += 1
        if launches[0] == 3:
            os.kill(os.getpid(), signal.SIGINT)

    with patch.object(SimulatedStreams, "on_launch", staticmethod(press)):
        stopped = run(of_model("gcn"), run_dir=folder, epochs=20, **SCHEDULED)
    found = run(of_model("gcn"), run_dir=folder, epochs=20, resume=True, **SCHEDULED)
    whole = run(of_model("gcn"), epochs=20, queued=True, **SCHEDULED)
    same = found["history"] == whole["history"] and found["weights"] == whole["weights"]
    return {"interrupted": stopped["interrupted"], "stopped": len(stopped["history"]), "same": same}


def changed(change: Callable[[Trainer], object]) -> dict[str, Any]:
    """A run in which something is changed after the fourth epoch has been reported."""

    def make(queued: bool) -> dict[str, Any]:
        watching = Watching({4: lambda: change(RUNNING[0])})
        return run(of_model("gat"), weighted(), queued=queued, watching=watching, epochs=9)

    return both(make)


def weighted() -> Graph:
    graph = community_graph()
    topology = graph.topology
    weight = torch.linspace(0.5, 1.5, topology.num_edges)
    edges = Topology(
        indptr=topology.indptr, indices=topology.indices, num_src=topology.num_src, edge_data={"weight": weight}
    )
    return replace(graph, topology=edges)


def replace_weight(trainer: Trainer) -> None:
    parameter = next(trainer.model.parameters())
    parameter.values = parameter.values.clone()


class Weighted:
    """A loss that somebody else sets the weight of."""

    weight = 1.0

    def __call__(self, outputs: Tensor, answers: Tensor) -> Tensor:
        return self.weight * F.cross_entropy(outputs, answers, reduction="none")


def loss_changed(queued: bool) -> dict[str, Any]:
    loss = Weighted()
    watching = Watching({epoch: lambda e=epoch: setattr(loss, "weight", 1 / e) for epoch in (4, 5, 6)})
    with patch.object(Watching, "needs_weights", lambda self, epoch: True):
        return run(of_model("gcn"), queued=queued, watching=watching, loss=loss, epochs=9)


class Plain:
    """A reporter that has the methods that a reporter had before recordings, and inherits nothing."""

    def __init__(self) -> None:
        self.losses: list[float] = []

    def on_start(self, info: object) -> None: ...
    def on_batch(self, progress: object) -> None: ...
    def on_end(self, result: object) -> None: ...
    def on_message(self, text: str) -> None: ...

    def on_epoch(self, record: EpochRecord) -> None:
        self.losses.append(record.loss)


def plain_reporter() -> bool:
    simulated_device.reset()
    reporter = Plain()
    trainer = Trainer(
        of_model("gcn"), community_graph(), TrainConfig(epochs=EPOCHS, device="cpu"), reporter=reporter
    )
    return reporter.losses == [record.loss for record in trainer.fit().history]


def of_float64() -> float:
    """Largest difference of a weight from that of a run on the processor."""
    simulated_device.reset()
    given = {"epochs": EPOCHS, "device": "cpu", "lr": 0.01, "weights": "last"}

    def trained() -> list[Tensor]:
        torch.manual_seed(0)
        trainer = Trainer(TwoLayers(dropout=0.0).double(), community_graph(), TrainConfig(**given))
        trainer.fit()
        return [each.detach().to("cpu") for each in trainer.model.parameters()]

    on_device = trained()
    with patch.object(trainers, "device_of", lambda config: torch.device("cpu")):
        on_processor = trained()
    return max(float((one - other).abs().max()) for one, other in zip(on_device, on_processor, strict=True))


def write_edges(trainer: Trainer) -> None:
    for data in trainer.prepared.graph.topology.edge_data.values():
        data.mul_(1.0)


class Breaking(nn.Module):
    """Its outputs are NaN from the third epoch on, as the device alone knows."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = TwoLayers()
        self.register_buffer("epochs", torch.zeros(()))

    def forward(self, hops: Sequence[Topology], x: Tensor) -> Tensor:
        if self.training:
            self.epochs += 1
        rows = self.inner(hops, x)
        return torch.where(self.epochs > 2, torch.nan, 1.0) * rows if self.training else rows


def diverged() -> dict[str, Any]:
    watching = Watching()
    try:
        run(seeded(Breaking), watching=watching, epochs=20)
    except InputError as error:
        return {"error": str(error), "queued": RUNNING[0].model.epochs.tolist()}
    return {}


@contextmanager
def little_memory() -> Any:
    with patch.object(SimulatedStreams, "most_bytes", 4096):
        yield


def out_of_memory() -> dict[str, Any]:
    with little_memory():
        return both(lambda queued: run(of_model("gcn"), queued=queued))


def freed() -> str:
    """What the interpreter says of a recording that reads memory of which nobody else knows any more."""
    FAULTS.clear()
    streams = SimulatedStreams(DEVICE[0])
    given = [torch.ones(4, device=DEVICE[0])]
    kept: list[Tensor] = []
    launch = streams.capture(lambda: kept.append(given[0] + 1))
    launch()
    found = kept[0].tolist()
    given.clear()
    launch()
    try:
        streams.finish(streams.mark("compute"))
    except AssertionError as error:
        return f"{found} {error}"
    return ""


DEVICE: list[torch.device] = []


class OwnDropout(TwoLayers):
    """Draws from the device's generator, whose numbers go on with each launch."""

    def forward(self, hops: Sequence[Topology], x: Tensor) -> Tensor:
        return super().forward(hops, F.dropout(x, 0.5, self.training))


def cases(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = {
        "models": {name: both(lambda q, n=name: run(of_model(n), queued=q, **SCHEDULED)) for name in MODELS},
        "options": {
            name: both(lambda q, o=options: run(of_model("gcn"), queued=q, **o))
            for name, options in OPTIONS.items()
        },
        "causes": {
            name: both(lambda q, k=kind, o=options: run(seeded(k), queued=q, **o))
            for name, (kind, options) in CAUSES.items()
        },
        "changes": {
            "features": changed(lambda trainer: trainer.prepared.graph.features.mul_(1.0)),
            "edge data": changed(write_edges),
            "storage": changed(replace_weight),
            "loss": both(loss_changed),
            "hook": changed(lambda trainer: trainer.model.register_forward_hook(lambda *given: None)),
        },
        "out of memory": out_of_memory(),
        "no graphs": run(of_model("gcn"), queued=True)["messages"],
        "diverged": diverged(),
        "resumed": both(lambda queued: resumed(queued, folder)) | {"whole": resumed_whole(folder)},
        "interrupted": interrupted(folder / "interrupted"),
        "counted": run(of_model("gcn"), weights="last", **SCHEDULED)["counts"],
        "tasks": {
            "values": both(lambda queued: run(of_model("sage"), values_graph(num_targets=2), queued=queued)),
            "labels": both(lambda queued: run(of_model("sage"), community_graph(multi_label=True), queued=queued)),
            "odd attributes": both(lambda queued: run(seeded(Odd), queued=queued)),
            "own dropout": both(lambda queued: run(seeded(OwnDropout), queued=queued)),
        },
        "own reporter": own_reporter(),
        "plain reporter": plain_reporter(),
        "float64": of_float64(),
        "freed": freed(),
    }
    return found


def prepare() -> None:
    """Have trainers find the simulated device."""
    torch.set_num_threads(1)
    DEVICE.append(register())
    trainers.device_of = lambda config: DEVICE[0]
    device_epochs.GraphStreams = SimulatedStreams
    # A tensor on the device is not one of PyTorch's own kinds.
    is_plain = row_dropout.is_plain
    row_dropout.is_plain = lambda x: isinstance(x, SimulatedTensor) or is_plain(x)
    # The simulated device calls the line of the user in its own frames.
    recording._NOT_THE_USERS += (simulated_device.__file__,)


@auto_dialect("naive")
def main(path: Path) -> None:
    prepare()
    with tempfile.TemporaryDirectory() as folder:
        path.write_text(json.dumps(cases(Path(folder))))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
