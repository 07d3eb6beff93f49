"""MiniBatches: the mini-batches of an epoch, sampled and loaded ahead of a training loop.

A batch depends on the arguments, the number of its epoch and its own number alone. So a loop may start at any batch of any epoch, and the
number of threads does not matter.

Threads suffice, where PyTorch's DataLoader starts processes: sampling and loading run without Python's lock for nearly all of the time.
So nothing is pickled, and graph and features are in memory once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace as with_changes
from typing import Any, NoReturn

import torch
from torch import Tensor

from sagann.errors import InputError, require_type
from sagann.graph import Answers, Graph
from sagann.graph.checks import require_distinct, wrong_form
from sagann.graph.feature_store import (
    AnnouncedFeatures,
    feature_store,
    read_announced,
    read_rows,
    require_no_gradient,
)
from sagann.ranges import require_integer
from sagann.runtime.device.pinned import PinnedPool
from sagann.runtime.device.streams import Streams
from sagann.runtime.loading.device_copies import DeviceCopies, Packed, pinned_pool
from sagann.runtime.loading.minibatch import MiniBatch
from sagann.runtime.loading.pipeline import Pipeline
from sagann.runtime.loading.sampling_place import SampleOn, device_sampler_of
from sagann.runtime.loading.stages import Size, Stage
from sagann.runtime.places import device_named
from sagann.runtime.processor import num_cores
from sagann.runtime.tiered.device_features import DeviceFeatures, require_same_device
from sagann.sampling import NeighborSampler, Sampled
from sagann.sampling.arguments import as_ids
from sagann.sampling.batches import cut_seeds
from sagann.storage.mapped import is_at_hand

AHEAD = 4
"Number of mini-batches that are made ahead, where that gains time."
# With so few cores, a training step keeps them all busy, and threads beside it delay it by more than they make.
_FEW_CORES = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchStages:
    """What makes the batches of an epoch."""

    stages: tuple[Stage, ...]
    "Stages, in order; the first one gets the number of a batch."
    receive: Callable[[Any], MiniBatch]
    "Makes a batch of the last stage's result, on the thread that trains."


class MiniBatches:
    """The mini-batches of a graph: an iterable that has new ones in every epoch.

    ``for batch in minibatches`` goes through the next epoch, the first time through epoch 0. Batches are sampled, loaded and copied to the
    device ahead of the loop, on threads of their own. They end with the loop, however it ends.

    A feature store of :class:`sagann.graph.feature_store.AnnouncedFeatures` is told of every batch as soon as it is sampled. Several
    loops may use one store at the same time. Features of :class:`sagann.runtime.tiered.DeviceFeatures` are gathered by the device.

    Args:
        graph: as the model reads it: ``model.prepare(graph)`` for a model that has ``prepare``. Topology and features may be mapped from
            files, and features may be a feature store.
        fanouts: number of in-edges to pick for each destination of a hop, ``model.num_hops`` of them; the first one is that of the hop
            nearest the seeds, and -1 picks all in-edges.
        batch_size: number of seeds in a batch; the last batch may have fewer.
        seeds: name of a split, whose labelled vertices are the seeds; or a mask, bool [num_vertices]; or distinct ids, int64 [num_seeds].
            Mask and ids may be a tensor, a list or a NumPy array.
        shuffle: take the seeds in another random order in each epoch.
        seed: seed of the order and of the sampler.
        replace: pick edges with replacement.
        weights: name of edge data by which edges are picked; None picks all with equal probability.
        drop_last: leave out a last batch that is smaller than the others.
        threads: number of threads that sample, and of threads that load features; does not change the batches. Where batches are
            announced, one thread loads.
        ahead: most batches that are made before they are asked for; 0 makes each one on the calling thread. None chooses
            (:func:`useful_ahead`). Does not change the batches. Where batches are announced, as many further ones are sampled ahead of
            those, without their features. Where edge data learn, no batch is made ahead.
        device: where batches go: 'cpu', 'cuda' or 'cuda:N'. The graph stays on the CPU.
        sample_on: who samples: "cpu", the processor; or "device", the CUDA device that batches go to. Then the edges lie in the device's memory as far as half of
            what is free has room for them, and the others are read in place. A :class:`sagann.runtime.tiered.DeviceTopology` of the graph's
            topology states its room. Does not change the batches.
    Raises:
        InputError: an argument has the wrong form, there is no seed, or features require a gradient.
    Example:
        >>> from sagann.graph import demo_graph
        >>> minibatches = MiniBatches(demo_graph(), fanouts=[10, 5], batch_size=32)
        >>> len(minibatches)
        2
        >>> [len(batch.seeds) for batch in minibatches]
        [32, 28]
    """

    def __init__(
        self,
        graph: Graph,
        *,
        fanouts: Sequence[int],
        batch_size: int = 1024,
        seeds: str | Tensor | Sequence[int] = "train",
        shuffle: bool = True,
        seed: int = 0,
        replace: bool = False,
        weights: str | None = None,
        drop_last: bool = False,
        threads: int = 1,
        ahead: int | None = None,
        device: torch.device | str = "cpu",
        sample_on: SampleOn = "cpu",
    ) -> None:
        require_type(
            graph, Graph, where="MiniBatches.graph", hint="Open it with sagann.load_graph, or make a sagann.Graph."
        )
        require_no_gradient(graph.features, where="MiniBatches.graph, features")
        self.device = device_named(device, where="MiniBatches.device")
        if ahead is None:
            ahead = useful_ahead(graph, self.device)
        for name, value in (("batch_size", batch_size), ("threads", threads), ("ahead", ahead)):
            require_integer(value, name, where=f"MiniBatches.{name}")
        for name, flag in (("shuffle", shuffle), ("drop_last", drop_last)):
            require_type(flag, bool, where=f"MiniBatches.{name}", hint="Pass True or False.")
        self.graph = graph
        self.batch_size = batch_size
        self.neighbor_sampler = NeighborSampler(
            graph.topology, fanouts, replace=replace, weights=weights, seed=seed
        )
        self._device_sampler = device_sampler_of(
            sample_on,
            graph.topology,
            fanouts,
            device=self.device,
            replace=replace,
            weights=weights,
            seed=seed,
        )
        "Samples in the place of ``neighbor_sampler`` where a device samples."
        self.seeds = self._chosen(seeds)
        self.shuffle = shuffle
        self.drop_last = drop_last
        self.threads = threads
        self.ahead = most_ahead(graph, ahead)
        self._features = None if graph.features is None else feature_store(graph.features)
        if isinstance(self._features, DeviceFeatures):
            require_same_device(self._features, self.device, "MiniBatches.device")
        self._next_epoch = 0
        self._queues: tuple[Streams, PinnedPool] | None = None
        "Queues and pinned memory of batches that are copied to a device."
        if not len(self):
            raise InputError(
                f"an epoch has no batch: {len(self.seeds)} seeds, batch_size {batch_size} (in MiniBatches.seeds)",
                hint="Leave drop_last out, or lower batch_size." if len(self.seeds) else "Pass at least one seed.",
            )

    def __len__(self) -> int:
        """Number of batches in an epoch."""
        whole, rest = divmod(len(self.seeds), self.batch_size)
        return whole + (rest > 0 and not self.drop_last)

    def set_epoch(self, epoch: int) -> None:
        """Have the next loop go through this epoch."""
        require_integer(epoch, "epoch", where="MiniBatches.set_epoch")
        self._next_epoch = epoch

    def __getitem__(self, number: object) -> NoReturn:
        """Refuse to be indexed, as PyTorch's DataLoader does with a data set.

        Raises:
            InputError: always.
        """
        raise not_numbered(type(self).__name__)

    def __iter__(self) -> Iterator[MiniBatch]:
        epoch, self._next_epoch = self._next_epoch, self._next_epoch + 1
        return self.batches(epoch)

    def batches(self, epoch: int, *, first: int = 0) -> Pipeline[MiniBatch]:
        """The batches of an epoch from a given one on: ``first`` is the number of batches that are done already.

        The result is an iterator with ``counters`` of its stages and ``close``.
        """
        require_integer(epoch, "epoch", where="MiniBatches.batches, epoch")
        require_integer(first, "batch", where="MiniBatches.batches, first")
        if first > len(self):
            raise InputError(
                f"the epoch has fewer batches: first is {first}, there are {len(self)} (in MiniBatches.batches)",
                hint="Start with a batch of the epoch, or with the next epoch.",
            )
        making, item = self.stages(epoch), f"epoch {epoch}, batch"
        numbers = range(first, len(self))
        return Pipeline(numbers, making.stages, ahead=self.ahead + self.window, item=item, receive=making.receive)

    @property
    def announces(self) -> bool:
        """Whether batches are announced to the feature store.

        Then they are loaded by one thread: of two batches that are loaded at the same time, each reads the rows that both need.
        """
        return isinstance(self._features, AnnouncedFeatures) and self._features.wants_announcements

    @property
    def window(self) -> int:
        """Number of batches that are sampled and announced ahead of those that are loaded; 0 where nothing is announced."""
        return self.ahead if self.announces else 0

    def seeds_of(self, epoch: int) -> Sequence[Tensor]:
        """The seeds of each batch of an epoch, int64."""
        return cut_seeds(
            self.seeds,
            self.batch_size,
            shuffle=self.shuffle,
            seed=self.neighbor_sampler.seed,
            epoch=epoch,
            drop_last=self.drop_last,
        )

    def stages(self, epoch: int) -> BatchStages:
        """What makes the batches of an epoch."""
        ids = self.seeds_of(epoch)

        def sample(number: int) -> Sampled:
            return self.sample(ids[number], epoch=epoch, batch=number)

        stages = [Stage(name="sample", work=sample, threads=self.threads, size_of=_size_of_sampled)]
        if isinstance(self._features, DeviceFeatures):
            return self._stages_of_device(stages, self._features)
        copies = self._copies() if self.device.type != "cpu" or self._device_sampler is not None else None
        read: Callable[[Any], MiniBatch] = self.load
        threads = self.threads
        if self.announces:
            stages.append(Stage(name="announce", work=self._announce, in_order=True))
            read, threads = self._load_announced, 1
        if copies is None:
            stages.append(Stage(name="load", work=read, threads=threads, size_of=_size_of_batch, ahead=self.ahead))
            return BatchStages(stages=tuple(stages), receive=lambda batch: batch)

        def load(sampled: Any) -> Packed:
            with copies.making_rows():
                batch = read(sampled)
            return copies.pack(batch)

        stages.append(
            Stage(
                name="load",
                work=load,
                threads=threads,
                size_of=lambda packed: _size_of_batch(packed.batch),
                ahead=self.ahead,
            )
        )
        stages.append(Stage(name="copy", work=copies.send, size_of=lambda sent: Size(num_bytes=sent.memory.nbytes)))
        return BatchStages(stages=tuple(stages), receive=copies.receive)

    def sample(self, seeds: Tensor, *, epoch: int, batch: int) -> Sampled:
        """The blocks of a batch, for some of ``self.seeds``. They lie on the device where it samples; ids lie on the processor in any case."""
        return self._sampled(seeds, epoch, batch, lambda sampled: sampled)

    def _sampled(self, seeds: Tensor, epoch: int, batch: int, change: Callable[[Sampled], Sampled]) -> Sampled:
        """As :meth:`sample`, with a change of the blocks where they lie."""
        if self._device_sampler is None:
            return change(self.neighbor_sampler.sample(seeds, epoch=epoch, batch=batch)).prepare()
        streams, _ = self._queue()
        # A lane of its own, so that sampling does not wait for the training step.
        with streams.on("load"):
            sampled = change(self._device_sampler.sample(seeds, epoch=epoch, batch=batch))
            return with_changes(sampled, src_ids=sampled.src_ids.cpu(), seeds=seeds)

    def _chosen(self, seeds: str | Tensor | Sequence[int]) -> Tensor:
        """The seeds that an argument names, int64."""
        return chosen(self.graph.vertices, seeds, where="MiniBatches.seeds")

    def _stages_of_device(self, stages: Sequence[Stage], features: DeviceFeatures) -> BatchStages:
        """Stages of batches whose features the device gathers: the processor loads only those rows that the device cannot read."""
        copies = self._copies(features)

        def load(sampled: Sampled) -> Packed:
            with copies.making_rows():
                far = features.pick(sampled.src_ids)
            return copies.pack(self._batch(sampled, None), far)

        def size_of(packed: Packed) -> Size:
            num_rows = len(packed.batch.src_ids)
            return Size(rows=num_rows, num_bytes=num_rows * features.row_bytes)

        loading = Stage(name="load", work=load, threads=self.threads, size_of=size_of)
        copying = Stage(name="copy", work=copies.send, size_of=lambda sent: Size(num_bytes=sent.memory.nbytes))
        return BatchStages(stages=(*stages, loading, copying), receive=copies.receive)

    def _copies(self, features: DeviceFeatures | None = None) -> DeviceCopies:
        """Copies to the device, by the queues and the pinned memory of the epochs before."""
        streams, pool = self._queue()
        return DeviceCopies(streams, features, pool=pool)

    def _queue(self) -> tuple[Streams, PinnedPool]:
        if self._queues is None:
            streams = Streams(self.device)
            self._queues = streams, pinned_pool(streams)
        return self._queues

    def _announce(self, sampled: Sampled) -> tuple[Any, Sampled]:
        """Tell the feature store which rows a batch reads; the store's announcement, and the batch."""
        assert isinstance(self._features, AnnouncedFeatures)
        return self._features.announce(sampled.src_ids), sampled

    def _load_announced(self, announced: tuple[Any, Sampled]) -> MiniBatch:
        announcement, sampled = announced
        assert isinstance(self._features, AnnouncedFeatures)
        return self._batch(sampled, read_announced(self._features, announcement, len(sampled.src_ids)))

    def load(self, sampled: Sampled) -> MiniBatch:
        """The batch of some sampled blocks, with the rows of its sources."""
        return self._batch(sampled, None if self._features is None else read_rows(self._features, sampled.src_ids))

    def _batch(self, sampled: Sampled, features: Tensor | None) -> MiniBatch:
        labels, targets = self.graph.labels, self.graph.targets
        return MiniBatch(
            blocks=sampled.blocks,
            src_ids=sampled.src_ids,
            seeds=sampled.seeds,
            features=features,
            labels=None if labels is None else labels.index_select(0, sampled.seeds),
            targets=None if targets is None else targets.index_select(0, sampled.seeds),
            links=sampled.links,
        )


def useful_ahead(graph: Graph, device: torch.device) -> int:
    """How many mini-batches to make ahead: :data:`AHEAD`, or 0 where that would only take cores from the training step.

    That is on a processor of one or two cores, if no thread waits for a disk or a device: all arrays that batches are made of are
    in memory or in the page cache.

    Args:
        graph: what batches are made of.
        device: where the model is trained.
    """
    if device.type != "cpu" or num_cores() > _FEW_CORES:
        return AHEAD
    arrays = [graph.topology.indptr, graph.topology.indices, graph.features]
    return 0 if all(array is None or is_at_hand(array) for array in arrays) else AHEAD


def most_ahead(graph: Graph, ahead: int) -> int:
    """``ahead``; or 0 where edge data learn: a batch must have the numbers that the optimizer's last step leaves."""
    return 0 if any(rows.requires_grad for rows in graph.topology.edge_data.values()) else ahead


def chosen(answers: Answers, wanted: str | Tensor | Sequence[int], *, where: str) -> Tensor:
    """Ids of vertices, or of graphs, int64 [n]: those of a split whose answers are known, those of a mask, or distinct ids."""
    unit = answers.unit
    if isinstance(wanted, str):
        if wanted not in answers.splits:
            raise InputError(
                f"the {answers.units} have no such split: '{wanted}', there are "
                f"{', '.join(answers.splits) or 'none'} (in {where})",
                hint=f"Name a split of the {answers.units}, or pass a mask or ids; random_split and random_graph_split make splits.",
            )
        return answers.known(answers.splits[wanted])
    wanted = as_ids(wanted, where=where)
    if wanted.dtype == torch.bool:
        if wanted.shape != (answers.count,):
            expected = f"torch.bool [{answers.count}]"
            raise wrong_form(wanted, expected, where=where, hint=f"Pass a mask with a value for each {unit}.")
        return wanted.nonzero().squeeze(1)
    require_distinct(wanted, answers.count, where=where, unit=unit)
    return wanted


def _size_of_sampled(sampled: Sampled) -> Size:
    arrays = [
        array for block in sampled.blocks for array in (block.indptr, block.indices, *block.edge_data.values())
    ]
    return Size(rows=sampled.num_edges, num_bytes=sum(array.nbytes for array in arrays))


def _size_of_batch(batch: MiniBatch) -> Size:
    return Size(rows=len(batch.src_ids), num_bytes=sum(part.nbytes for part in batch.feature_arrays))


def not_numbered(kind: str) -> InputError:
    """The error of batches of a class that are asked for one by its number."""
    return InputError(
        "batches are not rows of a data set: a batch was asked for by its number, as "
        f"torch.utils.data.DataLoader does (in {kind})",
        hint=f"Leave the DataLoader out, and write `for batch in batches: ...`: {kind} makes the batches of a new epoch each time, ahead of the "
        "loop, on threads of its own (threads=, ahead=).",
    )
