"""Epoch sources of a task on links: each step is a batch of edges to learn, beside negative links drawn for them."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from functools import partial

import torch
from torch import Tensor

from sagann.config import TrainConfig
from sagann.errors import InputError
from sagann.free_space import require_memory
from sagann.graph import Graph
from sagann.sampling import LearnedLinks
from sagann.sampling.batches import cut_seeds
from sagann.sampling.links import beside
from sagann.train.epoch_source import EpochSource, TrainStep
from sagann.train.heads import LinkHead
from sagann.train.predictor import Predictor
from sagann.train.preparation import PreparedGraph
from sagann.train.sampled_epochs import SampledEpochs
from sagann.train.tiers import hottest_rows

_LINK_BYTES = 40
"Least bytes that a step takes for each of its links: the ids of both ends, as they are drawn and side by side, a score and its gradient."


class LinkEpochs(EpochSource):
    """The epoch source of links whose model runs on the whole graph in every step.

    Args:
        predictor: has the model, and evaluates it.
        prepared: the graph as the model reads it, with the edges to learn.
        config: how to train. With ``batch_size`` None one step has all edges.
    """

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
        batches = self._batches_of(epoch)
        for number in range(first, len(batches)):
            edges = batches[number]
            yield TrainStep(
                loss=partial(self._loss, edges, epoch, number),
                num_labelled=len(edges),
                num_edges=self._prepared.num_edges * self._predictor.num_hops,
                complete_gradients=self._runner.add_gradients,
            )

    def _batches_of(self, epoch: int) -> Sequence[Tensor]:
        # Ascending edges are the nearest to each other in memory.
        shuffle = self.num_batches > 1
        return cut_seeds(
            self._edges, self._batch_size, shuffle=shuffle, seed=self._seed, epoch=epoch, drop_last=False
        )

    def _loss(self, edges: Tensor, epoch: int, number: int) -> Tensor:
        src, dst, types = self._links.ends_of(edges)
        negative = self._links.sampler.negatives_of(src, epoch=epoch, batch=number)
        src, dst = (beside(torch.cat(pair), len(edges)) for pair in zip((src, dst), negative, strict=True))
        head, count = self._head, len(edges)

        def loss_of(rows: Tensor, share: slice) -> Tensor:
            """The part of the loss that a worker's share of the links adds."""
            if share.start == share.stop:
                # A worker without links takes part in the backward pass of the others.
                return rows[:0].sum()
            own_types = None if types is None else types[share]
            mean = head.loss_of_links(rows, src[share], dst[share], own_types)
            return mean * ((share.stop - share.start) / count)

        return self._runner.loss_of_all(loss_of, count)


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


class SampledLinkEpochs(SampledEpochs):
    """The epoch source of links on mini-batches: the in-edges of their ends are sampled."""

    def _seeds(self, config: TrainConfig) -> LearnedLinks:
        if self._team.size > 1:
            raise InputError(
                f"mini-batches of links are not divided: {self._team.size} workers, and the edges of a batch's links are left out "
                "of all its blocks (in TrainConfig.sample)",
                hint="Leave sample out (--sample), or train with one worker.",
            )
        return _learned(self._prepared, config, config.seeds_per_batch)

    def _hottest(self, graph: Graph, config: TrainConfig) -> Tensor:
        # Negative links are drawn among all vertices. A batch starts from both ends of its links.
        seeds = torch.ones(graph.num_vertices, dtype=torch.bool)
        num_ends = 2 * (1 + config.negatives) * config.seeds_per_batch
        return hottest_rows(graph, config, seeds=seeds, batch_size=min(num_ends, graph.num_vertices))
