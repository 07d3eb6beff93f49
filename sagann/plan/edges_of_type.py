"""Hops that gathers go over: whole topologies, or the edges of one type, found piece by piece and never all at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from sagann.compiler.model_program import ModelProgram
from sagann.graph.topology import Topology


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class EdgesOfType:
    """Those edges of a topology that have one type; vertices and in-degrees are the topology's."""

    topology: Topology
    "The whole."
    data: str
    "Name of the edge data that holds the types."
    type: int
    "The type."

    def within(self, edges: slice) -> Tensor:
        """Where they stand in a range of the topology's edges: int64, ascending, from the range's start."""
        return (self.topology.edge_data[self.data][edges] == self.type).nonzero().squeeze(1)


Hop = Topology | EdgesOfType
"What a gather goes over."


def topology_of(hop: Hop) -> Topology:
    """The topology whose edges they are."""
    return hop.topology if isinstance(hop, EdgesOfType) else hop


def gathered_hops(program: ModelProgram, hops: Sequence[Topology]) -> dict[int, Hop]:
    """The hops that a program's gathers go over, by number: topologies first, then the edges of single types.

    Args:
        program: the captured model.
        hops: the topologies that it walks.
    """
    of_types = [EdgesOfType(topology=hops[each.hop], data=each.data, type=each.type) for each in program.edge_types]
    numbered: list[Hop] = [*hops, *of_types]
    return {number: numbered[number] for number in sorted({gather.hop for gather in program.gathers})}
