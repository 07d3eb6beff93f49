"""SampledEpochs: the epoch source whose steps are mini-batches, sampled ahead of the step that is trained.

Their rows of features come from tiers where the configuration asks for a hot tier, or has a memory budget and features on disk.
Evaluation walks all in-edges of the whole graph, in memory or streamed, and reads the features where they are.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor, nn

from sagann.byte_size import parse_bytes
from sagann.config import TrainConfig
from sagann.errors import InputError, LayerError
from sagann.graph import Graph
from sagann.kernels.memory import POOL
from sagann.runtime.loading import MiniBatches, Pipeline, StageCounters
from sagann.runtime.loading.batches import AHEAD, useful_ahead
from sagann.runtime.loading.minibatches import SampleOn
from sagann.runtime.tiered import DeviceFeatures, TieredFeatures
from sagann.saga.batch_norms import batch_norms_over_rows, batch_size_without_rest
from sagann.sampling import LearnedLinks, MiniBatch
from sagann.train.batch_memory import measure_batches
from sagann.train.epoch_source import BatchEpochs, TrainStep
from sagann.train.predictor import Predictor
from sagann.train.preparation import PreparedGraph
from sagann.train.tiers import (
    hottest_rows,
    is_in_memory,
    looks_ahead,
    plan_tiers,
    sampling_place,
    with_hot_tier,
)

R = TypeVar("R")


class SampledEpochs(BatchEpochs):
    """The epoch source of ``TrainConfig.sample``: every labelled training vertex is in one mini-batch of an epoch.

    Batches depend on the run's seed, the epoch and their number. Dropout draws its seeds from PyTorch's generator in the training
    step, which no thread of the pipeline touches; its masks are those of a batch's own rows, drawn anew for each batch.

    Args:
        predictor: has the model, and evaluates it.
        prepared: the graph as the model reads it.
        config: how to train; ``sample`` is set.
        say: is told what the memory budget leaves for the hot tier and the mini-batches.
        minibatches: the batches, with their tiers, of another source of the same graph and configuration; by default they are made.
    Raises:
        InputError: the hot tier has no room, or the features have no tiers.
        BudgetError: the memory budget has no room for a training step.
    """

    minibatches: MiniBatches

    def __init__(
        self,
        predictor: Predictor,
        prepared: PreparedGraph,
        config: TrainConfig,
        *,
        say: Callable[[str], None] = lambda text: None,
        minibatches: MiniBatches | None = None,
    ) -> None:
        super().__init__(predictor, prepared)
        self._team = prepared.team
        if self._team.size > 1:
            require_shareable(predictor.model, prepared, "workers")
        self.minibatches = minibatches or self._made(config, say)
        features = self.minibatches.graph.features
        self._store = features if isinstance(features, TieredFeatures | DeviceFeatures) else None
        self.counters: tuple[StageCounters, ...] = ()
        "The work of each stage for the steps that were taken last, and of the caller."

    def _made(self, config: TrainConfig, say: Callable[[str], None]) -> MiniBatches:
        # Samplers read the host's memory, where a graph of a streamed evaluation lies already.
        graph, ahead = self._tiered(self._prepared.sampled, config, say)
        # After the hot tier, whose size may be stated.
        sample_on = sampling_place(graph, config, self._predictor.device, say=say)
        return self._batches_of(graph, config, ahead=ahead, sample_on=sample_on)

    def _tiered(self, graph: Graph, config: TrainConfig, say: Callable[[str], None]) -> tuple[Graph, int]:
        """The graph on the processor with its features in tiers, and the number of mini-batches that are made ahead."""
        predictor = self._predictor
        ahead = _stated_ahead(graph, config, predictor)
        if config.has_tiers and graph.features is not None:
            has_window = looks_ahead(graph.features, config)
            plan = plan_tiers(
                graph.features,
                config,
                ahead=ahead,
                budget_bytes=_budget_bytes(config, predictor),
                measure=lambda: measure_batches(
                    predictor, self._batches_of(graph, config, ahead=0), has_window=has_window
                ),
            )
            if plan.ahead < ahead:
                say(f"The memory budget has room for a queue of {plan.ahead} mini-batches ahead, not of {ahead}.")
            # Features that lie on the device already have no need of a hot tier there.
            is_read_by_device = (
                predictor.device.type == "cuda" and self._prepared.walked.topology.device.type == "cpu"
            )
            device = predictor.device if is_read_by_device and is_in_memory(graph.features) else None
            ahead = plan.ahead
            if plan.hot is not None:
                hottest = self._hottest(graph, config)
                graph = with_hot_tier(graph, plan.hot, config, hottest, say=say, device=device)
        return graph, ahead

    def _batches_of(
        self, graph: Graph, config: TrainConfig, *, ahead: int, sample_on: SampleOn = "cpu"
    ) -> MiniBatches:
        assert config.sample is not None
        seeds = self._seeds(config)
        batches = MiniBatches(
            graph,
            fanouts=config.sample,
            batch_size=config.seeds_per_batch,
            seeds=seeds,
            seed=config.seed,
            threads=config.sampling_threads,
            ahead=ahead,
            device=self._predictor.device,
            sample_on=sample_on,
        )
        if isinstance(seeds, str):
            # The ends of links are two rows at least.
            num_seeds, batch_size = len(batches.seeds), batches.batch_size
            batches.batch_size = batch_size_without_rest(self._predictor.model, num_seeds, batch_size)
        batches.team = self._team
        return batches

    def _seeds(self, config: TrainConfig) -> str | LearnedLinks:
        """What mini-batches start from, as for :class:`MiniBatches`."""
        return "train"

    def _hottest(self, graph: Graph, config: TrainConfig) -> Tensor:
        """Ids of all vertices, those whose rows mini-batches read most first."""
        return hottest_rows(graph, config)

    @property
    def device(self) -> torch.device:
        """Where the model computes."""
        return self._predictor.device

    def try_out(self) -> None:
        """Make the lazy parameters of the model."""
        with self.minibatches.batches(0) as batches, torch.no_grad():
            self._predictor.forward_batch(next(batches))

    def steps(self, epoch: int, *, first: int = 0) -> Generator[TrainStep, None, None]:
        with self._counted(self.minibatches.batches(epoch, first=first)) as batches:
            for number, batch in enumerate(batches, first):
                yield self.step(batch) if self._team.size == 1 else self._share_of_step(batch, number)

    def _share_of_step(self, batch: MiniBatch, number: int) -> TrainStep:
        """The training step of a batch that workers have divided; ``batch`` is this one's share."""
        runner, share = self._runner, self.minibatches.share(number)
        own_edges = torch.tensor(float(batch.num_edges if share else 0), dtype=torch.float64)
        num_edges = self._team.total(own_edges, "counting edges")
        return TrainStep(
            loss=partial(runner.total_loss, lambda: self._predictor.loss_of_batch(batch) * share),
            num_labelled=self.minibatches.num_items(number),
            num_edges=int(num_edges),
            complete_gradients=runner.add_gradients,
        )

    @contextmanager
    def _counted(self, batches: Pipeline[R]) -> Iterator[Pipeline[R]]:
        """The batches, which end with the ``with`` block; afterwards ``counters`` and ``traffic`` are those of the block."""
        if self._predictor.streaming is not None:
            # What an evaluation allocated would stay beside the hot tier.
            POOL.release()
        before = None if self._store is None else self._store.traffic()
        try:
            with batches:
                yield batches
        finally:
            self.counters = batches.counters
            if self._store is not None and before is not None:
                self.traffic = self._store.traffic() - before


def require_shareable(model: nn.Module, prepared: PreparedGraph, by: str) -> None:
    """Refuse what several trainers of a mini-batch cannot compute apart: means over it, and edge data that learn. ``by`` names them in errors."""
    for name, norm in batch_norms_over_rows(model).items():
        raise LayerError(
            f"a model whose mini-batches {by} share must treat vertices independently between its layers: "
            f"the {type(norm).__name__} '{name}' computes a mean over all of them (in {type(model).__name__})",
            hint="Use LayerNorm instead of BatchNorm.",
        )
    for name, rows in prepared.graph.topology.edge_data.items():
        if rows.requires_grad:
            raise InputError(
                f"edge data that learn are not shared out: '{name}' has a gradient (in TrainConfig.{by})",
                hint=f"Train in this process alone, without {by}.",
            )


def _stated_ahead(graph: Graph, config: TrainConfig, predictor: Predictor) -> int:
    """How many mini-batches are made ahead, if there is room for them."""
    if config.batches_ahead is not None:
        return config.batches_ahead
    if config.has_tiers and graph.features is not None and not is_in_memory(graph.features):
        # What the page cache holds now need not stay.
        return AHEAD
    return useful_ahead(graph, predictor.device)


def _budget_bytes(config: TrainConfig, predictor: Predictor) -> int | None:
    """The budget of the host's memory; that of a CUDA device is for the device's."""
    if config.memory is None or predictor.device.type != "cpu":
        return None
    return parse_bytes(config.memory, where="TrainConfig.memory")
