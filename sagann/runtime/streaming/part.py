"""What a streamed model asks of a worker's part of a graph: its intervals, and the exchange of blocks with other workers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from torch import Tensor

from sagann.graph.feature_store import Features
from sagann.graph.topology import Topology
from sagann.plan.epoch import Planned
from sagann.plan.part_intervals import CutOwn, PartIntervals, cut_graph
from sagann.plan.steps import Step
from sagann.runtime.blocks.host import Host
from sagann.runtime.blocks.residents import Residents


class Walked(Protocol):
    """What a model is called with: a graph, or a worker's part of one."""

    @property
    def features(self) -> Features | None:
        """Features of the vertices, or of the part's own vertices."""

    def hops(self, k: int) -> Sequence[Topology]:
        """The topologies that a model of k layers walks."""


class ExchangeSteps(Protocol):
    """The steps of one epoch in which workers exchange blocks."""

    @property
    def by_kind(self) -> Mapping[str, Callable[[Step], None]]:
        """What runs a step, by its kind."""

    def close(self) -> None:
        """End exchanges that nobody has waited for, because this worker has failed."""


class BlockExchange(Protocol):
    """A worker's part, as a plan over its intervals needs it. Implemented by :class:`sagann.runtime.workers.HaloBlocks`."""

    first_vertex: int
    "Id in the graph of the first own vertex."
    first_value: int
    "Id of the first non-zero in the features of own vertices, where these are sparse; else 0."

    def cut(self, count: int, cut_own: CutOwn) -> PartIntervals:
        """Cut all sources of the part into about ``count`` intervals (:data:`sagann.plan.part_intervals.CutPart`)."""

    def add_up(self, tensor: Tensor, doing: str) -> Tensor:
        """The sum of one tensor [n] of each worker: the same bits at every worker. All workers call this at the same time."""

    def steps(self, planned: Planned, host: Host, resident: Residents) -> ExchangeSteps:
        """The steps of an epoch that exchange blocks. All workers begin their exchanges in the same order."""


class _NoSteps:
    by_kind: Mapping[str, Callable[[Step], None]] = {}

    def close(self) -> None:
        """Nothing travels."""


class NoExchange:
    """A graph in one process, which exchanges nothing (:class:`BlockExchange`)."""

    first_vertex = first_value = 0

    def cut(self, count: int, cut_own: CutOwn) -> PartIntervals:
        return cut_graph(count, cut_own)

    def add_up(self, tensor: Tensor, doing: str) -> Tensor:
        return tensor

    def steps(self, planned: Planned, host: Host, resident: Residents) -> ExchangeSteps:
        return _NoSteps()
