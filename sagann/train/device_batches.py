"""Mini-batches that a device samples and trains: padded to one envelope, recorded, and read one batch late.

The batches of the first epoch are as large as they come. They state the envelope: the most sources and edges of each hop, and 2% more, for whole
batches and for the last one of an epoch. From the second epoch on all batches are padded to it (:meth:`DeviceSampler.padded`), so that sampling,
gathering rows, loss, gradients and the optimizer's step are one graph, which is launched with the seeds and the keys of a batch. Whether a run pads
follows from the graph and the configuration, so runs have the same bits whether its batches can be recorded or not.

A batch beyond the envelope raises a flag on the device. From then on no batch changes anything: the optimizer skips its steps, until the host has
read the flag. It trains that batch without padding, from the same random numbers, and goes on with the next one. So no batch is lost or late.

While the device computes a batch, the host queues the next one, and then reads and reports the first, unless somebody needs its weights.

References:
    ZeroGNN, arXiv 2605.29346, 2026: counts stay on the device, within a tight envelope, and graphs replay.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import replace as with_changes
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from sagann.graph.rows import is_sparse
from sagann.kernels.edge import dialect_for
from sagann.runtime.tiered import DeviceFeatures
from sagann.runtime.tiered.device_sampler import Room
from sagann.saga.batch_norms import batch_norms_over_rows
from sagann.train.batch_epochs import SampledEpochs
from sagann.train.device_epochs import DeviceEpochs, Queued, needs_weights
from sagann.train.epoch_source import EpochSource, TrainStep
from sagann.train.policies import is_fused, skipping_steps
from sagann.train.reporter import Reporter
from sagann.train.resources import capture_rng, restore_rng
from sagann.train.saver import Saver

if TYPE_CHECKING:
    from sagann.train.session import TrainSession

Taken = tuple[TrainStep, float, int]
"A step, its loss, and its number of edges."


class DeviceBatches(DeviceEpochs):
    """The epochs of a session whose mini-batches are sampled by its device; see the module. ``say`` is told why they are not padded, or not recorded."""

    def __init__(self, session: TrainSession, source: EpochSource, say: Callable[[str], None]) -> None:
        super().__init__(session, source, say)
        assert isinstance(source, SampledEpochs)
        assert source.minibatches.device_sampler is not None
        self._batches, device = source, session.device
        self._sampler = source.minibatches.device_sampler
        self._unpadded = _unpadded_cause(session, source)
        self._rooms: dict[int, list[Room]] = {}
        self._beyond = torch.zeros((), dtype=torch.float32, device=device)
        "1 from a batch beyond the envelope until it is trained, else 0."
        graph = source.minibatches.graph
        known = {"labels": graph.labels, "targets": graph.targets}
        self._answers = {name: each.to(device) for name, each in known.items() if each is not None}

    def run(self, reporters: Sequence[Reporter], *, stops: Callable[[], bool]) -> None:
        session = self._session
        if self._unpadded is not None:
            self._say(f"Mini-batches are neither padded nor replayed as CUDA graphs, because {self._unpadded}.")
            session.run_epochs(reporters, stops=stops)
            return

        def waits(epoch: int) -> bool:
            # A checkpoint is written after a batch behind which none is queued.
            due = any(isinstance(each, Saver) and each.is_late for each in reporters)
            others = [each for each in reporters if not isinstance(each, Saver)]
            return due or stops() or needs_weights(others, epoch)

        with self._streams.queue():
            session.run_epochs(reporters, stops=stops, results=partial(self._results, waits))

    def _results(self, waits: Callable[[int], bool], epoch: int, first: int) -> Generator[Taken, None, None]:
        session = self._session
        if epoch == 1:
            yield from session.results(epoch, first)
            return
        self._rooms = self._rooms or dict(self._batches.envelope())
        batches, number = self._batches.minibatches.items_of(epoch), first
        # With the states of the generators before each batch.
        queued = deque[tuple[Queued, dict[str, Any]]]()
        with self._batches.counting_traffic():
            while queued or number < len(batches):
                while number < len(batches) and len(queued) < (1 if waits(epoch) else 2):
                    before = capture_rng(session.device)
                    queued.append((self._begun(epoch, number, batches[number]), before))
                    number += 1
                done, before = queued.popleft()
                self._streams.finish(done.mark)
                loss, is_beyond, num_edges = done.numbers.tolist()
                if is_beyond:
                    number = done.number + 1
                    queued.clear()
                    restore_rng(before, session.device)
                    self._beyond.zero_()
                    with closing(session.results(epoch, done.number)) as results:
                        taken = next(results)
                else:
                    session.require_finite(loss, f"training loss of epoch {epoch}")
                    taken = _step(len(batches[done.number]), Tensor), loss, int(num_edges)
                session.is_ahead = bool(queued)
                yield taken

    def _begun(self, epoch: int, number: int, seeds: Tensor) -> Queued:
        count = len(seeds)
        if count not in self._recordings:
            num_given = count + len(self._sampler.fanouts)
            self._recordings[count] = self._recording(partial(self._trained, count), num_given=num_given)
        given = torch.cat([seeds, self._sampler.keys(epoch, number)])
        return self._launch(number, self._recordings[count], "Padded mini-batches", given)

    def _trained(self, count: int, rates: Sequence[Tensor], given: Tensor) -> Tensor:
        """Queue the step of a batch, from its seeds and keys; its numbers, float64 on the device."""
        session, graph = self._session, self._batches.graph
        session.model.train()
        seeds, keys = given.contiguous().split([count, len(self._sampler.fanouts)])
        batch, is_beyond, num_edges = self._sampler.padded(seeds, keys, self._rooms[count])
        dialect: Any = dialect_for(session.device.type)
        # As for batches that are copied, kernels alone have cuts.
        for block in batch.blocks if hasattr(dialect, "set_cut") else ():
            for at in ("dst", "src"):
                dialect.set_cut(block, at, dialect.cut_on_device(block, at))
        self._beyond.copy_(torch.maximum(self._beyond, is_beyond.to(self._beyond.dtype)))
        store = self._batches.minibatches.graph.features
        if isinstance(store, DeviceFeatures):
            rows = store.rows(batch.src_ids)
        else:
            assert isinstance(graph.features, Tensor)
            rows = graph.features.index_select(0, batch.src_ids.clamp(min=0))
        answers: dict[str, Any] = {name: each.index_select(0, seeds) for name, each in self._answers.items()}
        batch = with_changes(batch, features=rows, **answers)
        known = [(each, each._version, each.clone()) for each in session.model.buffers() if not each.is_inference()]
        with skipping_steps(session.optimizer, self._beyond):
            step = _step(count, partial(self._batches.loss_of_padded, batch, count))
            found, _ = session.queue_step(step, rates)
        for each, version, before in known:
            if each._version != version:
                each.copy_(torch.where(self._beyond > 0, before, each))
        return torch.stack([found.double(), self._beyond.double(), num_edges.double()])


def _step(count: int, loss: Callable[[], Tensor]) -> TrainStep:
    return TrainStep(loss=loss, num_labelled=count, num_edges=0)


def _unpadded_cause(session: TrainSession, source: SampledEpochs) -> str | None:
    """Why a run does not pad its batches; None where it does."""
    store, optimizer = source.minibatches.graph.features, session.optimizer
    # Layers say what they do while they are trained.
    session.model.train()
    if source.minibatches.links is not None:
        return "those of links differ too much in size"
    if any(rows.requires_grad for rows in source.minibatches.graph.topology.edge_data.values()):
        return "edge data learn"
    if norms := batch_norms_over_rows(session.model):
        return f"the {type(next(iter(norms.values()))).__name__} '{next(iter(norms))}' would count padding"
    if not is_fused(optimizer):
        return f"the optimizer {type(optimizer).__name__} cannot leave out a step on the device"
    there = source.graph.features
    on_device = isinstance(there, Tensor) and there.device == session.device and not is_sparse(there)
    if store.has_far_rows if isinstance(store, DeviceFeatures) else not on_device:
        return "the processor gathers rows of features (--hot keeps them where the device reads them)"
    return None
