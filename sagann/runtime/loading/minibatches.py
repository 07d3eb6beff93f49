"""MiniBatches: the mini-batches of an epoch, sampled and loaded ahead of a training loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace as with_changes
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor

from sagann.errors import InputError, require_type
from sagann.graph import Graph
from sagann.graph.feature_store import AnnouncedFeatures, Features, read_announced, read_rows
from sagann.graph.topology import Topology
from sagann.ranges import require_integer
from sagann.runtime.device.cuda_devices import CudaDevices
from sagann.runtime.device.streams import PinnedPool, Streams
from sagann.runtime.loading.batches import Batches, chosen, require_graph, size_of_rows
from sagann.runtime.loading.device_copies import DeviceCopies, Packed, pinned_pool
from sagann.runtime.loading.pipeline import Size, Stage
from sagann.runtime.places import device_named
from sagann.runtime.tiered import DeviceSampler, DeviceTopology
from sagann.runtime.tiered.device_features import DeviceFeatures, require_same_device
from sagann.sampling import LearnedLinks, MiniBatch, NeighborSampler
from sagann.sampling.neighbor_sampler import Edges

SampleOn: TypeAlias = str | DeviceTopology
"""Who samples: "cpu", "device", or the device of a :class:`sagann.runtime.tiered.DeviceTopology`, which states where its edges lie."""

PLACES = ("cpu", "device")


def device_sampler_of(
    sample_on: SampleOn, like: NeighborSampler, topology: Topology, device: torch.device, weights: str | None
) -> DeviceSampler | None:
    """The sampler of the device that batches go to; None where the processor samples. Whatever no device samples is an InputError."""
    where = "MiniBatches.sample_on"
    require_type(sample_on, (str, DeviceTopology), where=where, hint='Pass "cpu", "device" or a DeviceTopology.')
    if sample_on == "cpu":
        return None
    wrong, hint = "", "Leave sample_on out, and the processor samples."
    if isinstance(sample_on, DeviceTopology):
        if sample_on.device != device:
            wrong = f"edges are read by another device: batches go to '{device}', the edges to '{sample_on.device}'"
            hint = f"Pass device='{sample_on.device}', or a DeviceTopology of that device."
        elif sample_on.topology is not topology:
            wrong = f"edges are those of another graph: {sample_on.topology}, the graph has {topology}"
            hint = "Make the DeviceTopology of graph.topology, after model.prepare(graph)."
    elif sample_on not in PLACES:
        wrong, hint = f"nothing of that name samples: '{sample_on}'", f"Choose one of {', '.join(PLACES)}."
    elif device.type == "cpu":
        wrong = "there is no device that could sample: batches go to 'cpu'"
        hint = "Pass device='cuda', or leave sample_on out: the processor samples."
    if weights is not None:
        wrong = wrong or f"a device does not pick edges by weight: weights='{weights}'"
    if wrong:
        raise InputError(f"{wrong} (in {where})", hint=hint)
    edges = (
        sample_on
        if isinstance(sample_on, DeviceTopology)
        else DeviceTopology(topology, devices=CudaDevices([device]))
    )
    return DeviceSampler(edges, like.fanouts, replace=like.replace, seed=like.seed)


class MiniBatches(Batches[MiniBatch]):
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
            Mask and ids may be a tensor, a list or a NumPy array. Of :class:`sagann.sampling.LearnedLinks` a batch has ``batch_size`` positive
            links, and the seeds are the ends of all its links.
        shuffle: take the seeds in another random order in each epoch.
        seed: seed of the order and of the sampler.
        replace: pick edges with replacement.
        weights: name of edge data by which edges are picked; None picks all with equal probability.
        drop_last: leave out a last batch that is smaller than the others.
        threads: number of threads that sample, and of threads that load features; does not change the batches. Where batches are
            announced, one thread loads.
        ahead: most batches that are made before they are asked for; 0 makes each one on the calling thread. None chooses
            (:func:`sagann.runtime.loading.batches.useful_ahead`). Does not change the batches. Where batches are announced, as many further ones are sampled ahead of
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
        seeds: str | Tensor | Sequence[int] | LearnedLinks = "train",
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
        require_graph(graph, "MiniBatches")
        self.device = device_named(device, where="MiniBatches.device")
        require_integer(threads, "threads", where="MiniBatches.threads")
        self.neighbor_sampler = NeighborSampler(
            graph.topology, fanouts, replace=replace, weights=weights, seed=seed
        )
        self.device_sampler = device_sampler_of(
            sample_on, self.neighbor_sampler, graph.topology, self.device, weights
        )
        "Samples in the place of ``neighbor_sampler`` where a device samples."
        self.links = seeds if isinstance(seeds, LearnedLinks) else None
        if isinstance(seeds, LearnedLinks):
            self.seeds = seeds.edges
        else:
            self.seeds = chosen(graph.vertices, seeds, where="MiniBatches.seeds")
        "What batches are cut from, int64: seeds, or edges to learn."
        self.threads = threads
        super().__init__(
            graph,
            self.seeds,
            "seeds",
            batch_size=batch_size,
            shuffle=shuffle,
            seed=seed,
            drop_last=drop_last,
            ahead=ahead,
            device=self.device,
        )
        if isinstance(self._features, DeviceFeatures):
            require_same_device(self._features, self.device, "MiniBatches.device")
        self._queues: tuple[Streams, PinnedPool] | None = None
        "Queues and pinned memory of batches that are copied to a device."

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

    def draw_from(self, edges: Edges) -> None:
        """Have workers that hold parts of the graph make the batches together: all read ``edges``, and a store of features, at the same time."""
        # One thread of each stage, so that the workers exchange in the order of the batches.
        self.neighbor_sampler.edges, self.is_exchanged, self.threads = edges, True, 1

    def stages(self, epoch: int) -> tuple[tuple[Stage, ...], Callable[[Any], MiniBatch]]:
        ids, features = self.items_of(epoch), self._features

        def sample(number: int) -> MiniBatch:
            return self.sample(ids[number], epoch=epoch, batch=number)

        def size_of(batch: MiniBatch) -> Size:
            count = len(batch.src_ids)
            if isinstance(features, DeviceFeatures):
                return Size(rows=count, num_bytes=count * features.row_bytes)
            return size_of_rows(batch.features, count)

        def size_of_sampled(batch: MiniBatch) -> Size:
            arrays = (
                each for block in batch.blocks for each in (block.indptr, block.indices, *block.edge_data.values())
            )
            return Size(rows=batch.num_edges, num_bytes=sum(array.nbytes for array in arrays))

        stages = [Stage(name="sample", work=sample, threads=self.threads, size_of=size_of_sampled)]
        read: Callable[[Any], MiniBatch] = self.load
        threads = self.threads
        if self.announces:
            # One thread takes the batches in order.
            stages.append(Stage(name="announce", work=self._announce))
            read, threads = lambda announced: self.load(*announced), 1
        if self.device.type == "cpu" and self.device_sampler is None and not isinstance(features, DeviceFeatures):
            loading = Stage(name="load", work=read, threads=threads, size_of=size_of, ahead=self.ahead)
            return (*stages, loading), lambda batch: batch
        streams, pool = self._queue()
        copies = DeviceCopies(streams, features if isinstance(features, DeviceFeatures) else None, pool=pool)
        load = partial(self.packed, copies=copies, read=read)
        loading = Stage(
            name="load", work=load, threads=threads, size_of=lambda packed: size_of(packed.batch), ahead=self.ahead
        )
        copying = Stage(name="copy", work=copies.send, size_of=lambda sent: Size(num_bytes=sent.memory.nbytes))
        return (*stages, loading, copying), copies.receive

    def sample(self, seeds: Tensor, *, epoch: int, batch: int) -> MiniBatch:
        """This process's share of a batch of some of ``self.seeds``, without rows; an empty share has one seed, which counts for another process.

        Blocks lie on the device where it samples, and so do ids of sources, unless the processor reads rows by them.
        """
        own = self.team.share_of(len(seeds))
        own = own if own.start < own.stop else slice(0, 1)
        if self.device_sampler is None:
            return self.drawn(seeds, own, self.neighbor_sampler, epoch=epoch, batch=batch)[0].prepare()
        given = self._queue()[0], seeds, own, self.device_sampler, self._features
        return self.drawn_on(*given, epoch=epoch, batch=batch)

    def drawn(
        self, seeds: Tensor, own: slice, sampler: NeighborSampler | DeviceSampler, *, epoch: int, batch: int
    ) -> tuple[MiniBatch, Tensor]:
        """A part of a batch of some of ``self.seeds``, sampled, without rows; and the ids of its seeds, on the processor."""
        if self.links is None:
            return sampler.sample(seeds[own], epoch=epoch, batch=batch), seeds[own]
        links = self.links.sample(seeds, own, epoch=epoch, batch=batch)
        return self.links.joined(sampler.sample(links.seeds, epoch=epoch, batch=batch), links, seeds), links.seeds

    def drawn_on(
        self,
        streams: Streams,
        seeds: Tensor,
        own: slice,
        sampler: DeviceSampler,
        features: Features | None,
        *,
        epoch: int,
        batch: int,
    ) -> MiniBatch:
        """The same, sampled by a device. Ids of sources lie there, too, unless the processor reads rows of ``features`` by them."""
        # A lane of its own, so that sampling does not wait for the training step.
        with streams.on("load"):
            sampled, ids = self.drawn(seeds, own, sampler, epoch=epoch, batch=batch)
            if features.has_far_rows if isinstance(features, DeviceFeatures) else features is not None:
                sampled = with_changes(sampled, src_ids=sampler.edges.pool.read(sampled.src_ids))
            return with_changes(sampled, seeds=ids)

    def packed(self, batch: Any, copies: DeviceCopies, read: Callable[[Any], MiniBatch] | None = None) -> Packed:
        """A sampled batch, ready for a device, with the rows that ``read`` gives, by default :meth:`load`, or those that the device does not gather."""
        with copies.making_rows():
            if copies.features is None:
                return copies.pack((read or self.load)(batch))
            # The device gathers the others.
            far = copies.features.pick(batch.src_ids)
        return copies.pack(self._with_answers(batch), far)

    def _queue(self) -> tuple[Streams, PinnedPool]:
        if self._queues is None:
            streams = Streams(self.device)
            self._queues = streams, pinned_pool(streams)
        return self._queues

    def _announce(self, batch: MiniBatch) -> tuple[MiniBatch, Any]:
        """Tell the feature store which rows a batch reads; the batch, and the store's announcement."""
        assert isinstance(self._features, AnnouncedFeatures)
        return batch, self._features.announce(batch.src_ids)

    def load(self, batch: MiniBatch, *announcement: Any) -> MiniBatch:
        """A sampled batch with the rows of its sources, those of an announcement if it is given, and the answers of its seeds."""
        if self._features is None:
            return self._with_answers(batch)
        if announcement:
            assert isinstance(self._features, AnnouncedFeatures)
            rows = read_announced(self._features, announcement[0], len(batch.src_ids))
        else:
            rows = read_rows(self._features, batch.src_ids)
        return with_changes(self._with_answers(batch), features=rows)

    def _with_answers(self, batch: MiniBatch) -> MiniBatch:
        labels, targets = self.graph.labels, self.graph.targets
        return with_changes(
            batch,
            labels=None if labels is None else labels.index_select(0, batch.seeds),
            targets=None if targets is None else targets.index_select(0, batch.seeds),
        )
