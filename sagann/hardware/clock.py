"""Clock cycles of the kernels, exact for the circuits of :mod:`sagann.hardware.rtl`.

A word occupies the kernel for a cycle per chunk of a row. It begins when the word before it has ended, its rows have arrived, and nothing on
its way to a bank would change an accumulator that it reads. One that drains begins when a set of row buffers before the systolic array is
free. Of its two sets the array reads one, a cycle for each row, chunk and tile of columns, while the other one is filled. Rows arrive back to back, each as soon as its place in the window is free.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

import numpy as np

from sagann.hardware.design import DELAY, HAZARD, KernelDesign
from sagann.hardware.program import ScatterProgram
from sagann.jit import compiled

Array: TypeAlias = np.ndarray[Any, Any]


class Cycles(NamedTuple):
    """Clock cycles of a program."""

    issue: int
    "From the first cycle to that in which the last word's last chunk is issued, inclusive."
    rows: int
    "Of these, cycles in which a word waits for its rows."
    room: int
    "Of these, cycles in which a word that drains waits for the array to have read the destinations before."
    hazard: int
    "Of these, cycles in which a word waits for sums alone, which are on their way to its accumulators."
    update: int
    "From the first cycle to that in which the array has read its last row, inclusive; results follow after the delays of its pipelines. Without an array: that of the last drained chunk."


def cycles_of(program: ScatterProgram, design: KernelDesign, *, tiles: int = 0) -> Cycles:
    """The cycles that kernels of this design take for a program.

    Rows and words are there whenever a kernel takes them, and results are taken as they come. With the default design a word has 529 bits
    and a result a tile of 512 bytes, so of rows of one chunk either may be more in a cycle than external memory gives.

    Args:
        tiles: of columns of the update kernel's result (:meth:`KernelDesign.tiles`); 0 for the aggregate kernel alone.
    """
    n = design.scatter_pes
    # The accumulator that each bank accesses, as a group of n destinations; -1 for none.
    accessed = np.full((program.num_words, n), -1)
    words, _ = is_edge = np.nonzero(~program.is_drain[:, None] & (program.destination >= 0))
    accessed[words, program.destination[is_edge] % n] = program.destination[is_edge] // n
    accessed[program.is_drain] = program.destination[program.is_drain, :1] // n
    found = _cycles(
        accessed,
        program.is_drain,
        program.needs,
        program.releases,
        (program.chunks, design.beats(program.chunks), design.window_rows, HAZARD),
        # Cycles in which the array reads n rows: a chunk of each, then the next chunk, HAZARD cycles later at the earliest.
        program.chunks * max(n * tiles, HAZARD) if tiles else 0,
    )
    return Cycles(*(int(each) for each in found))


@compiled()
def _cycles(
    accessed: Array, is_drain: Array, needs: Array, releases: Array, sizes: tuple[int, int, int, int], feed: int
) -> tuple[int, int, int, int, int]:
    chunks, beats, window, hazard = sizes
    begins = np.zeros(len(needs), dtype=np.int64)
    free, for_rows, for_room, for_sums, num_arrived, arrived, releasing = 0, 0, 0, 0, 0, 0, 0
    # When the array has read the last set of row buffers, and the one before.
    read, read_before = 0, 0
    for word in range(len(needs)):
        while num_arrived < needs[word]:
            if num_arrived >= window:
                while releases[releasing] <= num_arrived - window:
                    releasing += 1
                arrived = max(arrived, begins[releasing] + chunks)
            arrived += beats
            num_arrived += 1
        with_rows = max(free, arrived) if needs[word] else free
        with_room = max(with_rows, read_before) if is_drain[word] and feed else with_rows
        begin, before = with_room, word - 1
        while before >= 0 and begins[before] + hazard > with_room:
            if ((accessed[before] == accessed[word]) & (accessed[word] >= 0)).any():
                begin = begins[before] + hazard
                break
            before -= 1
        for_rows += with_rows - free
        for_room += with_room - with_rows
        for_sums += begin - with_room
        begins[word] = begin
        free = begin + chunks
        if is_drain[word]:
            read_before, read = read, max(read, free + DELAY + 1) + feed
    return free, for_rows, for_room, for_sums, read
