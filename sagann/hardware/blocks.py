"""Blocks of a mini-batch as the kernels read them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from sagann.hardware.design import KernelDesign
from sagann.hardware.program import Array, ScatterProgram, first_use, scatter_program


class Hop(NamedTuple):
    """Edges of a layer's block, whose sources begin with its destinations, as mini-batches number them."""

    indptr: Array
    sources: Array
    "int64 [num_edges]."
    coefficients: Array

    @property
    def num_dst(self) -> int:
        return len(self.indptr) - 1

    def of(self, destinations: Array) -> Hop:
        """The edges of some destinations."""
        degrees = np.diff(self.indptr)[destinations]
        indptr = np.concatenate([[0], np.cumsum(degrees)])
        edges = np.arange(indptr[-1]) + np.repeat(self.indptr[destinations] - indptr[:-1], degrees)
        return Hop(indptr, self.sources[edges], self.coefficients[edges])


class Layer(NamedTuple):
    """A hop as the kernels read it: sources in the order of their first use."""

    indptr: Array
    rows: Array
    coefficients: Array
    halves: Array
    "Whether an edge comes from a neighbour, where a vertex has a row of its own beside their mean."
    num_src: int

    @property
    def num_dst(self) -> int:
        return len(self.indptr) - 1

    def program(self, design: KernelDesign, chunks: int) -> ScatterProgram:
        return scatter_program(self.indptr, self.rows, self.coefficients, design, chunks=chunks, halves=self.halves)

    def reversed_program(self, design: KernelDesign, chunks: int) -> ScatterProgram:
        """Along the edges backwards: from the rows of destinations to sums of sources."""
        destinations = np.repeat(np.arange(self.num_dst), np.diff(self.indptr))
        order = np.lexsort((destinations, self.rows))
        return scatter_program(
            np.searchsorted(self.rows[order], np.arange(self.num_src + 1)),
            destinations[order],
            self.coefficients[order],
            design,
            chunks=chunks,
            halves=self.halves[order],
            halves_of_rows=True,
            drains=False,
        )


def layer_of(hop: Hop, vertices: Array, design: KernelDesign, *, own: bool) -> tuple[Layer, Array]:
    """A hop for the kernels, and its sources in the order in which they arrive.

    Args:
        vertices: the destinations, as numbers among the sources; int64 [num_dst].
    """
    every, degrees = np.arange(hop.num_dst), np.diff(hop.indptr)
    lonely = every[degrees == 0]
    # Destinations, sources, coefficients and halves of edges; a destination without edges gets one of coefficient 0.
    edges = [
        (np.repeat(every, degrees), hop.sources, hop.coefficients, own),
        (lonely, vertices[lonely], np.zeros(len(lonely), dtype=np.float32), own),
    ]
    if own:
        edges.append((every, vertices, np.ones(len(every), dtype=np.float32), False))
    destinations, sources, coefficients = (np.concatenate(arrays) for arrays in list(zip(*edges, strict=True))[:3])
    halves = np.repeat([half for *_, half in edges], [len(ends) for ends, *_ in edges])
    order = np.argsort(destinations, kind="stable")
    destinations, sources = destinations[order], sources[order]
    coefficients, halves = coefficients[order], halves[order]
    indptr = np.searchsorted(destinations, np.arange(hop.num_dst + 1))
    arriving = first_use(indptr, sources, design.scatter_pes)
    number = np.zeros(int(sources.max(initial=-1)) + 1, dtype=np.int64)
    number[arriving] = np.arange(len(arriving))
    rows = number[sources]
    order = np.lexsort((rows, destinations))
    return Layer(indptr, rows[order], coefficients[order], halves[order], len(arriving)), arriving
