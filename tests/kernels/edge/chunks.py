"""Graphs cut into chunks, and gathered chunk by chunk: what gather states are tried on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from sagann.graph import Topology
from sagann.kernels.edge.function import EdgeFunction, placed
from sagann.kernels.edge.state import GatherState, Run


@dataclass(frozen=True, kw_only=True, slots=True)
class Chunk:
    """Some edges of a topology, with vertices of their own."""

    topology: Topology
    positions: Tensor
    "Of its edges in the whole."
    vertices: Mapping[str, slice]
    "Sources and destinations in the whole: an interval of each."
    offset: int
    "Edges of the chunks before it."


def grid(whole: Topology, num_dst_intervals: int, num_src_intervals: int) -> list[Chunk]:
    """Destination intervals by source intervals, row by row; some may be empty of edges, or of vertices."""
    chunks: list[Chunk] = []
    edge_dst, edge_src = whole.edge_dst().long(), whole.indices.long()
    for dst in _intervals(whole.num_dst, num_dst_intervals):
        for src in _intervals(whole.num_src, num_src_intervals):
            inside = (
                (edge_dst >= dst.start) & (edge_dst < dst.stop) & (edge_src >= src.start) & (edge_src < src.stop)
            )
            positions = inside.nonzero().squeeze(1)
            degrees = torch.bincount(edge_dst[positions] - dst.start, minlength=dst.stop - dst.start)
            part = Topology(
                indptr=torch.cat([degrees.new_zeros(1), degrees.cumsum(0)]),
                indices=(edge_src[positions] - src.start).int(),
                num_src=max(src.stop - src.start, dst.stop - dst.start),
            )
            offset = chunks[-1].offset + chunks[-1].topology.num_edges if chunks else 0
            chunks.append(
                Chunk(topology=part, positions=positions, vertices={"src": src, "dst": dst}, offset=offset)
            )
    return chunks


def runs(whole: Topology, num_runs: int) -> list[Chunk]:
    """Edges that stand one after the other in CSC order, over all vertices: their ids are those of the whole."""
    chunks = []
    for edges in _intervals(whole.num_edges, num_runs):
        part = Topology(
            indptr=whole.indptr.clamp(edges.start, edges.stop) - edges.start,
            indices=whole.indices[edges],
            num_src=whole.num_src,
        )
        vertices = {"src": slice(0, whole.num_src), "dst": slice(0, whole.num_dst)}
        positions = torch.arange(edges.start, edges.stop)
        chunks.append(Chunk(topology=part, positions=positions, vertices=vertices, offset=edges.start))
    return chunks


def by_source(whole: Topology) -> Topology:
    """The same edges, those of a destination in the order of their sources, as a grid's are."""
    order = torch.argsort(whole.edge_dst().long() * whole.num_src + whole.indices)
    return Topology(indptr=whole.indptr, indices=whole.indices[order], num_src=whole.num_src)


def gather(
    run: Run,
    function: EdgeFunction,
    whole: Topology,
    chunks: list[Chunk],
    arrays: Mapping[str, Tensor],
    *,
    apart: bool = False,
    device: str = "cpu",
) -> tuple[Tensor, ...]:
    """What a pass over the whole gives, from states of its row intervals.

    Args:
        apart: accumulate every chunk on its own, and merge the last one first.
    """
    states: dict[tuple[int, int], GatherState] = {}
    order = torch.cat([chunk.positions for chunk in chunks])
    of_edges: list[tuple[Tensor, ...]] = []
    for chunk in chunks:
        rows = chunk.vertices[function.at]

        def begin(num_rows: int = rows.stop - rows.start) -> GatherState:
            return GatherState(function, num_rows=num_rows, num_edges=whole.num_edges, device=device)

        known = states.setdefault((rows.start, rows.stop), begin())
        state = begin() if apart else known
        given = {name: array.to(device) for name, array in _arrays_of(function, chunk, arrays)}
        of_edges.append(state.accumulate(run, chunk.topology.to(device), given, seed=7, edge_offset=chunk.offset))
        if apart:
            _merge(function, state.finish(), known.finish())
            states[rows.start, rows.stop] = state
    return _whole(function, whole, order, states, of_edges)


def _merge(function: EdgeFunction, state: tuple[Tensor, ...], other: tuple[Tensor, ...]) -> None:
    """Merge another state into a state, in place, by the records of the reductions."""
    for output, here in placed(each for each in function.outputs if each.reduction.rows != "edge"):
        output.reduction.merge(state[here], other[here])


def _whole(
    function: EdgeFunction,
    whole: Topology,
    order: Tensor,
    states: Mapping[tuple[int, int], GatherState],
    of_edges: list[tuple[Tensor, ...]],
) -> tuple[Tensor, ...]:
    """Put together rows, add up totals, name edges as the whole does."""
    parts = [[result.cpu() for result in states[rows].finish()] for rows in sorted(states)]
    reduced, edges, results = 0, 0, []
    for result in function.results:
        if result.rows == "edge":
            rows = torch.cat([chunk[edges].cpu() for chunk in of_edges])
            results.append(rows[torch.argsort(order)])
            edges += 1
            continue
        own = [part[reduced] for part in parts]
        reduced += 1
        together = torch.cat(own) if result.rows == "row" else torch.stack(own).sum(0)
        if result.dtype is None and len(order):
            together = torch.where(together < 0, together, order[together.long().clamp(min=0)].to(together.dtype))
        results.append(together)
    return tuple(results)


def _arrays_of(function: EdgeFunction, chunk: Chunk, arrays: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    for given in function.inputs:
        array = arrays[given.name]
        if given.side == "edge":
            array = array[chunk.positions]
        elif given.side != "param":
            array = array[chunk.vertices[given.side]]
        yield given.name, array


def _intervals(size: int, count: int) -> list[slice]:
    step = max(1, -(-size // count))
    return [slice(min(first * step, size), min((first + 1) * step, size)) for first in range(count)]


CUTS: dict[str, Callable[[Topology], list[Chunk]]] = {
    **{f"{p} x {p}": lambda whole, p=p: grid(whole, p, p) for p in (1, 2, 3)},
    "7 x 2": lambda whole: grid(whole, 7, 2),
    "2 x 7": lambda whole: grid(whole, 2, 7),
    **{f"{p} runs": lambda whole, p=p: runs(whole, p) for p in (2, 3)},
}
"Ways to cut a topology."
