"""Slices in a plan: undivided rows of one slice at a time, assembled just before the passes that read them.

A stage makes an interval's rows of all slices, and these are stored. A pass needs all intervals' rows of its own slice alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from sagann.compiler.model_program import ModelProgram
from sagann.compiler.slices import sliced
from sagann.plan.gradients import Gradients, undivided_of
from sagann.plan.intervals import PartIntervals
from sagann.plan.steps import Block, Step


def in_slices(
    program: ModelProgram, gradients: Gradients, part: PartIntervals
) -> tuple[ModelProgram, Gradients, PartIntervals]:
    """The program with its gathers cut into slices, its gradients, and the part with what of it lies undivided."""
    program = sliced(program, gradients.recomputing().passes, part.slice_lanes)
    gradients = gradients.of(program)
    return program, gradients, replace(part, undivided=undivided_of(program, gradients))


def assembling(steps: Iterable[Step], intervals: Sequence[int]) -> Iterator[Step]:
    """The steps, with those of a gather or its backward preceded by steps that assemble the undivided rows which they read."""
    under_way: tuple[str, int] | None = None
    known = set[Block]()
    for step in steps:
        if step.kind in ("gather", "gather_grad"):
            if (step.kind, step.number) != under_way:
                under_way = step.kind, step.number
                known.clear()
            for whole in step.reads:
                if whole.is_assembled and whole not in known:
                    known.add(whole)
                    yield from _assemble(step.number, whole, intervals)
        yield step


def _assemble(number: int, whole: Block, intervals: Sequence[int]) -> Iterator[Step]:
    for place, interval in enumerate(intervals):
        piece = whole._replace(interval=interval)
        yield Step("assemble", number, interval, reads=(piece, whole) if place else (piece,), writes=(whole,))
