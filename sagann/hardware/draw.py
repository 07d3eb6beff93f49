"""Mini-batches of which only counts are known: their cycles, for a forecast."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from sagann.hardware.blocks import Hop
from sagann.hardware.clock import cycles_of
from sagann.hardware.design import KernelDesign
from sagann.hardware.training import Training


def drawn_hops(vertices: Sequence[float], edges: Sequence[float], *, own: bool) -> list[Hop]:
    """Blocks with so many vertices and edges. Destinations have equally many edges, and sources, which all have one, the others at random.

    Args:
        vertices: of layers 0 to L.
        edges: into layers 1 to L, without those from vertices to themselves.
        own: whether a layer reads a vertex's own row beside its edges; otherwise each vertex has an edge to itself.
    """
    random = np.random.default_rng(0)
    hops = []
    for number, num_edges in enumerate(edges):
        num_src, num_dst = (max(1, round(count)) for count in vertices[number : number + 2])
        # Sources that are no destinations come first, each once.
        new = np.arange(min(num_dst, num_src), num_src)
        others = random.integers(0, num_src, max(0, round(num_edges) - len(new)))
        sources = random.permutation(np.concatenate([new, others]))
        destinations = np.sort(np.arange(len(sources)) % num_dst)
        if not own:
            destinations = np.concatenate([np.arange(num_dst), destinations])
            sources = np.concatenate([np.arange(num_dst), sources])
            order = np.argsort(destinations, kind="stable")
            destinations, sources = destinations[order], sources[order]
        indptr = np.searchsorted(destinations, np.arange(num_dst + 1))
        hops.append(Hop(indptr, sources, np.ones(len(sources), dtype=np.float32)))
    return hops


def training_cycles(training: Training, hops: list[Hop]) -> int:
    """Clock cycles of a mini-batch's forward and backward, with its weights' way in and its gradients' way out.

    Raises:
        InputError: the kernels are too small for a single seed.
    """
    shapes = list(zip(training.widths, training.widths[1:], strict=False))
    weights = [np.zeros((width * (1 + training.own), after), dtype=np.float32) for width, after in shapes]
    loads = training.loads(weights, [np.zeros(after, dtype=np.float32) for _, after in shapes])
    passes = [each for part in training.sub_batches(hops) for each in (*part.forward, *part.backward)]
    return sum(cycles_of(each, training.design).total for each in (loads, *passes, *training.reads_out()))


@lru_cache(maxsize=256)
def expected_cycles(
    design: KernelDesign,
    widths: tuple[int, ...],
    vertices: tuple[float, ...],
    edges: tuple[float, ...],
    *,
    own: bool,
) -> int:
    """Clock cycles of a mini-batch that is drawn with so many vertices and edges, for a model of these widths."""
    training = Training(design=design, widths=widths, own=own)
    return training_cycles(training, drawn_hops(vertices, edges, own=own))
