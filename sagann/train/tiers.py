"""Tiers of a sampled run: how large the hot tier is, which rows are hot, how many mini-batches are made ahead, and who samples them.

A run on a CUDA device whose features lie in the host's memory has its hot tier on the device, and reads the other rows in place. In all
other runs the hot tier lies in the host's memory, in front of a file or a feature store.

The hot tier gets at most half of a memory budget (``TrainConfig.memory``). The mini-batches that are made ahead and the training step get
the rest. Evaluations are streamed within half. The queue of batches is shortened until they fit; if not even one batch ahead fits, the
hot tier gives up room.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from sagann.byte_size import format_bytes, parse_bytes, with_exact
from sagann.config import TrainConfig
from sagann.errors import InputError
from sagann.free_space import host_room
from sagann.graph import Graph
from sagann.graph.feature_store import AnnouncedFeatures, Features
from sagann.graph.rows import is_sparse
from sagann.plan.residency import BudgetError
from sagann.runtime.device.cuda_devices import CudaDevices
from sagann.runtime.loading.minibatches import SampleOn
from sagann.runtime.tiered import DeviceFeatures, DeviceTopology, TieredFeatures
from sagann.runtime.tiered.features import hot_tier_bytes
from sagann.runtime.tiered.hot_size import HotSize, parse_hot
from sagann.storage.mapped import MappedRows, positioned
from sagann.tiering import hottest, score_vertices
from sagann.train.batch_memory import BatchMemory


@dataclass(frozen=True, kw_only=True, slots=True)
class TierPlan:
    """What a sampled run keeps in memory for mini-batches."""

    hot: HotSize | None
    "Size of the hot tier; None for features that are used where they are."
    ahead: int
    "Most mini-batches that are made before the training step needs them."


def stated_hot_bytes(features: Features | None, config: TrainConfig) -> int:
    """Bytes of the hot tier that ``TrainConfig.hot`` states; 0 where it is None.

    Raises:
        InputError: the features are sparse, or the memory is not free.
    """
    if config.hot is None or features is None:
        return 0
    if is_sparse(features):
        raise InputError(
            f"sparse features have no tiers: hot is '{config.hot}', but rows differ in size (in TrainConfig.hot)",
            hint="Leave hot out: sparse features are used in memory.",
        )
    return hot_tier_bytes(features, config.hot, cache=config.cache)


def plan_tiers(
    features: Features,
    config: TrainConfig,
    *,
    ahead: int,
    budget_bytes: int | None,
    measure: Callable[[], BatchMemory],
) -> TierPlan:
    """Choose the size of the hot tier and the length of the queue.

    Without a budget both are as stated. Within a budget, features that are mapped from a file or come from a store get a hot tier by
    themselves, and "auto" asks for no more than that.

    Args:
        features: of the prepared graph, on the processor.
        config: the options of training.
        ahead: most mini-batches to make ahead.
        budget_bytes: the memory budget in bytes; None without one.
        measure: gives the memory of mini-batches; called where there is a budget.
    Raises:
        BudgetError: the budget has no room for a training step.
        InputError: the hot tier that is stated has no room.
    """
    if budget_bytes is None:
        return TierPlan(hot=config.hot, ahead=ahead)
    if config.hot is not None and parse_hot(config.hot) is None:
        config = replace(config, hot=None)
    hot_bytes = stated_hot_bytes(features, config)
    half_bytes = budget_bytes // 2
    if hot_bytes > half_bytes:
        raise InputError(
            f"the hot tier is larger than its half of the memory budget: hot '{config.hot}' takes "
            f"{format_bytes(hot_bytes)} with its tables, half of the budget is {format_bytes(half_bytes)} (in "
            "TrainConfig.hot)",
            hint="Leave hot out for as much as the budget has room for, or raise the budget (--memory) to "
            f"{with_exact(2 * hot_bytes)} or more.",
        )
    batches = measure()
    needed_bytes = batches.needed_bytes(ahead)
    if config.hot is not None or not _is_read_elsewhere(features):
        # Room for the whole queue, beside a hot tier that is at most half of the budget.
        offered_bytes = max(2 * hot_bytes, hot_bytes + needed_bytes)
        queue = _queue(batches, budget_bytes, ahead, hot_bytes=hot_bytes, offered_bytes=offered_bytes)
        return TierPlan(hot=config.hot, ahead=queue)
    few = min(1, ahead)
    if batches.needed_bytes(few) <= half_bytes:
        hot_bytes, queue = half_bytes, _queue(batches, half_bytes, ahead, offered_bytes=2 * needed_bytes)
    else:
        queue = min(few, _queue(batches, budget_bytes, ahead, offered_bytes=2 * needed_bytes))
        hot_bytes = budget_bytes - batches.needed_bytes(queue)
    # A budget may be larger than what is free.
    free_bytes = host_room().free_bytes
    hot_bytes -= 0 if free_bytes is None else max(0, budget_bytes - free_bytes)
    if hot_bytes < hot_tier_bytes(features, 0.0, cache=config.cache):
        return TierPlan(hot=None, ahead=_queue(batches, budget_bytes, ahead, offered_bytes=2 * needed_bytes))
    return TierPlan(hot=hot_bytes, ahead=queue)


def looks_ahead(features: Features, config: TrainConfig) -> bool:
    """Whether a run within a memory budget has a hot tier that looks ahead, so that a window of batches is sampled for it."""
    if isinstance(features, AnnouncedFeatures) and config.hot is None:
        return features.wants_announcements
    return config.cache == "look-ahead" and (config.hot is not None or _is_read_elsewhere(features))


def with_hot_tier(
    graph: Graph,
    hot: HotSize,
    config: TrainConfig,
    hottest: Tensor,
    *,
    say: Callable[[str], None],
    device: torch.device | None = None,
) -> Graph:
    """A graph whose features have a hot tier, which begins with the first rows of ``hottest``.

    Args:
        graph: as the model reads it, on the processor, with features.
        hot: size of the hot tier; on a device, it lies beside the memory budget, which is the device's too.
        config: the options of training.
        hottest: ids of all vertices, int64 [num_vertices], those whose rows are read most first (:func:`hottest_rows`).
        say: is told how large the hot tier is, where that is not stated.
        device: where the hot tier lies; None for the host's memory.
    Raises:
        InputError: the hot tier has no room.
    """
    assert graph.features is not None
    store: DeviceFeatures | TieredFeatures
    if device is not None:
        store = DeviceFeatures(graph.features, hot, devices=_beside_budget(device, config), hottest=hottest)
        part = store.num_hot_rows / max(1, store.num_rows)
        cold = "read in place from pinned memory" if store.is_in_place else "gathered by the processor"
        say(
            f"The hot tier takes {format_bytes(store.hot_bytes)} of {device}: {part:.1%} of the rows, those of the highest score "
            f"(cache 'static'). The other rows are {cold}."
        )
        return replace(graph, features=store)
    store = TieredFeatures(graph.features, hot, cache=config.cache, hottest=hottest)
    if is_in_memory(graph.features):
        say("The features lie in memory: the hot tier takes memory beside them and saves no reads.")
    elif hot != config.hot:
        part = store.num_hot_rows / max(1, store.num_rows)
        say(
            f"The memory budget has room for a hot tier of {format_bytes(store.hot_bytes)}: {part:.1%} of the rows."
        )
    return replace(graph, features=store)


def sampling_place(
    graph: Graph, config: TrainConfig, device: torch.device, *, say: Callable[[str], None]
) -> SampleOn:
    """Who samples mini-batches. Where the device does, the graph's edges are placed for it, beside the memory budget, which is the device's too.

    Args:
        graph: as the model reads it, on the processor.
        config: the options of training.
        device: computes.
        say: is told where the edges lie.
    Raises:
        InputError: the device cannot sample the edges.
    """
    if config.sample_on == "cpu" or device.type == "cpu":
        return config.sample_on
    edges = DeviceTopology(graph.topology, devices=_beside_budget(device, config))
    text = f"Mini-batches are sampled by {device}. The edges take {format_bytes(edges.device_bytes)} of its memory."
    if edges.in_place_bytes:
        text += f" {format_bytes(edges.in_place_bytes)} more are read in place from pinned memory."
    say(text)
    return edges


def _beside_budget(device: torch.device, config: TrainConfig) -> CudaDevices:
    """The device, without the memory that the budget takes."""
    budget = config.memory
    budget_bytes = 0 if budget is None else parse_bytes(budget, where="TrainConfig.memory")
    return CudaDevices([device], reserved_bytes=budget_bytes)


def is_in_memory(features: Features) -> bool:
    """Whether features are a tensor that is not mapped from a file, so that reading its rows waits for no disk."""
    return isinstance(features, Tensor) and not isinstance(positioned(features), MappedRows)


def _is_read_elsewhere(features: Features) -> bool:
    """Whether a hot tier may save reads: the features are neither in memory nor in a store with tiers of its own."""
    return not is_in_memory(features) and not isinstance(features, AnnouncedFeatures)


def hottest_rows(
    graph: Graph, config: TrainConfig, *, seeds: Tensor | None = None, batch_size: int | None = None
) -> Tensor:
    """Ids of all vertices, those of the highest score first.

    Args:
        graph: as the model reads it, on the processor.
        config: the options of training.
        seeds: the vertices that mini-batches start from, bool [num_vertices]; None for the labelled vertices of the split 'train'.
        batch_size: number of seeds in a mini-batch; None for that of the configuration.
    """
    assert config.sample is not None
    return hottest(
        score_vertices(
            graph,
            config.score,
            fanouts=config.sample,
            batch_size=batch_size or config.seeds_per_batch,
            seeds=seeds,
        )
    )


def _queue(batches: BatchMemory, room_bytes: int, ahead: int, *, hot_bytes: int = 0, offered_bytes: int) -> int:
    """The largest number of batches ahead, at most ``ahead``, for which a step has room beside the hot tier.

    Args:
        batches: bytes of mini-batches.
        room_bytes: bytes for batches, step and hot tier.
        ahead: most batches ahead.
        hot_bytes: bytes of the hot tier.
        offered_bytes: a budget with room for all batches ahead, for the error.
    """
    left_bytes = room_bytes - hot_bytes - batches.needed_bytes(0)
    if left_bytes >= 0:
        return min(ahead, left_bytes // (batches.batch_bytes + batches.window_bytes))
    needed_bytes = hot_bytes + batches.needed_bytes(0)
    hot = f", and a hot tier {format_bytes(hot_bytes)}" if hot_bytes else ""
    offer = f"; {with_exact(offered_bytes)} have room for {ahead} batches ahead as well" if ahead else ""
    error = BudgetError(
        f"the memory budget cannot be met: {with_exact(room_bytes)}, at least {with_exact(needed_bytes)} are "
        f"needed: a training step without batches ahead takes {format_bytes(batches.needed_bytes(0))} with its "
        f"mini-batch of {format_bytes(batches.batch_bytes)} and the tables of threads{hot} (in "
        "TrainConfig.memory)",
        hint=f"Raise the budget (--memory) to {with_exact(needed_bytes)} or more, or lower batch_size or the fanouts{offer}.",
    )
    error.needed_bytes, error.offered_bytes = needed_bytes, offered_bytes
    raise error
