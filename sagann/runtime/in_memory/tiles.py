"""Gathers over bounded tiles, for edges that could not be fused.

A tile is a chunk: a run of edges in CSC order, so it reaches a run of destinations, into whose state it is gathered in plain PyTorch. The
stage computes the messages first. Only the edge tensors of one tile are in memory at once. The backward computes every tile again and
differentiates it by autograd. A tile draws the same random numbers again from its own seed. Gradients of gradients are refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sagann.compiler.program import EdgeWork
from sagann.compiler.vjp import message_gradients
from sagann.graph.topology import Topology
from sagann.kernels.edge import naive
from sagann.kernels.first_order import Saved, first_order_only
from sagann.kernels.naive import gather_sum
from sagann.kernels.seeds import drawn_seed, seeded
from sagann.runtime.gather import ChunkedGather, counts_of

TILE_EDGES = 1 << 16
"Most edges of a tile."
TILE_BYTES = 1 << 28
"Most bytes of a tile's edge tensors, as far as the compiler can predict them."


@dataclass(frozen=True, kw_only=True, slots=True)
class _Call:
    edges: EdgeWork
    gather: ChunkedGather
    topology: Topology
    tile_edges: int
    seed: int


@dataclass(frozen=True, kw_only=True, slots=True)
class _Tile:
    """A run of edges, and the run of destinations that they reach."""

    topology: Topology
    "The tile's edges, with destinations counted from the first one that they reach."
    edges: slice
    rows: slice
    src: Tensor
    "Source of each edge, int64."

    def read(self, side: str, array: Tensor) -> Tensor:
        """The rows of an array that the edges read."""
        if side == "src":
            return array.index_select(0, self.src)
        if side == "dst":
            return array[self.rows].index_select(0, self.topology.edge_dst())
        return array[self.edges] if side == "edge" else array

    def add(self, side: str, total: Tensor, part: Tensor) -> None:
        """Add the gradients of what the edges have read to the gradient of the array."""
        part = part.to(total.dtype)
        if total.is_complex():
            total, part = torch.view_as_real(total), torch.view_as_real(part.resolve_conj())
        if side == "src":
            total.index_add_(0, self.src, part)
        elif side == "dst":
            total[self.rows] += gather_sum(self.topology, part)
        elif side == "edge":
            total[self.edges] = part
        else:
            total += part


def gather_tiled(
    edges: EdgeWork, topology: Topology, arrays: list[Tensor], *, tile_edges: int = TILE_EDGES
) -> Tensor:
    """Gather by any accumulator but concat without more than one tile of edges in memory: [num_dst, ...]."""
    assert edges.of_messages is not None
    gather = ChunkedGather(
        gathering=edges.gathering,
        function=edges.of_messages,
        dialect=naive,
        num_edges=topology.num_edges,
        device=topology.device,
    )
    tile_edges = max(min(tile_edges, TILE_BYTES // max(edges.tensor_bytes, 1)), 1)
    seed = int(drawn_seed()) if edges.random else 0
    call = _Call(edges=edges, gather=gather, topology=topology, tile_edges=tile_edges, seed=seed)
    accum: Tensor = _TiledGather.apply(call, *arrays)  # type: ignore[no-untyped-call]
    return accum


class _TiledGather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, call: _Call, *arrays: Tensor) -> Tensor:
        gather = call.gather
        state = gather.begin(gather.function, call.topology.num_dst)
        for tile in _tiles(call):
            messages = _messages(call, tile, _rows(call, tile, arrays))
            gather.add(state.part(tile.rows), tile.topology, messages, tile.edges.start)
        result, kept = gather.finish(state, counts_of(call.topology))
        ctx.call = call
        ctx.save_for_backward(*arrays, *kept)
        return result.to(call.edges.dtype)

    @staticmethod
    @first_order_only
    def backward(ctx: Any, saved: Saved, grad: Tensor) -> tuple[Tensor | None, ...]:
        call: _Call = ctx.call
        gather, sides = call.gather, call.edges.sides
        arrays = saved[: len(sides)]
        function = message_gradients(gather.function)
        arrived = gather.arrive(grad, saved[len(sides) :], counts_of(call.topology))
        totals = {
            # Every tile adds to the rows of vertices, and writes those of its edges.
            number: torch.zeros_like(
                array, dtype=torch.promote_types(array.dtype, torch.float32 if side == "edge" else torch.float64)
            )
            for number, (side, array) in enumerate(zip(sides, arrays, strict=True))
            if ctx.needs_input_grad[1 + number]
        }
        for tile in _tiles(call):
            rows = _rows(call, tile, arrays)
            leaves = [rows[number].requires_grad_() for number in totals]
            with torch.enable_grad():
                messages = _messages(call, tile, rows)
            given = {name: message.detach() for name, message in messages.items()}
            given |= {name: of_rows[tile.rows] for name, of_rows in arrived.items()}
            state = gather.begin(function, tile.topology.num_dst)
            upstream = gather.add(state, tile.topology, given, tile.edges.start)
            pairs = zip(messages.values(), upstream, strict=True)
            attached = [(message, part.to(message.dtype)) for message, part in pairs if message.requires_grad]
            if attached:
                values, parts = zip(*attached, strict=True)
                found = torch.autograd.grad(values, leaves, parts, allow_unused=True)
                for (number, total), part in zip(totals.items(), found, strict=True):
                    if part is not None:
                        tile.add(sides[number], total, part)
        numbers = range(len(arrays))
        return None, *(totals[n].to(arrays[n].dtype) if n in totals else None for n in numbers)


def _tiles(call: _Call) -> Iterator[_Tile]:
    topology = call.topology
    num_edges = topology.num_edges
    for first in range(0, num_edges, call.tile_edges):
        last = min(first + call.tile_edges, num_edges)
        bounds = torch.searchsorted(
            topology.indptr, torch.tensor([first, last - 1], device=topology.device), right=True
        )
        low, high = (int(bound) - 1 for bound in bounds)
        indptr = topology.indptr[low : high + 2].clamp(first, last) - first
        indices = topology.indices[first:last]
        part = Topology(indptr=indptr, indices=indices, num_src=max(topology.num_src, len(indptr)), validate=False)
        yield _Tile(topology=part, edges=slice(first, last), rows=slice(low, high + 1), src=indices.long())


def _rows(call: _Call, tile: _Tile, arrays: Sequence[Tensor]) -> list[Tensor]:
    return [tile.read(side, array).detach() for side, array in zip(call.edges.sides, arrays, strict=True)]


def _messages(call: _Call, tile: _Tile, rows: list[Tensor]) -> dict[str, Tensor]:
    """The values of the messages of the tile's edges, by name."""
    inputs, forward = call.gather.function.inputs, call.edges.stage.module.forward
    # Parts of workers begin at edges of their own.
    remote = call.topology.remote
    seed = call.seed + (0 if remote is None else remote.first_edge) + tile.edges.start
    with seeded(seed, call.topology.device) if call.edges.random else nullcontext():
        return {each.name: value.to(each.dtype) for each, value in zip(inputs, forward(*rows), strict=True)}
