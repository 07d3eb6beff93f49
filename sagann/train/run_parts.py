"""RunParts: what a run is made of, checked and put together, and the sessions that are made of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from sagann import interop
from sagann.config import TrainConfig
from sagann.errors import MissingDependencyError
from sagann.graph import Graph, for_task
from sagann.graph.task import left_out, task_of
from sagann.graph.validate import validate_labels
from sagann.interop.pyg_call import is_written_for_pyg
from sagann.nn import ModelConfig, build_model
from sagann.nn.model_call import class_of
from sagann.runtime.team import Team
from sagann.storage.verify import check_graph
from sagann.train.agreement import device_together, require_agreement, require_divisible
from sagann.train.automatic import automatic_budget, bytes_in_files
from sagann.train.best import BestTracker, resolve_monitor
from sagann.train.contract import Contract, require_names
from sagann.train.epoch_source import EpochSource, WholeGraph
from sagann.train.losses import Loss, LossFunction, build_loss
from sagann.train.own_metrics import OwnMetrics
from sagann.train.policies import (
    DECAY_POLICIES,
    OptimizerFactory,
    ParamGroups,
    SchedulerFactory,
    build_optimizer,
    build_scheduler,
    try_policies,
)
from sagann.train.predictor import Predictor
from sagann.train.preparation import PreparedGraph
from sagann.train.resources import seeded
from sagann.train.run_folder import AUTOMATIC, RunFolder
from sagann.train.session import TrainSession
from sagann.train.streaming import Streaming
from sagann.train.trainable import check_sampled, check_trainable, learned_as_well, require_seeds_apart

if TYPE_CHECKING:
    from sagann.train.balancer import Balancer


class RunParts:
    """A model, a graph and a configuration that are checked against each other, and the sessions that are made of them.

    The arguments are those of :class:`sagann.train.Trainer`.

    Args:
        team: the workers that train together.
        spill_dir: the run folder that spilled blocks go to, where the configuration names no other; None for a run without one.
        say: is told what the user should know.
    Raises:
        InputError: the graph, the model or the configuration cannot be trained as it is.
    """

    def __init__(
        self,
        model: nn.Module | ModelConfig,
        graph: Graph,
        config: TrainConfig,
        *,
        source: str | None,
        class_names: Sequence[str],
        loss: LossFunction | None,
        metrics: OwnMetrics | None,
        optimizer: OptimizerFactory | None,
        scheduler: SchedulerFactory | None,
        param_groups: ParamGroups | None,
        validate: bool,
        team: Team,
        spill_dir: Path | None,
        say: Callable[[str], None],
    ) -> None:
        everything, graph = graph, for_task(graph, config.task, where="TrainConfig.task")
        self.config, self.graph, self.team, self.spill_dir, self.say = config, graph, team, spill_dir, say
        self.source = source or graph.name
        "Name of the data."
        self._tell(left_out(everything, task_of(graph)))
        contract = Contract.of(graph)
        names = class_names or graph.class_names[: contract.num_classes]
        self.class_names = require_names(names, contract.num_classes, where="Trainer.class_names")
        if optimizer is None and scheduler is None:
            try_policies(config)
        # The first of several workers checks every value, and the others wait for what it finds.
        with team.together("checking the graph"):
            if validate:
                check_graph(graph)
            else:
                validate_labels(graph)
        check_trainable(graph)
        self._tell(learned_as_well(graph))
        config.require_effect(of_graphs=contract.unit == "graph", of_links=contract.unit == "link")
        if config.tensorboard and find_spec("tensorboard") is None:
            raise MissingDependencyError("tensorboard", extra="tensorboard", feature="TrainConfig.tensorboard")
        device = device_together("cpu" if config.devices else config.device, team, self._tell)
        self.model_config = model if isinstance(model, ModelConfig) else None
        "What the model was built from; None for a module of the user's own."
        with seeded(config.seed, device):
            mean_loss = self._loss(contract, loss, device)
        self.monitor = resolve_monitor(config, contract, graph.answers.splits)
        "The monitored metric, as 'val/accuracy'."
        self.weights = config.weights or ("best" if self.monitor.startswith("val/") else "last")
        "Weights that the run ends with: 'best' or 'last'."
        module = self._built(model, contract, device)
        self.predictor = Predictor(
            module,
            contract,
            device=device,
            loss=mean_loss,
            metrics=metrics,
            streaming=Streaming.of(config, spill_dir, device=device),
            workers=team,
        )
        self._make_optimizer, self._make_scheduler = optimizer, scheduler
        self._param_groups = param_groups or DECAY_POLICIES[config.decay]
        if team.size > 1:
            require_divisible(config, balance=team.balance)
            require_agreement(team, config, graph, self.predictor, self.model_config)
        # Large arrays of the prepared graph lie in files where memory may be too small for both the arrays and the run.
        self._in_files_bytes = bytes_in_files(self.model, graph) if self._chooses_budget else 0
        self.prepared = self._prepare()
        "The graph as the model reads it."

    def _tell(self, text: str | None) -> None:
        if text:
            self.say(text)

    def _loss(self, contract: Contract, function: LossFunction | None, device: torch.device) -> Loss:
        config, answers = self.config, self.graph.answers
        loss = build_loss(
            contract.kind, answers, name=config.loss, class_weights=config.class_weights, function=function
        )
        loss.try_out(answers, 1 + config.negatives if contract.unit == "link" else contract.num_outputs, device)
        return loss

    def _built(self, model: nn.Module | ModelConfig, contract: Contract, device: torch.device) -> nn.Module:
        if isinstance(model, ModelConfig):
            self._tell(model.without_effect(of_graphs=contract.unit == "graph"))
            with seeded(self.config.seed, device):
                model = build_model(model, self.graph)
        if is_written_for_pyg(model):
            model = interop.from_pyg_model(model, self.graph)
            self._tell(model.left_out(self.graph))
        if self.config.sample is not None:
            check_sampled(model, self.graph, self.config.sample)
        return model

    def _prepare(self) -> PreparedGraph:
        features, predictor = self.graph.features, self.predictor
        is_store = not isinstance(features, Tensor | None)
        if self.config.sample is not None and predictor.streaming is None and is_store:
            self.say(
                f"All rows of the {type(features).__name__} are read into memory, where an evaluation takes them: mini-batches do not "
                "read the store. With a memory budget (--memory, TrainConfig.memory) they do, and evaluations are streamed."
            )
        files = Streaming.of(self.config, self.spill_dir, device=self.device, automatic_bytes=1)
        with files.large_arrays() if files is not None and self._in_files_bytes else nullcontext():
            return predictor.prepare(self.graph, validate=False)

    @property
    def model(self) -> nn.Module:
        """The model, with the weights it has now."""
        return self.predictor.model

    @property
    def model_name(self) -> str:
        """Name of the model in the zoo, or of its class."""
        return class_of(self.model).__name__ if self.model_config is None else self.model_config.model

    @property
    def device(self) -> torch.device:
        """The device that computes."""
        return self.predictor.device

    @property
    def learns_links(self) -> bool:
        """Whether links are learned."""
        return self.predictor.contract.unit == "link"

    @property
    def _chooses_budget(self) -> bool:
        """Whether the whole graph is streamed where memory is too small for it, although no budget is stated."""
        is_alone = self.config.memory is None and self.device.type == "cpu" and self.team.size == 1
        return is_alone and (self.predictor.contract.unit == "vertex" or self.config.sample is not None)

    def stream_where_needed(self, folder: RunFolder | None, *, resume: bool) -> None:
        """Stream the model where a budget is stated, or where memory is too small for the run."""
        budget_bytes = None
        if self._chooses_budget:
            known = folder.read_run().get(AUTOMATIC) if folder is not None and folder.exists and resume else None
            budget_bytes = automatic_budget(
                self.model,
                self.prepared.graph,
                self.say,
                known=known,
                in_files_bytes=self._in_files_bytes,
                hot_bytes=self._hot_bytes(),
                trains=self.config.sample is None,
            )
        streaming = Streaming.of(self.config, self.spill_dir, device=self.device, automatic_bytes=budget_bytes)
        if streaming is not None:
            streaming.warn(self.say)
        self.predictor.stream_within(streaming)

    def session(self) -> TrainSession:
        """A session that trains the model from the weights it has now."""
        self.predictor.try_out(self.prepared)
        if self.config.sample is not None:
            require_seeds_apart(self.predictor, self.prepared.graph.to("cpu"), self.config.sample)
        return self.session_of(self.predictor, self._epoch_source())

    def session_of(self, predictor: Predictor, source: EpochSource) -> TrainSession:
        """A session that trains the model of ``predictor``, which may be a copy, on the steps of ``source``."""
        config = self.config
        tracker = BestTracker(self.monitor, keep_weights=self.weights == "best", patience=config.patience)
        # TrainConfig has put a number in place of None.
        assert config.weight_decay is not None
        groups = self._param_groups(predictor.model, config.weight_decay)
        optimizer = (self._make_optimizer or partial(build_optimizer, config))(groups)
        make_scheduler = self._make_scheduler or partial(build_scheduler, config, maximise=tracker.maximise)
        return TrainSession(
            model=predictor.model,
            source=source,
            device=self.device,
            config=config,
            optimizer=optimizer,
            scheduler=make_scheduler(optimizer),
            tracker=tracker,
            team=self.team,
            balancer=self._balancer(),
        )

    def _epoch_source(self) -> EpochSource:
        # Imported below: most runs take one kind of step, and others load Numba, or start processes.
        config, unit = self.config, self.predictor.contract.unit
        if unit == "graph":
            from sagann.train.graph_epochs import GraphEpochs

            return GraphEpochs(self.predictor, self.prepared, config)
        if config.devices is not None:
            from sagann.train.hybrid_epochs import HybridEpochs

            return HybridEpochs(self.predictor, self.prepared, config, model_config=self.model_config, say=self.say)
        if unit == "vertex" and config.sample is None:
            return WholeGraph(self.predictor, self.prepared, profile=config.profile)
        from sagann.train.link_epochs import LinkEpochs, SampledLinkEpochs
        from sagann.train.sampled_epochs import SampledEpochs

        if config.sample is None:
            return LinkEpochs(self.predictor, self.prepared, config)
        kind = SampledLinkEpochs if unit == "link" else SampledEpochs
        return kind(self.predictor, self.prepared, config, say=self.say)

    def _hot_bytes(self) -> int:
        """Bytes of the hot tier that the configuration states."""
        if self.config.hot is None:
            return 0
        # Imported here: most runs have no tiers, and it loads Numba.
        from sagann.train.tiers import stated_hot_bytes

        return stated_hot_bytes(self.prepared.graph.features, self.config)

    def _balancer(self) -> Balancer | None:
        """What moves vertices between the workers, if they are balanced by cost."""
        part = self.prepared.part
        if part is None or part.workers.balance != "cost":
            return None
        # Imported here: most runs have no workers, and it loads Numba.
        from sagann.train.balancer import Balancer

        return Balancer(part, say=self.say)
