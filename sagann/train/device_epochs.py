"""Epochs on a device, in memory or streamed: the host does not wait for them, records them where that is possible, and reads their numbers one epoch late.

While the device computes an epoch, the host queues the next one, and then reads and reports the first. An epoch is read at once where
somebody needs what it says, or the weights that it ended with, before the next one begins: a checkpoint is due, patience may run out, a
scheduler goes by the metric, a metric is measured on the processor, a reporter of the user's looks at the model, or the run ends.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from inspect import ismethod
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import ReduceLROnPlateau

from sagann.graph.rows import is_sparse
from sagann.runtime.device.recording import Recording, Work
from sagann.runtime.device.segments import GraphStreams
from sagann.runtime.device.streams import Mark
from sagann.train.epoch_source import EpochSource, WholeGraph
from sagann.train.metrics import Metrics
from sagann.train.policies import check_rates, reads_rates, step_scheduler, steps_on_device
from sagann.train.reporter import EpochProgress, Reporter

if TYPE_CHECKING:
    from sagann.train.session import TrainSession

_MOST_NUMBERS = 16
"Most numbers of an epoch: its loss, and a loss and a metric of each split."


class Queued(NamedTuple):
    """An epoch, or a batch of one, that the device computes."""

    number: int
    lr: float
    numbers: Tensor
    "Float64, pinned; written when the mark is passed."
    mark: Mark
    since_s: float


def needs_weights(reporters: Sequence[Reporter], epoch: int) -> bool:
    """Whether a reporter looks at the weights that an epoch ends with. One of the user's need not inherit from Reporter."""
    return any(not hasattr(each, "needs_weights") or each.needs_weights(epoch) for each in reporters)


class DeviceEpochs:
    """The epochs of a session; see the module. ``say`` is told why epochs are not recorded, once."""

    def __init__(self, session: TrainSession, source: EpochSource, say: Callable[[str], None]) -> None:
        self._session, self._source, self._say = session, source, say
        self._streams = GraphStreams(session.device)
        self._ring = self._streams.pinned(2 * 8 * _MOST_NUMBERS).view(torch.float64).reshape(2, -1)
        self._recordings: dict[int, Recording] = {}
        "By whether metrics are measured as well; of batches, by their number of seeds."
        self._said: set[str] = set()
        self._names: tuple[tuple[str, str], ...] = ()
        "Split and name of each number after the loss."
        self._before: dict[str, Any] = {}
        "The weights that an epoch began with, where best ones are kept: the last epoch may turn out to be the best while they change."
        self._read_s, self._num_edges = 0.0, 0
        self._is_quick = source.is_quick(session.tracker.metric)

    def run(self, reporters: Sequence[Reporter], *, stops: Callable[[], bool]) -> None:
        """Train until the run has ended or ``stops``; see :meth:`TrainSession.run`."""
        session, queued = self._session, None
        with self._streams.queue():
            while True:
                epoch = session.epoch + 1 + (queued is not None)
                ends = epoch > session.config.epochs or session.tracker.exhausted or stops()
                if queued is not None and (ends or self._is_needed(queued.number, reporters)):
                    self._end(queued, reporters, is_last=True)
                    queued = None
                elif ends:
                    return
                else:
                    following = self._begin(epoch)
                    if queued is not None:
                        self._end(queued, reporters, is_last=False)
                    queued = following

    def _is_needed(self, epoch: int, reporters: Sequence[Reporter]) -> bool:
        """Whether an epoch must be read before the next one begins."""
        session, tracker = self._session, self._session.tracker
        may_end = tracker.patience is not None and epoch - tracker.improved >= tracker.patience
        reads_metric = may_end or isinstance(session.scheduler, ReduceLROnPlateau) or not self._is_quick
        return (session.is_due(epoch) and reads_metric) or needs_weights(reporters, epoch)

    def _measures(self, epoch: int) -> bool:
        return self._is_quick and self._session.is_measured(epoch)

    def _begin(self, epoch: int) -> Queued:
        session, source, measures = self._session, self._source, self._measures(epoch)
        check_rates(session.scheduler, session.optimizer)
        if measures not in self._recordings:
            assert isinstance(source, WholeGraph)
            runner, why = source.runner, source.why_queued
            self._recordings[measures] = self._recording(
                partial(self._work, measures), why=why, most_bytes=runner.most_reserved_bytes()
            )
        queued = self._launch(epoch, self._recordings[measures], "Epochs")
        step_scheduler(session.scheduler)
        return queued

    def _recording(self, work: Work, *, why: Callable[[], str | None] = lambda: None, **options: Any) -> Recording:
        optimizer, cause = self._session.optimizer, None
        if not steps_on_device(optimizer):
            name = type(optimizer).__name__
            cause = f"the optimizer {name} is not capturable: its steps read values on the host"
        elif self._has_hooks():
            cause = "the model or optimizer has hooks, which run on the host"
        options |= {"num_rates": len(optimizer.param_groups), "cause": cause or why()}
        return Recording(self._streams, work, self._baked, self._keep, **options)

    def _launch(self, number: int, recording: Recording, what: str, given: Tensor | None = None) -> Queued:
        """Queue or launch an epoch or a batch, and the copy of its numbers. Say once why ``what`` is not recorded."""
        since_s = time.perf_counter()
        rates = [float(group["lr"]) for group in self._session.optimizer.param_groups]
        numbers = recording.run(rates, given)
        if recording.cause is not None and recording.cause not in self._said:
            self._said.add(recording.cause)
            ms = f"{1e3 * recording.queued_s:.1f} ms of host time"
            self._say(
                f"{what} are not replayed as CUDA graphs (launching one takes {ms}), because {recording.cause}."
            )
        read = self._ring[number % 2, : len(numbers)]
        self._streams.copy(read, numbers)
        return Queued(number, rates[0], read, self._streams.mark("compute"), since_s)

    def _end(self, queued: Queued, reporters: Sequence[Reporter], *, is_last: bool) -> None:
        """Read an epoch, and report it; ``is_last`` says whether no later one is queued."""
        session, epoch = self._session, queued.number
        self._streams.finish(queued.mark)
        now_s = time.perf_counter()
        epoch_s, self._read_s = now_s - max(queued.since_s, self._read_s), now_s
        loss, *measured = queued.numbers.tolist()
        session.require_finite(loss, f"training loss of epoch {epoch}")
        metrics: dict[str, Metrics] = {}
        for (split, name), value in zip(self._names, measured, strict=False):
            metrics.setdefault(split, {})[name] = value
        if not self._is_quick:
            metrics = session.evaluate(epoch)
        trained = EpochProgress(epoch=epoch, num_batches=1, loss=loss, num_edges=self._num_edges, train_s=epoch_s)
        weights = session.model.state_dict if is_last else lambda: self._before
        record = session.end_epoch(trained, queued.lr, metrics, weights)
        session.is_ahead = not is_last
        for reporter in reporters:
            reporter.on_epoch(record)

    def _work(self, measures: bool, rates: Sequence[Tensor]) -> Tensor:
        """Queue an epoch; its numbers, float64 on the device."""
        session, source = self._session, self._source
        assert isinstance(source, WholeGraph)
        session.model.train()
        if session.tracker.keep_weights:
            self._before = _copied(session.model.state_dict(), self._before)
        (step,) = source.steps(session.epoch)
        loss, self._num_edges = session.queue_step(step, rates)
        numbers = [loss.double()]
        if measures:
            found = [(split, *each) for split, values in source.quick().items() for each in values.items()]
            self._names = tuple((split, name) for split, name, _ in found)
            numbers += [value for *_, value in found]
        return torch.stack(numbers)

    def _has_hooks(self) -> bool:
        optimizer, owners = self._session.optimizer, self._owners().values()
        if optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks:
            return True
        if any(owner.get(name) for owner in owners for name in _HOOKS):
            return True
        learned = (each for group in optimizer.param_groups for each in group["params"])
        return any(each._backward_hooks or each._post_accumulate_grad_hooks for each in learned)

    def _baked(self) -> dict[str, object]:
        """What a recorded epoch has baked in. Weights may change where they lie; edges, features and the version of a plan may not."""
        source, graph, optimizer = self._source, self._source.graph, self._session.optimizer
        groups, x = optimizer.param_groups, graph.features
        parts = [x.crow_indices(), x.col_indices(), x.values()] if is_sparse(x) else [x]
        found: dict[str, object] = {
            "the presence of hooks": self._has_hooks(),
            "the plan": source.runner.version if isinstance(source, WholeGraph) else 0,
            "edges": _written(graph.topology.indptr),
            "edges' sources": _written(graph.topology.indices),
            **{f"the edge data '{name}'": _written(each) for name, each in graph.topology.edge_data.items()},
            "features": [_written(each) for each in parts if isinstance(each, Tensor)],
        }
        # A learning rate that is a number is baked in; one that is read lies in the recording's table.
        varying = {"params", "lr"} if reads_rates(optimizer) else {"params"}
        for key in sorted({key for group in groups for key in group} - varying):
            found[f"{key} of the optimizer"] = [_content(group.get(key)) for group in groups]
        learned = [each for group in groups for each in group["params"]]
        found["the storage of the optimizer"] = [
            {key: _content(value) for key, value in optimizer.state[each].items()}
            if each in optimizer.state
            else None
            for each in learned
        ]
        for where, owner in self._owners().items():
            for values in (owner, owner.get("_parameters", {}), owner.get("_buffers", {})):
                for key, value in values.items():
                    if isinstance(value, Tensor):
                        found[f"the storage of {key} {where}"] = _place(value), value.requires_grad
                    elif key not in _OF_MODULES:
                        found[f"{key} {where}"] = _content(value)
        return found

    def _owners(self) -> dict[str, dict[str, Any]]:
        """The attributes of the model's modules and of a loss of the user's, by what they belong to."""
        loss: Any = self._source.loss.function
        loss = loss.__self__ if ismethod(loss) else loss
        found = {f"of {name or 'the model'}": vars(each) for name, each in self._session.model.named_modules()}
        if isinstance(loss, nn.Module):
            return found | {f"of the loss {name}".rstrip(): vars(each) for name, each in loss.named_modules()}
        return found | {"of the loss": vars(loss)} if hasattr(loss, "__dict__") else found

    def _keep(self) -> Callable[[], None]:
        """Keep what an epoch may change on the host: attributes of the model and of the loss, and what the optimizer knows of each parameter."""
        containers = (list, dict, set)
        known = [
            (
                owner,
                dict(owner),
                {name: each.copy() for name, each in owner.items() if isinstance(each, containers)},
            )
            for owner in self._owners().values()
        ]
        stepped = set(self._session.optimizer.state)

        def put_back() -> None:
            for owner, values, copies in known:
                owner.clear()
                owner.update(values)
                for name, copied in copies.items():
                    owner[name].clear()
                    (owner[name].extend if isinstance(copied, list) else owner[name].update)(copied)
            for each in [each for each in self._session.optimizer.state if each not in stepped]:
                del self._session.optimizer.state[each]

        return put_back


_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_OF_MODULES = frozenset(vars(nn.Module()))
"Attributes that every module has."
_MOST_COMPARED = 1000
"Longer lists, mappings and sets are compared by their lengths alone."


def _copied(state: dict[str, Any], before: dict[str, Any]) -> dict[str, Any]:
    """Queue a copy of a state, to where that of an earlier one lies. A model may gain buffers, or change their shapes."""
    values = {name: value for name, value in state.items() if isinstance(value, Tensor)}
    kept = {
        name: before[name] for name, value in values.items() if name in before and before[name].shape == value.shape
    }
    if kept:
        torch._foreach_copy_(list(kept.values()), [values[name] for name in kept])
    return {**state, **{name: value.clone() for name, value in values.items() if name not in kept}, **kept}


def _place(tensor: Tensor) -> tuple[int, ...]:
    """Where a tensor lies."""
    if tensor.layout != torch.strided:
        return id(tensor), *tensor.shape
    return tensor.untyped_storage().data_ptr(), tensor.storage_offset(), *tensor.shape


def _written(tensor: Tensor) -> tuple[int, ...]:
    """Where a tensor lies, and how often it was written."""
    return *_place(tensor), 0 if tensor.is_inference() else tensor._version


def _content(value: object, depth: int = 1) -> object:
    """What is compared of a value: numbers, texts, places of tensors, and lists, mappings and sets of them; nothing of other objects."""
    if isinstance(value, Tensor):
        return _place(value)
    if isinstance(value, int | float | str | None):
        # In a tuple, NaN is equal to itself.
        return (value,)
    if isinstance(value, dict):
        value = [*value, *value.values()]
    if not depth or not isinstance(value, list | tuple | set):
        return None
    return len(value), [_content(each, depth - 1) for each in value if len(value) <= _MOST_COMPARED]
