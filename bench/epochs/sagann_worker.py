"""sagann's contestant: ``build_model`` and a loop, as a user would write them; or its Trainer, with its defaults."""

from __future__ import annotations

import threading
from contextvars import copy_context
from pathlib import Path
from queue import SimpleQueue

from torch import nn

from bench.epochs.graphs import graph_of
from bench.standalone.serve import serve
from bench.standalone.stored import read_stored
from bench.standalone.training import Training, read_weights
from sagann.graph import Graph
from sagann.nn import ModelConfig, build_model
from sagann.runtime.in_memory.engine import CompiledEngine
from sagann.saga import set_engine
from sagann.train import EpochRecord, LogReporter, TrainConfig, Trainer

MOST_EPOCHS = 1_000_000
"More than any contest runs."


def config_of(specification: dict) -> ModelConfig:
    """The zoo's model that the specification asks for."""
    return ModelConfig(**{name: specification[name] for name in ("model", "layers", "hidden", "heads", "dropout")})


def load(specification: dict, folder: Path) -> Graph:
    if specification["variant"] == "lean":
        set_engine(CompiledEngine(lean=True))
    stored = read_stored(folder)
    graph = graph_of(stored.with_sparse_features() if specification["sparse"] else stored)
    if specification["defaults"]:
        # The Trainer prepares it.
        return graph
    return build_model(config_of(specification), graph).prepare(graph)


def model_of(specification: dict, graph: Graph) -> nn.Module:
    """The model with the common first weights."""
    model = build_model(config_of(specification), graph)
    model.load_state_dict(read_weights(Path(specification["folder"]), specification["model"]))
    return model


class _ClosedError(Exception):
    """The run was closed."""


class TrainerRun(LogReporter):
    """A run of the Trainer, in a thread that waits after every epoch for the next request.

    So an epoch is all that ``sagann train`` does, evaluation and metrics included.
    """

    def __init__(self, config: ModelConfig, graph: Graph, device: object = "auto") -> None:
        self.graph = graph
        self.trainer = Trainer(config, graph, TrainConfig(epochs=MOST_EPOCHS, device=str(device)), reporter=self)
        self.permits: SimpleQueue[bool] = SimpleQueue()
        self.ended: SimpleQueue[BaseException | None] = SimpleQueue()
        # The engine that was chosen belongs to the context, which a thread does not inherit.
        self.thread = threading.Thread(target=copy_context().run, args=(self._fit,), daemon=True)

    def run(self) -> float:
        """One epoch. Gives no loss: contestants drop different values."""
        if self.thread.is_alive():
            self.permits.put(True)
        else:
            self.thread.start()
        if (error := self.ended.get()) is not None:
            raise error
        return float("nan")

    def close(self) -> None:
        """End the run, which otherwise keeps PyTorch's settings of a training."""
        if self.thread.is_alive():
            self.permits.put(False)
            self.thread.join()

    def on_epoch(self, record: EpochRecord) -> None:
        self.ended.put(None)
        if not self.permits.get():
            raise _ClosedError

    def _fit(self) -> None:
        try:
            self.trainer.fit()
        except BaseException as error:  # noqa: BLE001  (raised again in :meth:`run`)
            self.ended.put(error)


def build(specification: dict, graph: Graph) -> Training | TrainerRun:
    """The model in the usual loop, or in the Trainer with its defaults."""
    if specification["defaults"]:
        return TrainerRun(config_of(specification), graph)
    model = model_of(specification, graph)
    assert graph.labels is not None
    train = graph.splits["train"].nonzero().squeeze(1)
    hops = graph.hops(model.num_hops)
    return Training(lambda: model(hops, graph.features), model, graph.labels, train)


if __name__ == "__main__":
    serve(load, build)
