"""Tiers of a sampled run: how large the hot tier is, which rows are hot, how many mini-batches are made ahead, and who samples them.

A run on a CUDA device whose features lie in the host's memory has its hot tier on the device. In all other runs it lies in the host's memory,
in front of a file or a feature store, and gets at most half of a memory budget; the mini-batches that are made ahead and the training step
get the rest. The queue of batches is shortened until they fit; if not even one batch ahead fits, the hot tier gives up room.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from sagann.byte_size import format_bytes, with_exact
from sagann.config import TrainConfig
from sagann.errors import InputError
from sagann.free_space import host_room
from sagann.graph import Graph
from sagann.graph.feature_store import AnnouncedFeatures, Features
from sagann.graph.rows import is_sparse, row_arrays
from sagann.plan.residency import BudgetError
from sagann.runtime.device.cuda_devices import CudaDevices
from sagann.runtime.loading import MiniBatch, MiniBatches
from sagann.runtime.loading.minibatches import SampleOn
from sagann.runtime.tiered import DeviceFeatures, DeviceTopology, TieredFeatures
from sagann.runtime.tiered.features import hot_tier_bytes
from sagann.runtime.tiered.hot_size import HotSize, hot_rows, parse_hot
from sagann.storage.mapped import MappedRows, positioned
from sagann.tiering import hottest, score_vertices
from sagann.train.predictor import Predictor
from sagann.train.resources import seeded

if TYPE_CHECKING:
    from sagann.runtime.team import Team
    from sagann.runtime.workers import PartRows


class TierPlan(NamedTuple):
    """What a sampled run keeps in memory for mini-batches."""

    hot: HotSize | None
    "Size of the hot tier; None for features that are used where they are."
    ahead: int
    "Most mini-batches that are made before the training step needs them."


def stated_hot_bytes(features: Features | None, config: TrainConfig) -> int:
    """Bytes of the hot tier that ``TrainConfig.hot`` states; 0 where it is None."""
    if config.hot is None or features is None:
        return 0
    _require_tiers(features, config)
    return hot_tier_bytes(features, config.hot, cache=config.cache)


def _require_tiers(features: Features, config: TrainConfig) -> None:
    if config.hot is not None and is_sparse(features):
        raise InputError(
            f"sparse features have no tiers: hot is '{config.hot}', but rows differ in size (in TrainConfig.hot)",
            hint="Leave hot out: sparse features are used in memory.",
        )


def plan_tiers(
    features: Features,
    config: TrainConfig,
    *,
    ahead: int,
    budget_bytes: int | None,
    measure: Callable[[], BatchMemory],
) -> TierPlan:
    """Choose the size of the hot tier and the length of the queue, of at most ``ahead`` batches.

    Without a budget both are as stated. Within a budget, features that are mapped from a file or come from a store get a hot tier by
    themselves, and "auto" asks for no more than that.
    """
    _require_tiers(features, config)
    if budget_bytes is None:
        return TierPlan(config.hot, ahead)
    if config.hot is not None and parse_hot(config.hot) is None:
        config = replace(config, hot=None)
    hot, hot_bytes, half_bytes = config.hot, stated_hot_bytes(features, config), budget_bytes // 2
    if hot_bytes > half_bytes:
        raise InputError(
            f"the hot tier is larger than its half of the memory budget: hot '{hot}' takes "
            f"{format_bytes(hot_bytes)} with its tables, half of the budget is {format_bytes(half_bytes)} (in "
            "TrainConfig.hot)",
            hint="Leave hot out for as much as the budget has room for, or raise the budget (--memory) to "
            f"{with_exact(2 * hot_bytes)} or more.",
        )
    batches = measure()
    needed_bytes = batches.needed_bytes(ahead)
    if hot is not None or not _is_read_elsewhere(features):
        # Room for the whole queue, beside a hot tier that is at most half of the budget.
        offered_bytes = max(2 * hot_bytes, hot_bytes + needed_bytes)
        return TierPlan(hot, _queue(batches, budget_bytes, ahead, hot_bytes=hot_bytes, offered_bytes=offered_bytes))
    # The hot tier gives up room for one batch ahead.
    few = min(1, ahead)
    fits = batches.needed_bytes(few) <= half_bytes
    room_bytes, most = (half_bytes, ahead) if fits else (budget_bytes, few)
    queue = min(most, _queue(batches, room_bytes, ahead, offered_bytes=2 * needed_bytes))
    hot_bytes = half_bytes if fits else budget_bytes - batches.needed_bytes(queue)
    # A budget may be larger than what is free.
    free_bytes = host_room().free_bytes
    hot_bytes -= 0 if free_bytes is None else max(0, budget_bytes - free_bytes)
    if hot_bytes < hot_tier_bytes(features, 0.0, cache=config.cache):
        return TierPlan(None, _queue(batches, budget_bytes, ahead, offered_bytes=2 * needed_bytes))
    return TierPlan(hot_bytes, queue)


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
    devices: Sequence[torch.device] = (),
) -> Graph:
    """A graph whose features have a hot tier, which begins with the first rows of ``hottest``, over ``devices`` or in the host's memory."""
    assert graph.features is not None
    store: DeviceFeatures | TieredFeatures
    if devices:
        store = DeviceFeatures(graph.features, hot, devices=_beside_budget(devices, config), hottest=hottest)
    else:
        store = TieredFeatures(graph.features, hot, cache=config.cache, hottest=hottest)
    size, part = format_bytes(store.hot_bytes), _part(store.num_hot_rows, store.num_rows)
    if isinstance(store, DeviceFeatures):
        cold = "read in place from pinned memory" if store.is_in_place else "gathered by the processor"
        each = f"{size} of {devices[0]}" if len(devices) == 1 else f"{size} of each of {len(devices)} devices"
        say(
            f"The hot tier takes {each}: {part}, those of the highest score (cache 'static'). The other rows are {cold}."
        )
    elif is_in_memory(graph.features):
        say("The features lie in memory: the hot tier takes memory beside them and saves no reads.")
    elif hot != config.hot:
        say(f"The memory budget has room for a hot tier of {size}: {part}.")
    return replace(graph, features=store)


def _part(num_hot: int, num_rows: int) -> str:
    return f"{num_hot / max(1, num_rows):.1%} of the rows"


def keep_hot(
    rows: PartRows, hot: HotSize | None, hottest: Callable[[], Tensor], team: Team, *, say: Callable[[str], None]
) -> None:
    """Keep rows of other workers in memory, as many at each worker, of which one may have room for none. All workers call this at the same time."""
    found, row_bytes = 0, rows.row_bytes + rows.id_bytes
    with team.together("finding room for the hot tier"):
        if hot is not None:
            found = hot_rows(hot, num_rows=rows.num_rows, row_bytes=row_bytes, state_bytes=lambda _: 0)
    count = min(map(int, team.texts(str(found), "agreeing on the hot tier")))
    if count:
        rows.keep(count, hottest())
        part = f"{_part(rows.num_hot_rows, rows.num_rows)}, rows of others with the highest score"
        say(f"The hot tier of each worker takes {format_bytes(rows.hot_bytes)}: {part}.")


def sampling_place(
    graph: Graph, config: TrainConfig, devices: Sequence[torch.device], *, say: Callable[[str], None]
) -> SampleOn:
    """Who samples mini-batches. Where devices do, the graph's edges are placed for them, beside the memory budget, which is theirs too."""
    if config.sample_on == "cpu" or devices[0].type == "cpu":
        return config.sample_on
    edges = DeviceTopology(graph.topology, devices=_beside_budget(devices, config))
    who, whose = (str(devices[0]), "its memory") if len(devices) == 1 else (f"{len(devices)} devices", "each")
    text = f"Mini-batches are sampled by {who}. The edges take {format_bytes(edges.device_bytes)} of {whose}."
    if edges.in_place_bytes:
        text += f" {format_bytes(edges.in_place_bytes)} more are read in place from pinned memory."
    say(text)
    return edges


def _beside_budget(devices: Sequence[torch.device], config: TrainConfig) -> CudaDevices:
    """The devices, without the memory that the budget takes."""
    return CudaDevices(devices, reserved_bytes=config.memory_bytes or 0)


def is_in_memory(features: Features) -> bool:
    """Whether features are a tensor that is not mapped from a file, so that reading its rows waits for no disk."""
    return isinstance(features, Tensor) and not isinstance(positioned(features), MappedRows)


def _is_read_elsewhere(features: Features) -> bool:
    """Whether a hot tier may save reads: the features are neither in memory nor in a store with tiers of its own."""
    return not is_in_memory(features) and not isinstance(features, AnnouncedFeatures)


def hottest_rows(
    graph: Graph, config: TrainConfig, *, seeds: Tensor | None = None, batch_size: int | None = None
) -> Tensor:
    """Ids of all vertices, those of the highest score first. ``seeds`` are where batches start from, by default labelled vertices of 'train'."""
    assert config.sample is not None
    size = batch_size or config.seeds_per_batch
    return hottest(score_vertices(graph, config.score, fanouts=config.sample, batch_size=size, seeds=seeds))


def _queue(batches: BatchMemory, room_bytes: int, ahead: int, *, hot_bytes: int = 0, offered_bytes: int) -> int:
    """The largest number of batches ahead, at most ``ahead``, for which a step has room beside the hot tier; ``offered_bytes`` has room for all."""
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


TRIED_BATCHES = 3
"Number of batches that are sampled to learn their size."
MARGIN = 1.125
"Factor on the size of the largest batch that was tried."
# Per source of a batch: its next use in the window of a cache.
_WINDOW_BYTES = 8
# Per source of a batch and thread: the table of local ids, and the positions of rows while they are read.
_THREAD_BYTES = 128


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchMemory:
    """Bytes that mini-batches take, apart from the graph, the hot tier and the weights."""

    batch_bytes: int
    "Bytes of a mini-batch: blocks with their out-edges, rows of features, ids, labels."
    step_bytes: int
    "Bytes that a training step takes besides its batch: what the backward pass reads again, and temporary rows."
    thread_bytes: int
    "Bytes of the tables of all threads that sample or load."
    window_bytes: int = 0
    "Bytes that each batch ahead takes besides: a further batch of the window, which is sampled and not loaded. 0 without a window."

    def needed_bytes(self, ahead: int) -> int:
        """Peak bytes of a training step while ``ahead`` mini-batches are made."""
        # Without batches ahead, the step's batch is still there while the next one is made.
        beside = self.step_bytes if ahead else max(self.step_bytes, self.batch_bytes)
        return self.thread_bytes + beside + (ahead + 1) * self.batch_bytes + ahead * self.window_bytes


def measure_batches(predictor: Predictor, minibatches: MiniBatches, *, has_window: bool = False) -> BatchMemory:
    """Sample the first mini-batches of epoch 1, and run model and loss on the largest one as in training; the model is as before afterwards.

    With ``has_window``, as many batches as are made ahead will be sampled and announced ahead of these.
    """
    with minibatches.batches(1) as batches:
        # One is kept at a time: the budget may have room for no more.
        largest = max(islice(batches, TRIED_BATCHES), key=_batch_bytes)
    num_sources = len(largest.src_ids)
    own_bytes = _batch_bytes(largest) + _WINDOW_BYTES * num_sources
    rows_bytes = sum(each.nbytes for each in row_arrays(largest.features))
    return BatchMemory(
        batch_bytes=int(MARGIN * own_bytes),
        step_bytes=int(MARGIN * _step_bytes(predictor, largest)),
        thread_bytes=2 * minibatches.threads * _THREAD_BYTES * num_sources,
        window_bytes=int(MARGIN * (own_bytes - rows_bytes)) if has_window else 0,
    )


def _batch_bytes(batch: MiniBatch) -> int:
    return sum(array.nbytes for array in _arrays_of(batch))


def _arrays_of(batch: MiniBatch) -> list[Tensor]:
    arrays: list[Tensor] = []

    def note(array: Tensor) -> Tensor:
        arrays.append(array)
        return array

    batch.mapped(note)
    return arrays


def _step_bytes(predictor: Predictor, batch: MiniBatch) -> int:
    """Bytes that autograd keeps for the backward pass of the loss, and twice the largest tensor for gradients of rows."""
    kept, trained = dict[int, int](), predictor.copied()

    def note(tensor: Tensor) -> Tensor:
        # Sparse features are arrays of the batch.
        if tensor.layout == torch.strided:
            kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    trained.model.train()
    with seeded(0, predictor.device), saved_tensors_hooks(note, lambda tensor: tensor):
        # Without the result, memory of kept tensors could be given to others.
        loss = trained.loss_of_batch(batch)
    note(loss)
    # Lazy parameters have memory only now.
    for array in (*_arrays_of(batch), *trained.model.parameters(), *trained.model.buffers()):
        kept.pop(array.untyped_storage().data_ptr(), None)
    return sum(kept.values()) + 2 * max(kept.values(), default=0)
