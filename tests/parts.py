"""Workers' parts of a graph in one process, cut for streaming, for tests of plans and of what travels."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from torch import nn

from sagann.compiler.model_program import ModelProgram
from sagann.graph import Graph
from sagann.plan.intervals import PartIntervals, equal_vertices
from sagann.runtime.streaming.capturing import captured
from sagann.runtime.workers import HaloBlocks, WorkerPart, worker_part
from tests.runtime.workers.threads import in_threads


def parts_of(graph: Graph, size: int) -> list[WorkerPart]:
    """The parts of a graph that a model has prepared."""
    return in_threads(lambda workers: worker_part(graph, workers, opened=graph), size)


def program_of(model: nn.Module, part: WorkerPart, num_hops: int) -> ModelProgram:
    """The model, captured over a part with constant features."""
    return captured(model, part.hops(num_hops), part.features, x_is_constant=True)


def cut(blocks: HaloBlocks, part: WorkerPart, count: int) -> PartIntervals:
    """The part in about ``count`` intervals."""
    return blocks.cut(count, partial(equal_vertices, part.topology.num_dst))


def cut_all(graph: Graph, counts: Sequence[int]) -> list[tuple[WorkerPart, PartIntervals]]:
    """The parts of a graph for as many workers as there are ``counts``, each in so many intervals."""
    parts = parts_of(graph, len(counts))
    return [(part, cut(part.blocks, part, count)) for part, count in zip(parts, counts, strict=True)]
