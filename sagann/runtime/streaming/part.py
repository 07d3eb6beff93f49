"""What a streamed model asks of a worker's part of a graph: its intervals, and the exchange of blocks with other workers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from torch import Tensor

from sagann.compiler.model_program import Form
from sagann.graph.feature_store import Features
from sagann.graph.topology import Topology
from sagann.plan.part_intervals import CutOwn, PartIntervals
from sagann.plan.steps import Block, Exchanged
from sagann.runtime.blocks.host import Host


class Walked(Protocol):
    """What a model is called with: a graph, or a worker's part of one."""

    @property
    def features(self) -> Features | None:
        """Features of the vertices, or of the part's own vertices."""

    def hops(self, k: int) -> Sequence[Topology]:
        """The topologies that a model of k layers walks."""


class Travel(Protocol):
    """An exchange between workers that is under way. Implemented by :class:`sagann.runtime.workers.block_travel.BlockTravel`."""

    def send(self, block: Block, await_stored: Callable[[], None]) -> None:
        """Let a complete block go, which lies on the host when ``await_stored`` has returned. Raises what has ended the exchange."""

    def wait(self) -> None:
        """Wait until everything has come and gone, or raise what has ended the exchange."""

    def abort(self) -> None:
        """End the exchange at once, because this worker has failed."""


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

    def sent_rows(self, part: PartIntervals, block: Block) -> Tensor:
        """The rows of an interval that another worker needs: int64, ascending, counted from the interval's first row."""

    def begin(
        self,
        part: PartIntervals,
        host: Host,
        exchanged: Exchanged,
        *,
        form: Form,
        doing: str,
        after: Travel | None,
    ) -> Travel:
        """Begin to send blocks of a host, and to put those that other workers send on it. All workers begin their exchanges in the same order.

        Args:
            part: intervals of the blocks.
            host: keeps the blocks.
            exchanged: blocks that are sent, in the order in which they are complete, and blocks that are received. The peer of a block, or the
                owner of its interval, gets or sends it.
            form: shape and type of a row.
            doing: what the workers do, for errors.
            after: the exchange that began last, if it may be under way.
        """
