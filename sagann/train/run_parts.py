"""RunParts: what a run is made of, and the sessions that are made of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler

from sagann.config import TrainConfig
from sagann.graph import Graph
from sagann.nn import ModelConfig
from sagann.nn.model_call import class_of
from sagann.runtime.team import Team
from sagann.train.automatic import automatic_budget, bytes_in_files
from sagann.train.best import BestTracker
from sagann.train.epoch_source import EpochSource, WholeGraph
from sagann.train.policies import (
    OptimizerFactory,
    ParamGroups,
    SchedulerFactory,
    build_optimizer,
    build_scheduler,
)
from sagann.train.predictor import Predictor
from sagann.train.preparation import PreparedGraph
from sagann.train.run_folder import AUTOMATIC, RunFolder
from sagann.train.session import TrainSession
from sagann.train.streaming import Streaming
from sagann.train.trainable import require_seeds_apart

if TYPE_CHECKING:
    from sagann.train.balancer import Balancer
    from sagann.train.sampled_epochs import KeptTiers


@dataclass(kw_only=True, eq=False)
class RunParts:
    """A model, a graph and a configuration that fit each other, checked by :class:`sagann.train.Trainer`."""

    config: TrainConfig
    "How to train."
    graph: Graph
    "The training graph with the answers of the run's task alone, before it is prepared."
    predictor: Predictor
    "Has the model and its loss."
    model_config: ModelConfig | None
    "What the model was built from; None for a module of the user's own."
    monitor: str
    "The monitored metric, as 'val/accuracy'."
    weights: str
    "Weights that the run ends with: 'best' or 'last'."
    source: str
    "Name of the data."
    class_names: tuple[str, ...]
    "Names of the classes; empty where none were given."
    optimizer: OptimizerFactory | None
    "Makes the optimizer; None for that of the configuration."
    scheduler: SchedulerFactory | None
    "Makes the scheduler; None for that of the configuration."
    param_groups: ParamGroups
    "Splits the parameters into groups."
    team: Team
    "The workers that train together."
    spill_dir: Path | None
    "The run folder that spilled blocks go to, where the configuration names no other; None for a run without one."
    say: Callable[[str], None]
    "Is told what the user should know."
    prepared: PreparedGraph = field(init=False)
    "The graph as the model reads it, after :meth:`prepare`."
    kept_tiers: KeptTiers | None = field(default=None, init=False)
    "The tiers of a rehearsal, which the next session takes over; None for none."
    _in_files_bytes: int = field(default=0, init=False)
    "Bytes of the prepared graph that lie in files, to leave memory to the run."

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
    def learns_graphs(self) -> bool:
        """Whether whole graphs are learned."""
        return self.predictor.contract.unit == "graph"

    @property
    def learns_links(self) -> bool:
        """Whether links are learned."""
        return self.predictor.contract.unit == "link"

    @property
    def has_batches(self) -> bool:
        """Whether an epoch has several steps."""
        by_links = self.learns_links and self.config.batch_size is not None
        return self.config.sample is not None or self.learns_graphs or by_links

    @property
    def _trains_links_whole(self) -> bool:
        """Whether links are learned on the whole graph, which is streamed where a budget is stated, and not by itself."""
        return self.learns_links and self.config.sample is None

    def prepare(self) -> None:
        """Prepare the graph, with large arrays in files where memory may be too small for both the arrays and the run."""
        features = self.graph.features
        if (
            self.config.sample is not None
            and self.predictor.streaming is None
            and not isinstance(features, Tensor | None)
        ):
            self.say(
                f"All rows of the {type(features).__name__} are read into memory, where an evaluation takes them: mini-batches do not "
                "read the store. With a memory budget (--memory, TrainConfig.memory) they do, and evaluations are streamed."
            )
        is_in_memory = self.predictor.streaming is None and self.device.type == "cpu" and self.team.size == 1
        if is_in_memory and not self.learns_graphs and not self._trains_links_whole:
            self._in_files_bytes = bytes_in_files(self.model, self.graph)
        if not self._in_files_bytes:
            self.prepared = self.predictor.prepare(self.graph, validate=False)
            return
        files = streaming_of(self.config, self.spill_dir, self.device, automatic_bytes=1)
        assert files is not None
        with files.large_arrays():
            self.prepared = self.predictor.prepare(self.graph, validate=False)

    def stream_where_needed(self, folder: RunFolder | None, *, resume: bool) -> None:
        """Stream the model where a budget is stated, or where memory is too small for the run."""
        if self.learns_graphs:
            return
        if self.team.size > 1:
            if self.predictor.streaming is not None:
                self.predictor.streaming.warn(self.say)
            return
        budget_bytes = None
        self._drop_changed_tiers()
        if self.config.memory is None and self.device.type == "cpu" and not self._trains_links_whole:
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
        streaming = streaming_of(self.config, self.spill_dir, self.device, automatic_bytes=budget_bytes)
        if streaming is not None:
            streaming.warn(self.say)
        self.predictor.stream_within(streaming)

    def take_tiers(self) -> KeptTiers | None:
        """The tiers that a rehearsal has left, once; None where there are none, or where their file has changed."""
        self._drop_changed_tiers()
        kept, self.kept_tiers = self.kept_tiers, None
        return kept

    def _drop_changed_tiers(self) -> None:
        """Give up the tiers that a rehearsal has left if their file has changed."""
        if self.kept_tiers is not None and not self.kept_tiers.is_unchanged():
            self.kept_tiers = None

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
        groups = self.param_groups(predictor.model, config.weight_decay)
        optimizer = self.optimizer(groups) if self.optimizer else build_optimizer(config, groups)
        if self.scheduler:
            scheduler: LRScheduler | None = self.scheduler(optimizer)
        else:
            scheduler = build_scheduler(config, optimizer, maximise=tracker.maximise)
        return TrainSession(
            model=predictor.model,
            source=source,
            answers=self.prepared.graph.answers,
            task=self.predictor.contract.kind,
            loss=predictor.mean_loss,
            device=self.device,
            config=config,
            optimizer=optimizer,
            scheduler=scheduler,
            tracker=tracker,
            team=self.team,
            balancer=self._balancer(),
        )

    def _epoch_source(self) -> EpochSource:
        # Imported below: most runs take one kind of step, and others load Numba, or start processes.
        if self.learns_graphs:
            from sagann.train.graph_epochs import GraphEpochs

            return GraphEpochs(self.predictor, self.prepared, self.config)
        if self.learns_links:
            return self._link_source()
        if self.config.sample is None:
            return WholeGraph(self.predictor, self.prepared, profile=self.config.profile)
        if self.config.devices is None:
            from sagann.train.sampled_epochs import SampledEpochs

            return SampledEpochs(self.predictor, self.prepared, self.config, say=self.say, kept=self.take_tiers())
        from sagann.train.hybrid_epochs import HybridEpochs

        return HybridEpochs(
            self.predictor, self.prepared, self.config, model_config=self.model_config, say=self.say
        )

    def _link_source(self) -> EpochSource:
        # Imported here: most runs do not learn links, and these load Numba.
        from sagann.train.link_epochs import LinkEpochs, SampledLinkEpochs

        if self.config.sample is None:
            return LinkEpochs(self.predictor, self.prepared, self.config)
        return SampledLinkEpochs(self.predictor, self.prepared, self.config, say=self.say)

    def _hot_bytes(self) -> int:
        """Bytes of the hot tier that the configuration states and that is not made yet."""
        if self.config.hot is None or self.kept_tiers is not None:
            return 0
        # Imported here: most runs have no tiers, and it loads Numba.
        from sagann.train.tiers import stated_hot_bytes

        return stated_hot_bytes(self.prepared.graph.features, self.config)

    def _balancer(self) -> Balancer | None:
        """What moves vertices between the workers, if they are balanced by cost."""
        part = self.prepared.part
        if part is None or part.workers.balance != "cost" or part.workers.size == 1:
            return None
        # Imported here: most runs have no workers, and it loads Numba.
        from sagann.train.balancer import Balancer

        return Balancer(part, say=self.say)


def streaming_of(
    config: TrainConfig, spill_dir: Path | None, device: torch.device, *, automatic_bytes: int | None = None
) -> Streaming | None:
    """How the whole graph is streamed, if it is: in training and evaluation, or where batches are sampled in evaluation alone."""
    trains = config.sample is None
    return Streaming.of(config, spill_dir, device=device, automatic_bytes=automatic_bytes, trains=trains)
