"""Halo: the exchange of the rows that a worker's edges read and other workers own.

A layer is called with the rows of the worker's own vertices. Work on sources runs at their owners. When the edges read rows of
sources, and not before, the rows of the halo come: only the tensors that the message program reads travel, each row once, in the width
that the compiler chose for them. Most gathers go over inner edges meanwhile (:mod:`sagann.runtime.gather`); the others wait for all rows
(:meth:`Halo.complete`). In the backward pass the gradients of the halo's rows go back to the owners, who add them to their own in the
order of the ranks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from sagann.graph.feature_store import is_constant
from sagann.graph.topology import Topology, for_training_as_well
from sagann.graph.transform import keep_edges
from sagann.kernels.first_order import Saved, first_order_only
from sagann.partition import Part
from sagann.runtime.team import START_TIMEOUT_S
from sagann.runtime.workers.group import Workers


class Halo:
    """The rows that a worker sends to and receives from each other worker, for every tensor that its edges read (:class:`sagann.graph.remote.Remote`).

    All workers make theirs at the same time: each tells the others which rows it needs. Once a gather is divided, inner and outer edges
    take 8 bytes per edge where ids have 32 bits, 16 bytes per own vertex, their edge data once more, and for the backward pass the out-edges
    of both.
    """

    def __init__(self, part: Part, workers: Workers, *, timeout_s: float | None = START_TIMEOUT_S) -> None:
        self.part, self.workers = part, workers
        self.num_own, self.num_src = part.num_own, part.num_src
        owned = part.halo_by_owner()
        self.received = {rank: owned[rank] for rank in workers.others}
        "For each other worker, in the order of the ranks, the rows of the halo that it sends."
        asked = {rank: part.halo[rows] for rank, rows in self.received.items()}
        wanted = workers.exchange(asked, "asking for rows of the halo", timeout_s=timeout_s)
        nothing = part.halo[:0]
        self.sent = [wanted.get(rank, nothing) - part.vertices.start for rank in range(workers.size)]
        "For each worker, the own rows that it needs, int64 ascending."
        self._kept = WeakTensorKeyDictionary()
        "Version of constant own rows, and the halo's rows that belong to them."

    def topology(self, edge_data: Mapping[str, Tensor]) -> Topology:
        """The part as layers walk it, with edge data of its edges."""
        part = self.part
        return Topology(
            indptr=part.indptr,
            indices=part.indices,
            num_src=part.num_src,
            edge_data=edge_data,
            remote=self if self.workers.others else None,
            validate=False,
        )

    @property
    def first_edge(self) -> int:
        return self.part.edges.start

    @cached_property
    def inner(self) -> Topology:
        """The edges whose sources are own vertices."""
        return self._edges(self.part.indices < self.num_own, 0, self.num_own)

    @cached_property
    def outer(self) -> Topology:
        """The edges whose sources are in the halo, numbered from 0."""
        # A topology has at least as many sources as destinations.
        num_src = max(self.num_own, self.num_src - self.num_own)
        return self._edges(self.part.indices >= self.num_own, self.num_own, num_src)

    def _edges(self, chosen: Tensor, first: int, num_src: int) -> Topology:
        with for_training_as_well():
            kept = keep_edges(self.topology({}), chosen, with_ids=True)
            return Topology(
                indptr=kept.indptr,
                indices=kept.indices - first,
                num_src=num_src,
                edge_ids=kept.edge_ids,
                validate=False,
            )

    def begin(self, rows: Mapping[str, Tensor], *, keeps: bool) -> RowsOfHalo:
        """Begin to exchange the rows that the edges read together, by name."""
        return RowsOfHalo(self, rows, keeps=keeps)

    def complete(self, rows: Mapping[str, Tensor], *, keeps: bool = False) -> dict[str, Tensor]:
        """The rows of all sources [num_src, ...] by name, from those of the own vertices; differentiable once."""
        coming = self.begin(rows, keeps=keeps)
        came = coming.wait()
        return {name: _Complete.apply(own, came[name], coming) for name, own in rows.items()}  # type: ignore[no-untyped-call]

    def rows(self, own: Tensor, *, keeps: bool) -> tuple[Tensor, Callable[[], None]]:
        """The halo's rows [num_halo, ...], and a function that waits until they have come.

        With ``keeps``, rows of constant features travel once for each version of ``own`` [num_own, ...].
        """
        # A tensor that was made in inference mode counts no versions.
        keeps = keeps and is_constant(own) and not own.is_inference()
        if keeps and (kept := self._kept.get(own)) is not None and kept[0] == own._version:
            return kept[1], lambda: None
        mine = own.detach()
        rows = mine.new_empty(self.num_src - self.num_own, *own.shape[1:])
        if keeps and not rows.is_inference():
            self._kept[own] = own._version, rows
        return rows, self.workers.begin(
            {rank: mine.index_select(0, self.sent[rank]) for rank in self.received},
            {rank: rows[here] for rank, here in self.received.items()},
            "exchanging rows of the halo",
        )


class RowsOfHalo:
    """Rows of the halo on their way; see :class:`sagann.graph.remote.RowsUnderWay`."""

    def __init__(self, halo: Halo, rows: Mapping[str, Tensor], *, keeps: bool) -> None:
        self._halo = halo
        row_bytes = sum(math.prod(own.shape[1:]) * own.element_size() for own in rows.values())
        self._number = halo.workers.stopwatch.exchange(row_bytes=row_bytes) if rows else 0
        self._coming = {name: halo.rows(own, keeps=keeps) for name, own in rows.items()}

    def wait(self) -> Mapping[str, Tensor]:
        # Nothing is held until the backward but what the engine keeps.
        coming, self._coming = self._coming, {}
        for _, finish in coming.values():
            finish()
        return {name: rows for name, (rows, _) in coming.items()}

    def give_back(self, grad: Tensor) -> Callable[[Tensor], None]:
        """Begin to send the gradient of the halo's rows [num_halo or more, ...] to their owners.

        Returns:
            A function that waits for what others send, and adds it in place to the gradient of own rows [num_own, ...], in the order
            of the ranks.
        """
        halo = self._halo
        grad = grad[: halo.num_src - halo.num_own].contiguous()
        found = {rank: grad.new_empty(len(halo.sent[rank]), *grad.shape[1:]) for rank in halo.received}
        finish = halo.workers.begin(
            {rank: grad[here] for rank, here in halo.received.items()}, found, "exchanging gradients of the halo"
        )

        def add_to(own: Tensor) -> None:
            finish()
            # A worker asks for a row once, so each addition has one summand per row.
            for rank, rows in found.items():
                own.index_add_(0, halo.sent[rank], rows)

        return add_to

    def end(self) -> None:
        """Say that all gradients have been given back."""
        self._halo.workers.stopwatch.give_back(self._number)


class _Complete(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, own: Tensor, came: Tensor, coming: RowsOfHalo) -> Tensor:
        ctx.coming, ctx.num_own = coming, len(own)
        return torch.cat([own, came])

    @staticmethod
    @first_order_only
    def backward(ctx: Any, saved: Saved, grad: Tensor) -> tuple[Tensor | None, ...]:
        ctx.coming.end()
        add_to = ctx.coming.give_back(grad[ctx.num_own :])
        own = grad[: ctx.num_own].clone()
        add_to(own)
        return own, None, None
