"""Epoch sources whose steps are batches: mini-batches of vertices or links that are sampled, batches of links, batches of whole graphs.

Evaluation walks all in-edges of the whole graph, in memory or streamed, and reads the features where they are.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial, reduce
from operator import add
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor, nn

from sagann.config import TrainConfig
from sagann.errors import InputError, LayerError
from sagann.free_space import require_memory
from sagann.graph import Graph
from sagann.kernels.memory import POOL
from sagann.runtime.loading import GraphBatch, GraphBatches, MiniBatches, Pipeline, StageCounters
from sagann.runtime.loading.batches import AHEAD, useful_ahead
from sagann.runtime.loading.minibatches import SampleOn
from sagann.runtime.tiered import DeviceFeatures, TieredFeatures
from sagann.runtime.tiered.counters import Traffic
from sagann.runtime.tiered.device_sampler import Room
from sagann.saga.batch_norms import batch_norms_over_rows, batch_size_without_rest
from sagann.sampling import LearnedLinks, MiniBatch
from sagann.sampling.batches import cut_seeds
from sagann.sampling.links import beside
from sagann.train.epoch_source import EpochSource, TrainStep
from sagann.train.heads import LinkHead
from sagann.train.predictor import Predictor
from sagann.train.runner import PreparedGraph
from sagann.train.tiers import (
    BatchMemory,
    hottest_rows,
    is_in_memory,
    keep_hot,
    looks_ahead,
    measure_batches,
    plan_tiers,
    sampling_place,
    with_hot_tier,
)

if TYPE_CHECKING:
    from sagann.runtime.workers import PartRows
    from sagann.train.device_epochs import DeviceEpochs

R = TypeVar("R")


class BatchEpochs(EpochSource):
    """An epoch source whose steps are batches that a pipeline makes ahead."""

    minibatches: MiniBatches | GraphBatches

    @property
    def num_batches(self) -> int:
        return len(self.minibatches)

    def step(self, batch: Any, number: int) -> TrainStep:
        """The training step of this process's share of a batch."""
        share = self.minibatches.share(number)
        return TrainStep(
            loss=partial(self._own_loss, batch, share),
            num_labelled=self.minibatches.num_items(number),
            num_edges=self._predictor.head.num_edges(batch) if share else 0,
            complete=self.runner.complete,
        )

    def _own_loss(self, batch: Any, share: float) -> Tensor:
        return self._predictor.loss_of_batch(batch) * share


class SampledEpochs(BatchEpochs):
    """The epoch source of ``TrainConfig.sample``: every labelled training vertex, or every link to learn, is in one mini-batch of an epoch.

    Batches depend on the run's seed, the epoch and their number. Dropout draws its seeds from PyTorch's generator in the training step, which
    no thread of the pipeline touches. Rows of features come from tiers where the configuration asks for a hot tier, or has a memory budget
    and features on disk. ``minibatches`` are those of another source of the same graph and configuration; by default they are made.
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
        are_links = minibatches is None and predictor.contract.unit == "link"
        self._links = _learned(prepared, config, config.seeds_per_batch) if are_links else None
        "What mini-batches that are made start from; None for labelled training vertices."
        self.minibatches = minibatches or self._made(config, say)
        features = self.minibatches.graph.features
        self._stores: Sequence[TieredFeatures | DeviceFeatures | PartRows] = ()
        "Stores with tiers that rows come from."
        if isinstance(features, TieredFeatures | DeviceFeatures):
            self._stores = [features]
        elif prepared.rows is not None and prepared.rows.num_hot_rows:
            self._stores = [prepared.rows]
        self._sizes: dict[int, list[Room]] = {}
        "Sizes of each hop of the batches of the first epoch, by number."
        self.counters: tuple[StageCounters, ...] = ()
        "The work of each stage for the steps that were taken last, and of the caller."

    def on_device(self) -> type[DeviceEpochs] | None:
        if self.minibatches.device_sampler is None or self._team.size > 1:
            return None
        from sagann.train.device_batches import DeviceBatches

        return DeviceBatches

    def steps(self, epoch: int, *, first: int = 0) -> Generator[TrainStep, None, None]:
        with self.counting(partial(self.minibatches.batches, epoch, first=first)) as batches:
            for number, batch in enumerate(batches, first):
                if epoch == 1:
                    self._sizes[number] = _sizes_of(batch)
                yield self.step(batch, number)

    @contextmanager
    def counting(self, begin: Callable[[], Pipeline[R]]) -> Iterator[Pipeline[R]]:
        """Batches that begin and end with the ``with`` block; afterwards ``counters`` and ``traffic`` are those of the block."""
        if self._predictor.streaming is not None:
            # What an evaluation allocated would stay beside the hot tier.
            POOL.release()
        with self.counting_traffic():
            batches = begin()
            try:
                with batches:
                    yield batches
            finally:
                self.counters = batches.counters

    @contextmanager
    def counting_traffic(self) -> Iterator[None]:
        """Afterwards ``traffic`` is that of the ``with`` block, where there are tiers."""

        def given() -> Traffic:
            return reduce(add, [store.traffic() for store in self._stores], Traffic())

        before = given()
        try:
            yield
        finally:
            self.traffic = given() - before if self._stores else None

    def envelope(self) -> Mapping[int, list[Room]]:
        """Room for the batches of every epoch, for each number of seeds: what the first epoch needed, and 2% more, by hop from the seeds.

        It follows from seed and configuration alone: batches of the first epoch that this process has not trained are sampled.
        """
        batches, found = self.minibatches, dict[int, list[Room]]()
        for number, ids in enumerate(batches.items_of(1)):
            if number not in self._sizes:
                self._sizes[number] = _sizes_of(batches.sample(ids, epoch=1, batch=number))
            known = found.get(len(ids), [Room(0, 0)] * len(self._sizes[number]))
            found[len(ids)] = [Room(*map(max, *each)) for each in zip(known, self._sizes[number], strict=True)]
        return {count: _padded_rooms(count + 1, rooms) for count, rooms in found.items()}

    def loss_of_padded(self, batch: MiniBatch, num_seeds: int) -> Tensor:
        """The mean loss of a padded batch's first rows, with its gradient; the batch has the answers of these seeds alone."""
        return self._predictor.head.loss(self._predictor.forward_batch(batch)[:num_seeds], batch)

    def _made(self, config: TrainConfig, say: Callable[[str], None]) -> MiniBatches:
        device = self._predictor.device
        # Features that lie on the device already have no need of a hot tier.
        gathers_there = device.type == "cuda" and self._prepared.walked.topology.device.type == "cpu"
        tiered = self._tiered(config, say, [device], gathers_there=gathers_there)
        return self._batches_of(config, *tiered)

    def _tiered(
        self,
        config: TrainConfig,
        say: Callable[[str], None],
        devices: Sequence[torch.device],
        *,
        gathers_there: bool,
        copies: int = 1,
    ) -> tuple[Graph, int, SampleOn]:
        """The graph on the processor with its features in tiers, the number of mini-batches that are made ahead, and who samples them.

        ``devices`` train, that with the weights first; hot rows may lie there if it ``gathers_there``. Each mini-batch has so many ``copies``.
        """
        # Samplers read the host's memory, where a graph of a streamed evaluation lies already.
        prepared, graph, parts = self._prepared, self._prepared.sampled, self._prepared.rows
        ahead = config.batches_ahead
        if ahead is None:
            is_tiered = config.has_tiers and graph.features is not None and not is_in_memory(graph.features)
            # What the page cache holds now need not stay.
            ahead = AHEAD if is_tiered else useful_ahead(graph, self._predictor.device)
        # Sparse ones have no tiers.
        features = prepared.walked.features if parts is not None and parts.is_sparse else graph.features
        if config.has_tiers and features is not None:
            has_window = parts is None and looks_ahead(features, config)

            def measured() -> BatchMemory:
                batches = self._batches_of(config, graph, 0)
                found = measure_batches(self._predictor, batches, has_window=has_window)
                return replace(found, batch_bytes=copies * found.batch_bytes)

            # On a CUDA device, the budget is for the device's memory.
            budget_bytes = config.memory_bytes if self._predictor.device.type == "cpu" else None
            with self._team.together("planning the hot tier"):
                plan = plan_tiers(features, config, ahead=ahead, budget_bytes=budget_bytes, measure=measured)
            if plan.ahead < ahead:
                say(f"The memory budget has room for a queue of {plan.ahead} mini-batches ahead, not of {ahead}.")
            ahead = plan.ahead
            if parts is not None:
                keep_hot(parts, plan.hot, partial(self._hottest, graph, config), self._team, say=say)
            elif plan.hot is not None and graph.features is not None:
                there = devices if gathers_there and is_in_memory(graph.features) else ()
                hottest = self._hottest(graph, config)
                graph = with_hot_tier(graph, plan.hot, config, hottest, say=say, devices=there)
        # Workers finish batches that all have begun.
        ahead = min(map(int, self._team.texts(str(ahead), "agreeing on mini-batches ahead")))
        # After the hot tier, whose size may be stated.
        return graph, ahead, sampling_place(graph, config, devices, say=say)

    def _batches_of(
        self, config: TrainConfig, graph: Graph, ahead: int, sample_on: SampleOn = "cpu"
    ) -> MiniBatches:
        assert config.sample is not None
        batches = MiniBatches(
            graph,
            fanouts=config.sample,
            batch_size=config.seeds_per_batch,
            seeds=self._links or "train",
            seed=config.seed,
            threads=config.sampling_threads,
            ahead=ahead,
            device=self._predictor.device,
            sample_on=sample_on,
        )
        if self._links is None:
            # The ends of links are two rows at least.
            num_seeds, batch_size = len(batches.seeds), batches.batch_size
            batches.batch_size = batch_size_without_rest(self._predictor.model, num_seeds, batch_size)
        batches.team = self._team
        if self._prepared.edges is not None:
            batches.draw_from(self._prepared.edges)
        return batches

    def _hottest(self, graph: Graph, config: TrainConfig) -> Tensor:
        """Ids of all vertices, those whose rows mini-batches read most first."""
        if self._links is None:
            return hottest_rows(graph, config)
        # Negative links are drawn among all vertices. A batch starts from both ends of its links.
        seeds = torch.ones(graph.num_vertices, dtype=torch.bool)
        num_ends = 2 * (1 + config.negatives) * config.seeds_per_batch
        return hottest_rows(graph, config, seeds=seeds, batch_size=min(num_ends, graph.num_vertices))

    def try_out(self) -> None:
        """Make the lazy parameters of the model."""
        with self.minibatches.batches(0) as batches, torch.no_grad():
            self._predictor.forward_batch(next(batches))


def _sizes_of(batch: MiniBatch) -> list[Room]:
    """Sources of each hop of a batch, from the seeds, and edges beyond one for each destination."""
    return [Room(block.num_src, block.num_edges - block.num_dst) for block in reversed(batch.blocks)]


def _padded_rooms(num_dst: int, sizes: Sequence[Room]) -> list[Room]:
    """Rooms for batches of these sizes at most, and 2% more, with an edge for each of the destinations of the padding."""
    rooms = list[Room]()
    for size in sizes:
        num_src, num_edges = Room.beyond(*size)
        rooms.append(Room(num_src, num_dst + num_edges))
        num_dst = num_src
    return rooms


def require_shareable(model: nn.Module, prepared: PreparedGraph, by: str) -> None:
    """Refuse means over a mini-batch and edge data that learn, which its parts do not give. ``by`` names who computes a part, for errors."""
    for name, norm in batch_norms_over_rows(model).items():
        raise LayerError(
            f"a model whose mini-batches are divided among {by} must treat vertices independently between its layers: "
            f"the {type(norm).__name__} '{name}' computes a mean over all of them (in {type(model).__name__})",
            hint="Use LayerNorm instead of BatchNorm.",
        )
    for name, rows in prepared.graph.topology.edge_data.items():
        if rows.requires_grad:
            raise InputError(
                f"edge data that learn are not divided among {by}: '{name}' has a gradient (in graph '{prepared.graph.name}')",
                hint=f"Train in this process alone, without {by}.",
            )


class GraphEpochs(BatchEpochs):
    """The epoch source of a task on whole graphs: every training graph with a known answer is in one batch of an epoch."""

    def __init__(self, predictor: Predictor, prepared: PreparedGraph, config: TrainConfig) -> None:
        super().__init__(predictor, prepared)
        ahead, size = config.batches_ahead, config.graphs_per_batch
        ahead = useful_ahead(prepared.graph, predictor.device) if ahead is None else ahead
        batches = GraphBatches(prepared.graph, batch_size=size, graphs="train", seed=config.seed, ahead=ahead)
        self.minibatches: GraphBatches = batches
        batches.team = prepared.team
        batches.batch_size = batch_size_without_rest(predictor.model, len(batches.graphs), batches.batch_size)

    def steps(self, epoch: int, *, first: int = 0) -> Generator[TrainStep, None, None]:
        with self.minibatches.batches(epoch, first=first) as batches:
            for number, batch in enumerate(batches, first):
                yield self.step(batch.to(self._predictor.device), number)

    def _own_loss(self, batch: GraphBatch, share: float) -> Tensor:
        predictor, team = self._predictor, self.runner.team
        if team.size == 1:
            return super()._own_loss(batch, share)
        from sagann.runtime.workers import Workers, batch_norms_over_all

        assert isinstance(team, Workers)
        # Graphs share no vertex, so all rows together are those of the whole batch.
        with batch_norms_over_all(predictor.model, team):
            rows = predictor.forward_batch(batch)
        return predictor.head.loss(rows, batch) * share if share else rows.sum()


_LINK_BYTES = 40
"Least bytes that a step takes for each of its links: the ids of both ends, as they are drawn and side by side, a score and its gradient."


class LinkEpochs(EpochSource):
    """The epoch source of links whose model runs on the whole graph in every step; with ``batch_size`` None one step has all edges."""

    def __init__(self, predictor: Predictor, prepared: PreparedGraph, config: TrainConfig) -> None:
        super().__init__(predictor, prepared)
        assert isinstance(predictor.head, LinkHead)
        self._head = predictor.head
        self._links, self._seed = _learned(prepared, config, config.batch_size), config.seed
        self._edges = self._links.edges
        self._batch_size = config.batch_size or max(1, len(self._edges))

    @property
    def num_batches(self) -> int:
        return -(-len(self._edges) // self._batch_size)

    def steps(self, epoch: int, *, first: int = 0) -> Generator[TrainStep, None, None]:
        # Ascending edges are the nearest to each other in memory.
        shuffle, size = self.num_batches > 1, self._batch_size
        batches = cut_seeds(self._edges, size, shuffle=shuffle, seed=self._seed, epoch=epoch, drop_last=False)
        for number in range(first, len(batches)):
            edges = batches[number]
            yield TrainStep(
                loss=partial(self._loss, edges, epoch, number),
                num_labelled=len(edges),
                num_edges=self._prepared.walked.topology.num_edges * self._predictor.num_hops,
                complete=self.runner.complete,
            )

    def _loss(self, edges: Tensor, epoch: int, number: int) -> Tensor:
        src, dst, types = self._links.ends_of(edges)
        negative = self._links.sampler.negatives_of(src, epoch=epoch, batch=number)
        src, dst = (beside(torch.cat(pair), len(edges)) for pair in zip((src, dst), negative, strict=True))
        part, team = self._prepared.part, self._prepared.team
        with team.forward():
            rows = self.runner.rows()
            if part is not None:
                rows = part.workers.all_rows(rows, part.bounds, "gathering rows")
            share = team.share_of(len(edges))
            if share.start == share.stop:
                # A worker without links takes part in the backward pass of the others.
                return rows[:0].sum()
            own_types = None if types is None else types[share]
            mean = self._head.loss_of_links(rows, src[share], dst[share], own_types)
            return mean * ((share.stop - share.start) / len(edges))


def _learned(prepared: PreparedGraph, config: TrainConfig, batch_size: int | None) -> LearnedLinks:
    """The links that are learned, with ``batch_size`` of them in a step, or all; refuse a step whose links alone do not fit the host's memory."""
    assert prepared.graph.links is not None
    links = LearnedLinks(
        prepared.opened.to("cpu"),
        negatives=config.negatives,
        undirected=prepared.graph.links.undirected,
        keep_positives=config.keep_positives,
        seed=config.seed,
    )
    count = min(batch_size or len(links.edges), len(links.edges))
    require_memory(
        count * (1 + config.negatives) * _LINK_BYTES,
        where=f"a step of {count} links, with {config.negatives} negative ones each",
        hint="Lower negatives (--negatives), or the number of links in a step (--batch-size).",
    )
    return links
