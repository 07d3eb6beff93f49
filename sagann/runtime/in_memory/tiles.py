"""Gathers over bounded tiles, for edges that could not be fused.

A tile is a run of edges in CSC order, so it reaches a run of destinations, and its gather is merged into theirs
(:mod:`sagann.kernels.edge.reductions`). Only the edge tensors of one tile are in memory at once. The backward computes every
tile again and differentiates it by autograd. A tile draws the same random numbers again from its own seed. Gradients of
gradients are refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sagann.compiler.program import EdgeWork
from sagann.compiler.vjp import message_gradients
from sagann.graph.topology import Topology
from sagann.kernels.edge import naive
from sagann.kernels.edge.builder import Builder, arithmetic_dtype
from sagann.kernels.edge.function import EdgeFunction, Input
from sagann.kernels.first_order import Saved, first_order_only
from sagann.kernels.naive import gather_sum
from sagann.kernels.seeds import drawn_seed, seeded
from sagann.runtime.in_memory.edge_pass import counts_of

TILE_EDGES = 1 << 16
"Most edges of a tile."
TILE_BYTES = 1 << 28
"Most bytes of a tile's edge tensors, as far as the compiler can predict them."


@dataclass(frozen=True, kw_only=True, slots=True)
class _Call:
    """One gather over tiles, without its arrays."""

    edges: EdgeWork
    topology: Topology
    tile_edges: int
    seed: int


@dataclass(frozen=True, kw_only=True, slots=True)
class _Tile:
    """A run of edges, and the run of destinations that they reach."""

    first_edge: int
    last_edge: int
    first_dst: int
    topology: Topology
    "The tile's edges, with destinations counted from ``first_dst``."
    src: Tensor
    "Source of each edge, int64."
    dst: Tensor
    "Destination of each edge in the whole topology, int64."


def gather_tiled(
    edges: EdgeWork, topology: Topology, arrays: list[Tensor], *, tile_edges: int = TILE_EDGES
) -> Tensor:
    """Gather by any accumulator but concat without more than one tile of edges in memory: [num_dst, ...]."""
    tile_edges = max(min(tile_edges, TILE_BYTES // max(edges.tensor_bytes, 1)), 1)
    seed = drawn_seed() if edges.random else 0
    call = _Call(edges=edges, topology=topology, tile_edges=tile_edges, seed=seed)
    accum: Tensor = _TiledGather.apply(call, *arrays)  # type: ignore[no-untyped-call]
    return accum


class _TiledGather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, call: _Call, *arrays: Tensor) -> Tensor:
        state = _State(call)
        for tile in _tiles(call):
            state.accumulate(tile, _evaluate(call, tile, _rows(call, tile, arrays)))
        result = state.finish(arrays)
        ctx.call = call
        ctx.save_for_backward(*arrays, *state.saved)
        return result

    @staticmethod
    @first_order_only
    def backward(ctx: Any, saved: Saved, grad: Tensor) -> tuple[Tensor | None, ...]:
        call: _Call = ctx.call
        arrays = saved[: len(call.edges.sides)]
        upstream = _Upstream(call, grad, saved[len(arrays) :])
        needed = ctx.needs_input_grad[1:]
        gradients = [
            # Every tile adds to the rows of vertices, and writes those of its edges.
            torch.zeros_like(
                array, dtype=torch.promote_types(array.dtype, torch.float32 if side == "edge" else torch.float64)
            )
            if need
            else None
            for side, array, need in zip(call.edges.sides, arrays, needed, strict=True)
        ]
        for tile in _tiles(call):
            rows = [row.requires_grad_(need) for row, need in zip(_rows(call, tile, arrays), needed, strict=True)]
            with torch.enable_grad():
                output = _evaluate(call, tile, rows)
            arriving = zip(output, upstream.of(tile, output), strict=True)
            attached = [(value, grad) for value, grad in arriving if value.requires_grad]
            if not attached:
                continue
            wanted = [
                (side, total, row)
                for side, total, row in zip(call.edges.sides, gradients, rows, strict=True)
                if total is not None
            ]
            found = torch.autograd.grad(
                [value for value, _ in attached],
                [row for _, _, row in wanted],
                [grad for _, grad in attached],
                allow_unused=True,
            )
            for (side, total, _), part in zip(wanted, found, strict=True):
                if part is not None:
                    _add(total, part, side, tile)
        cast = [None if g is None else g.to(array.dtype) for g, array in zip(gradients, arrays, strict=True)]
        return None, *cast


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
        dst = torch.repeat_interleave(torch.arange(low, high + 1, device=topology.device), indptr.diff())
        indices = topology.indices[first:last]
        part = Topology(indptr=indptr, indices=indices, num_src=max(topology.num_src, len(indptr)), validate=False)
        yield _Tile(first_edge=first, last_edge=last, first_dst=low, topology=part, src=indices.long(), dst=dst)


def _rows(call: _Call, tile: _Tile, arrays: tuple[Tensor, ...]) -> list[Tensor]:
    rows = []
    for side, array in zip(call.edges.sides, arrays, strict=True):
        if side in ("src", "dst"):
            array = array.index_select(0, tile.src if side == "src" else tile.dst)
        elif side == "edge":
            array = array[tile.first_edge : tile.last_edge]
        rows.append(array.detach())
    return rows


def _evaluate(call: _Call, tile: _Tile, rows: list[Tensor]) -> tuple[Tensor, ...]:
    """Messages of the tile's edges; for softmax their scores and values."""
    if not call.edges.random:
        return tuple(call.edges.stage.module.forward(*rows))
    # Parts of workers begin at edges of their own.
    with seeded(call.seed + call.topology.first_edge + tile.first_edge, call.topology.device):
        return tuple(call.edges.stage.module.forward(*rows))


def _add(total: Tensor, part: Tensor, side: str, tile: _Tile) -> None:
    part = part.to(total.dtype)
    if total.is_complex():
        total, part = torch.view_as_real(total), torch.view_as_real(part.resolve_conj())
    if side == "src":
        total.index_add_(0, tile.src, part)
    elif side == "dst":
        summed = gather_sum(tile.topology, part)
        total[tile.first_dst : tile.first_dst + len(summed)] += summed
    elif side == "edge":
        total[tile.first_edge : tile.last_edge] = part
    else:
        total += part


class _State:
    """Gather state of all destinations. The first tile begins it, because that shows the shape of messages."""

    def __init__(self, call: _Call) -> None:
        self.call = call
        self.gathering = call.edges.gathering
        self.forms = [part for each in self.gathering.accumulators for part in each.reduction.state]
        self.parts: list[Tensor] = []
        self.saved: list[Tensor] = []
        "Tensors that the backward reads: those that the accumulator keeps, then the result if the backward reads it."

    def accumulate(self, tile: _Tile, output: tuple[Tensor, ...]) -> None:
        """Merge a tile's gather into the state of its destinations."""
        values = [value.to(arithmetic_dtype(value.dtype)) for value in output]
        found = [
            each.accumulator.reduction.reduce(tile.topology, values[each.values]) for each in self.gathering.reduced
        ]
        part = [
            torch.where(rows < 0, -1, rows + tile.first_edge) if form.is_edge else rows
            for rows, form in zip((rows for state in found for rows in state), self.forms, strict=True)
        ]
        if not self.parts:
            num_dst = self.call.topology.num_dst
            self.parts = [
                rows.new_full((num_dst, *rows.shape[1:]), form.neutral)
                for rows, form in zip(part, self.forms, strict=True)
            ]
        reached = slice(tile.first_dst, tile.first_dst + len(part[0]))
        for each in self.gathering.reduced:
            own = [rows[reached] for rows in self.parts[each.state]]
            each.accumulator.reduction.merge(own, part[each.state])

    def finish(self, arrays: tuple[Tensor, ...]) -> Tensor:
        """The gathered rows, in the type of messages."""
        if not self.parts:
            # Without edges the backward does not read the saved tensors.
            self.parts = [
                rows.new_full(rows.shape, part.neutral)
                for each, rows in zip(self.gathering.reduced, _empty_messages(self.call, arrays), strict=True)
                for part in each.accumulator.reduction.state
            ]
        result, kept = self.gathering.finish(self.parts, counts_of(self.call.topology))
        self.saved = [*kept, result] if self.gathering.reads_result else list(kept)
        return result.to(self.call.edges.dtype)


class _Upstream:
    """Gradients of a tile's messages, from the gradient of the gathered rows."""

    def __init__(self, call: _Call, grad: Tensor, saved: tuple[Tensor, ...]) -> None:
        self.call, self.grad, self.saved = call, grad, saved
        self.gradients: EdgeFunction | None = None
        self.rows: dict[str, Tensor] = {}

    def of(self, tile: _Tile, output: tuple[Tensor, ...]) -> list[Tensor]:
        """A gradient for each tensor of the tile's output."""
        names = [f"value{number}" for number in range(len(output))]
        if self.gradients is None:
            self.gradients = self._arrive(names, output)
        given = {name: value.detach() for name, value in zip(names, output, strict=True)}
        given |= {name: rows.index_select(0, tile.dst) for name, rows in self.rows.items()}
        ids = torch.arange(tile.first_edge, tile.last_edge, device=self.grad.device)
        values = naive.evaluate(self.gradients, given, edge_ids=ids)
        found = [values[name] for each in self.gradients.outputs for name in each.values]
        return [grad.to(value.dtype) for grad, value in zip(found, output, strict=True)]

    def _arrive(self, names: list[str], output: tuple[Tensor, ...]) -> EdgeFunction:
        """The function that a tile computes; sets the rows of destinations that the function reads."""
        gathering = self.call.edges.gathering
        inputs = [
            Input(name=name, side="edge", shape=tuple(value.shape[1:]), dtype=value.dtype)
            for name, value in zip(names, output, strict=True)
        ]
        forward = Builder(inputs).build(gathering.outputs(names), "dst")
        kept = self.saved[: len(gathering.keeps)]
        result = self.saved[-1] if gathering.reads_result else self.grad
        self.rows = gathering.arrive(forward, self.grad, kept, result, counts_of(self.call.topology))
        return message_gradients(forward)


def _empty_messages(call: _Call, arrays: tuple[Tensor, ...]) -> list[Tensor]:
    """For each accumulator, zeros for each destination in the shape of its message, which made-up rows show."""
    made_up = [
        array.new_zeros(1, *array.shape[1:]) if side != "param" else array
        for side, array in zip(call.edges.sides, arrays, strict=True)
    ]
    values = call.edges.stage.module.forward(*made_up)
    shapes = (values[each.values.stop - 1].shape[1:] for each in call.edges.gathering.reduced)
    return [arrays[0].new_zeros(call.topology.num_dst, *shape, dtype=call.edges.dtype) for shape in shapes]
