"""Epoch sources: where a training session gets the work of an epoch. Whoever trains never asks what kind a source is.

:class:`WholeGraph` takes one step an epoch, in memory, streamed, or by several workers; those of :mod:`sagann.train.batch_epochs` take several.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Generator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from sagann.train.metrics import KINDS, Metrics, evaluate_splits, present_splits, quick_metrics
from sagann.train.predictor import Predictor
from sagann.train.runner import PreparedGraph, Runner, evaluating

if TYPE_CHECKING:
    from sagann.config import TrainConfig
    from sagann.graph import Graph
    from sagann.hybrid.manager import TrainerWork
    from sagann.nn import ModelConfig
    from sagann.runtime.recorder import Recorder
    from sagann.runtime.tiered import Traffic
    from sagann.train.balancer import Balancer
    from sagann.train.device_epochs import DeviceEpochs
    from sagann.train.losses import Loss

WHILE_TRAINING = ("train", "val")
"The splits that are measured while a model is trained."


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainStep:
    """The work of one optimizer step."""

    loss: Callable[[], Tensor]
    "Computes this process's part of the mean loss of the step's labelled vertices, with its gradient; LBFGS calls it several times."
    num_labelled: int
    "Number of labelled vertices: the weight of this step in the loss of the epoch."
    num_edges: int
    "Number of edges that a forward pass of this process walks, of all hops together."
    backward: Callable[[Tensor], None] = Tensor.backward
    "Propagates the loss back to the parameters."
    complete: Callable[[Tensor, int], tuple[Tensor, int]] = lambda loss, num_edges: (loss, num_edges)
    "Called after the backward pass: adds gradients, loss and number of edges of other workers to those of this process."
    note: str = ""
    "What a progress bar says beside the numbers; empty for nothing."


class EpochSource(ABC):
    """Gives a session its work, and measures the model on the whole graph. By default nothing is recorded, started or ended."""

    def __init__(self, predictor: Predictor, prepared: PreparedGraph) -> None:
        self._predictor = predictor
        self._prepared = prepared
        self.traffic: Traffic | None = None
        "What each tier of features gave to the steps of the last epoch; None without tiers."
        self.work: TrainerWork | None = None
        "What each of several trainers did in the last epoch; None for one trainer."
        self.trace: Recorder | None = None
        "What ran in the last epoch, if it is recorded."
        self.balancer: Balancer | None = None
        "Moves vertices between workers; None where parts stay."

    @property
    @abstractmethod
    def num_batches(self) -> int:
        """Number of steps in an epoch; each one trains a batch."""

    def on_device(self) -> type[DeviceEpochs] | None:
        """Who takes the steps where a device computes whole ones, which the host need not wait for; None where the session does."""
        return None

    @abstractmethod
    def steps(self, epoch: int, *, first: int = 0) -> Generator[TrainStep, None, None]:
        """The steps of an epoch, in order, without the ``first`` ones, which were taken already.

        A step depends on the epoch's number (from 1), its own number, the run's seed and the model alone. Whoever does not take all
        steps closes the generator.
        """

    @property
    def graph(self) -> Graph:
        """The graph that is walked."""
        return self._prepared.graph

    @property
    def loss(self) -> Loss:
        """The loss that is trained."""
        return self._predictor.mean_loss

    def is_quick(self, metric: str) -> bool:
        """Whether a metric is the loss or the quick one of the task."""
        return metric in ("loss", KINDS[self._predictor.contract.kind].quick)

    @property
    def runner(self) -> Runner:
        """How the model runs over the graph."""
        return self._predictor.runner(self._prepared)

    def logits(self) -> Tensor:
        """What is measured while the model is trained (:meth:`Predictor.logits`)."""
        return self._predictor.logits(self._prepared, splits=WHILE_TRAINING)

    def measure(self, names: Collection[str]) -> dict[str, Metrics]:
        """The loss, the quick metric of the task, and the metrics of these names on the splits 'train' and 'val'. A run measures all of them at its end."""
        kind = self._predictor.contract.kind
        return evaluate_splits(
            self.logits(),
            self._prepared.graph.answers,
            task=kind,
            loss=self._predictor.mean_loss,
            splits=WHILE_TRAINING,
            names={"loss", KINDS[kind].quick, *names},
        )

    def end_epoch(self, epochs_left: int) -> dict[str, Any]:
        """What the epoch was trained with, as :attr:`sagann.train.EpochRecord.extra` has it. Vertices may move between workers now, for the epochs that are left."""
        found = {
            name: value for each in (self.traffic, self.work) if each for name, value in each.to_json().items()
        }
        return found if self.balancer is None else found | self.balancer.settle(epochs_left)

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps of the source."""
        return {} if self.balancer is None else {"balance": self.balancer.state_dict()}

    def load_state_dict(self, found: Mapping[str, Any]) -> None:
        """Go on as the source did whose state it is, as far as that fits this one."""
        if self.balancer is not None and "balance" in found:
            self.balancer.load_state_dict(found["balance"])

    def open(self) -> None:
        """Start what the source needs besides this process."""
        if self.balancer is not None:
            self.balancer.begin()

    def close(self) -> None:
        """End what :meth:`open` has started. A second call does nothing."""


class WholeGraph(EpochSource):
    """The epoch source whose one step is the whole graph, in memory, streamed, or divided among workers."""

    num_batches = 1

    def __init__(self, predictor: Predictor, prepared: PreparedGraph, *, profile: bool = False) -> None:
        super().__init__(predictor, prepared)
        self._profile = profile
        # Looking for the rows of a split waits for the device, so they are kept: by split, on each device of those that share an epoch.
        self._kept: dict[tuple[str, torch.device], tuple[Tensor, Tensor]] = {}
        present = present_splits(prepared.graph.answers.splits)
        self._measured = [split for split in WHILE_TRAINING if split in present]
        # The rows of an interval are looked up on the host, so that the lookup does not wait for the device.
        self._rows = self._known("train", torch.device("cpu"))[0]

    def _known(self, split: str, device: torch.device) -> tuple[Tensor, Tensor]:
        """Ids of the vertices of a split with a known answer, and their answers, on a device."""
        if (split, device) not in self._kept:
            known = self._prepared.graph.answers
            rows, answers = known.rows(known.splits[split])
            self._kept[split, device] = rows.to(device), answers.to(device)
        return self._kept[split, device]

    def on_device(self) -> type[DeviceEpochs] | None:
        if self._predictor.device.type == "cpu" or self._prepared.part is not None:
            return None
        # Imported here: a run on the processor has no use for it.
        from sagann.train.device_epochs import DeviceEpochs

        return DeviceEpochs

    def why_queued(self) -> str | None:
        """Why no step can be recorded, as far as that is known before one is taken; None where it is tried."""
        return "a profile of the last one is written" if self._profile else self.runner.why_queued()

    def quick(self) -> dict[str, dict[str, Tensor]]:
        """The loss and the quick metric on the splits 'train' and 'val', as :meth:`measure` gives them, on the device."""
        predictor = self._predictor
        with evaluating(predictor.model):
            outputs = self.runner.rows_on_device()
        task, loss = predictor.contract.kind, predictor.mean_loss
        found = {split: self._known(split, predictor.device) for split in self._measured}
        return {
            split: quick_metrics(outputs, answers, task=task, loss=loss, rows=rows)
            for split, (rows, answers) in found.items()
        }

    def steps(self, epoch: int, *, first: int = 0) -> Generator[TrainStep, None, None]:
        if not first:
            yield TrainStep(
                loss=self._loss,
                num_labelled=len(self._rows),
                num_edges=self._prepared.walked.topology.num_edges * self._predictor.num_hops,
                complete=self.runner.complete,
            )

    def _loss(self) -> Tensor:
        if self._profile:
            from sagann.runtime.recorder import Recorder

            self.trace = Recorder()
        with self._prepared.team.forward():
            return self.runner.loss(self._loss_of, timeline=self.trace)

    def _loss_of(self, logits: Tensor, vertices: slice) -> Tensor:
        """The part of the training loss that a range of own vertices adds."""
        begin = self._prepared.vertices.start + vertices.start
        bounds = torch.tensor([begin, begin + vertices.stop - vertices.start])
        first, last = torch.searchsorted(self._rows, bounds).tolist()
        if first == last:
            return logits.new_zeros(())
        rows, answers = self._known("train", logits.device)
        part = self._predictor.mean_loss(logits.index_select(0, rows[first:last] - begin), answers[first:last])
        return part * ((last - first) / len(self._rows))


def source_of(
    predictor: Predictor,
    prepared: PreparedGraph,
    config: TrainConfig,
    *,
    model_config: ModelConfig | None,
    say: Callable[[str], None],
) -> EpochSource:
    """The source that a configuration asks for; ``model_config`` is None for a module of the user's own."""
    unit, part = predictor.contract.unit, prepared.part
    source: EpochSource
    if unit == "graph":
        from sagann.train.batch_epochs import GraphEpochs

        source = GraphEpochs(predictor, prepared, config)
    elif config.trains_together:
        from sagann.train.hybrid_epochs import HybridEpochs

        source = HybridEpochs(predictor, prepared, config, model_config=model_config, say=say)
    elif config.sample is not None:
        from sagann.train.batch_epochs import SampledEpochs

        source = SampledEpochs(predictor, prepared, config, say=say)
    elif unit == "link":
        from sagann.train.batch_epochs import LinkEpochs

        source = LinkEpochs(predictor, prepared, config)
    else:
        source = WholeGraph(predictor, prepared, profile=config.profile)
    if part is not None and part.workers.balance == "cost":
        from sagann.train.balancer import Balancer

        source.balancer = Balancer(part, say=say)
    return source
