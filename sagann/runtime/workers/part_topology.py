"""PartTopology: a worker's part of a graph as layers walk it, and the exchange of the halo's rows.

A layer is called with the rows of the worker's own vertices. Work on sources runs at their owners. When the edges read rows of
sources, and not before, the rows of the halo come: only the tensors that the message program reads travel, each row once, in the width
that the compiler chose for them. Most gathers go over inner edges meanwhile (:meth:`PartTopology.apart`); the others wait for all rows
(:meth:`PartTopology.complete_all`). In the backward pass the gradients of the halo's rows go back to the owners, who add them to their
own in the order of the ranks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from sagann.graph.constant import is_constant
from sagann.graph.topology import Topology, for_training_as_well
from sagann.graph.versions import version_of
from sagann.kernels.first_order import Saved, first_order_only
from sagann.partition import Part
from sagann.runtime.workers.group import START_TIMEOUT_S, Workers
from sagann.runtime.workers.part_apart import PartApart


class Halo:
    """The rows that a worker sends to and receives from each other worker, for every tensor that its edges read.

    All workers make theirs at the same time: each tells the others which rows it needs.

    Args:
        part: the worker's vertices and edges.
        workers: all workers.
        timeout_s: seconds to wait for the others, by default as before training; None for those of ``workers``.
    """

    def __init__(self, part: Part, workers: Workers, *, timeout_s: float | None = START_TIMEOUT_S) -> None:
        self.workers = workers
        self.num_own, self.num_src = part.num_own, part.num_src
        owned = part.halo_by_owner()
        self.received = {
            rank: slice(part.num_own + owned[rank].start, part.num_own + owned[rank].stop)
            for rank in workers.others
        }
        "For each worker, the rows of the sources that it sends."
        asked = {rank: part.halo[owned[rank]] for rank in workers.others}
        wanted = workers.exchange(asked, "asking for rows of the halo", timeout_s=timeout_s)
        nothing = part.halo[:0]
        self.sent = part.rows_to_send([wanted.get(rank, nothing) for rank in range(workers.size)])
        "For each worker, the own rows that it needs, int64."
        self._kept = WeakTensorKeyDictionary()
        "Version of constant rows, and what they were completed to."
        self._kept_halo = WeakTensorKeyDictionary()
        "Version of constant own rows, and the halo's rows that belong to them."

    def complete(self, rows: Mapping[str, Tensor], *, keeps: bool) -> dict[str, Tensor]:
        """The rows of all sources [num_src, ...] by name, from those of the own vertices; differentiable once.

        With ``keeps``, what constant features were completed to is kept, so their rows travel once.
        """
        number = self.exchanged(rows)
        return {name: self._completed(each, number, keeps and is_constant(each)) for name, each in rows.items()}

    def exchanged(self, rows: Mapping[str, Tensor]) -> int:
        """The number of the exchange of these rows in a step, which begins now."""
        row_bytes = sum(math.prod(each.shape[1:]) * each.element_size() for each in rows.values())
        return self.workers.stopwatch.exchange(row_bytes=row_bytes) if rows else 0

    def begin(self, own: Tensor, rows: Tensor) -> Callable[[], None]:
        """Begin to send own rows [num_own, ...] to those who need them, and to fill the halo's rows [num_halo, ...].

        Returns:
            A function that waits for the end.
        """
        places = self._places_in_halo()
        return self.workers.begin(
            {rank: own.index_select(0, self.sent[rank]) for rank in places},
            {rank: rows[here] for rank, here in places.items()},
            "exchanging rows of the halo",
        )

    def rows(self, own: Tensor, *, keeps: bool) -> tuple[Tensor, Callable[[], None]]:
        """The halo's rows [num_halo, ...], and a function that waits until they have come.

        With ``keeps``, rows of constant features travel once for each version of ``own`` [num_own, ...].
        """
        # A tensor that was made in inference mode counts no versions.
        keeps = keeps and is_constant(own) and not own.is_inference()
        if keeps and (kept := self._kept_halo.get(own)) is not None and kept[0] == own._version:
            return kept[1], lambda: None
        rows = own.detach().new_empty(self.num_src - self.num_own, *own.shape[1:])
        if keeps and not rows.is_inference():
            self._kept_halo[own] = own._version, rows
        return rows, self.begin(own.detach(), rows)

    def give_back(self, grad: Tensor) -> Callable[[Tensor], None]:
        """Begin to send the gradient of the halo's rows [num_halo, ...] to their owners.

        Returns:
            A function that waits for what others send, and adds it in place to the gradient of own rows [num_own, ...], in the order
            of the ranks.
        """
        places, grad = self._places_in_halo(), grad.contiguous()
        found = {rank: grad.new_empty(len(self.sent[rank]), *grad.shape[1:]) for rank in places}
        finish = self.workers.begin(
            {rank: grad[here] for rank, here in places.items()}, found, "exchanging gradients of the halo"
        )

        def add_to(own: Tensor) -> None:
            finish()
            # A worker asks for a row once, so each addition has one summand per row.
            for rank, rows in found.items():
                own.index_add_(0, self.sent[rank], rows)

        return add_to

    def _places_in_halo(self) -> dict[int, slice]:
        """For each other worker, in the order of the ranks, the rows of the halo that it owns."""
        first = self.num_own
        return {rank: slice(rows.start - first, rows.stop - first) for rank, rows in self.received.items()}

    def _completed(self, rows: Tensor, number: int, keeps: bool) -> Tensor:
        # A tensor that was made in inference mode counts no versions.
        keeps = keeps and not rows.is_inference()
        if keeps and (kept := self._kept.get(rows)) is not None and kept[0] == rows._version:
            return kept[1]
        completed: Tensor = _Complete.apply(rows, self, number)  # type: ignore[no-untyped-call]
        if keeps and not completed.is_inference():
            self._kept[rows] = rows._version, completed
        return completed


class _Complete(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, own: Tensor, halo: Halo, number: int) -> Tensor:
        ctx.halo, ctx.number = halo, number
        rows = own.new_empty(halo.num_src, *own.shape[1:])
        finish = halo.begin(own, rows[halo.num_own :])
        rows[: halo.num_own] = own
        finish()
        return rows

    @staticmethod
    @first_order_only
    def backward(ctx: Any, saved: Saved, grad: Tensor) -> tuple[Tensor | None, ...]:
        halo: Halo = ctx.halo
        halo.workers.stopwatch.give_back(ctx.number)
        add_to = halo.give_back(grad[halo.num_own :])
        own = grad[: halo.num_own].clone()
        add_to(own)
        return own, None, None


class PartTopology(Topology):
    """The topology of a worker's part. Layers are called with the rows of its destinations, the worker's own vertices.

    Args:
        part: the worker's vertices and edges.
        halo: brings the rows of the other sources.
        edge_data: edge data of the part's edges.
    """

    __slots__ = ("_apart", "halo", "part")

    def __init__(self, part: Part, halo: Halo, edge_data: Mapping[str, Tensor]) -> None:
        super().__init__(
            indptr=part.indptr, indices=part.indices, num_src=part.num_src, edge_data=edge_data, validate=False
        )
        self.part, self.halo = part, halo
        self._apart: tuple[tuple[int, ...] | None, PartApart] | None = None
        "The edges apart, with the versions of their edge data; None instead of these where the data are others."

    @property
    def num_given(self) -> int:
        return self.part.num_own

    @property
    def is_part(self) -> bool:
        return True

    def agreed(self, holds: bool) -> bool:
        return not self.halo.workers.any(not holds, "agreeing on what is kept")

    @property
    def first_edge(self) -> int:
        return self.part.edges.start

    def complete(self, rows: Tensor) -> Tensor:
        return self.halo.complete({"": rows}, keeps=False)[""]

    def complete_all(self, rows: Mapping[str, Tensor], *, keeps: bool) -> Mapping[str, Tensor]:
        return self.halo.complete(rows, keeps=keeps)

    def apart(self) -> PartApart | None:
        """The edges apart; None where there is no other worker."""
        if not self.halo.workers.others:
            return None
        data = self.edge_data.values()
        versions = tuple(map(version_of, data))
        with for_training_as_well():
            if self._apart is None:
                self._apart = versions, PartApart.of(self, self.halo)
            elif self._apart[0] != versions or any(rows.is_inference() for rows in data):
                self._apart = versions, self._apart[1].with_data_of(self)
        return self._apart[1]

    def with_edge_data(self, **edge_data: Tensor) -> PartTopology:
        """The same part with edge data added or replaced; arrays are shared."""
        self.require_unwritten()
        topology = PartTopology(self.part, self.halo, {**self.edge_data, **edge_data})
        if self._apart is not None:
            topology._apart = None, self._apart[1]
        return topology
