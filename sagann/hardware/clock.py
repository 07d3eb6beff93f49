"""Clock cycles of the aggregate kernel, exact for the circuit of :mod:`sagann.hardware.rtl.aggregate`.

A word occupies the kernel for a cycle per chunk of a row. It begins when the word before it has ended, its rows have arrived, and nothing on
its way to a bank would change an accumulator that it reads. Rows arrive back to back, each as soon as its place in the window is free.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

import numpy as np

from sagann.hardware.design import HAZARD, KernelDesign
from sagann.hardware.program import ScatterProgram
from sagann.jit import compiled

Array: TypeAlias = np.ndarray[Any, Any]


class Cycles(NamedTuple):
    """Clock cycles of a program."""

    issue: int
    "From the first cycle to that in which the last word's last chunk is issued, inclusive."
    rows: int
    "Of these, cycles in which a word waits for its rows."
    hazard: int
    "Of these, cycles in which a word whose rows are there waits for sums that are on their way to its accumulators."


def cycles_of(program: ScatterProgram, design: KernelDesign) -> Cycles:
    """The cycles that a kernel of this design takes for a program if external memory always has the next row."""
    n = design.scatter_pes
    # The accumulator that each bank accesses, as a group of n destinations; -1 for none.
    accessed = np.full((program.num_words, n), -1)
    words, _ = is_edge = np.nonzero(~program.is_drain[:, None] & (program.destination >= 0))
    accessed[words, program.destination[is_edge] % n] = program.destination[is_edge] // n
    accessed[program.is_drain] = program.destination[program.is_drain, :1] // n
    found = _cycles(
        accessed,
        program.needs,
        program.releases,
        (program.chunks, design.beats(program.chunks), design.window_rows, HAZARD),
    )
    return Cycles(*(int(each) for each in found))


@compiled()
def _cycles(
    accessed: Array, needs: Array, releases: Array, sizes: tuple[int, int, int, int]
) -> tuple[int, int, int]:
    chunks, beats, window, hazard = sizes
    begins = np.zeros(len(needs), dtype=np.int64)
    free, for_rows, for_sums, num_arrived, arrived, releasing = 0, 0, 0, 0, 0, 0
    for word in range(len(needs)):
        while num_arrived < needs[word]:
            if num_arrived >= window:
                while releases[releasing] <= num_arrived - window:
                    releasing += 1
                arrived = max(arrived, begins[releasing] + chunks)
            arrived += beats
            num_arrived += 1
        with_rows = max(free, arrived) if needs[word] else free
        begin, before = with_rows, word - 1
        while before >= 0 and begins[before] + hazard > with_rows:
            if ((accessed[before] == accessed[word]) & (accessed[word] >= 0)).any():
                begin = begins[before] + hazard
                break
            before -= 1
        for_rows += with_rows - free
        for_sums += begin - with_rows
        begins[word] = begin
        free = begin + chunks
    return free, for_rows, for_sums
