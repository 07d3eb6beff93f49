"""Clock cycles of the kernels, exact for the circuits of :mod:`sagann.hardware.rtl`.

A scatter word occupies the kernel for a cycle per chunk that its edges add, one that drains for a cycle per chunk of a destination. It begins
when the word before it has ended, its rows have arrived, and nothing on its way to a bank would change a sum that it reads. One that drains
begins when a set of row buffers before the systolic array is free. Of its two sets the array reads one while the other one is filled. Rows
arrive back to back, as soon as their places in the window are free and, where the array computes them, they are computed.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from sagann.hardware.design import ADD_STAGES, DELAY, HAZARD, KernelDesign
from sagann.hardware.passes import Pass
from sagann.hardware.program import Array
from sagann.jit import compiled

_START = 2
"Cycles in which the sequencer takes a pass, and resets the kernels."
_TO_ROW = ADD_STAGES + 4
"Cycles, besides those of the array, from the feed of a row's last chunk to the arrival of its result before the scatter PEs."


class Cycles(NamedTuple):
    """Clock cycles of a pass."""

    total: int
    "From that in which the sequencer takes the pass to that before it takes the next one."
    issue: int
    "From the first cycle of the kernels to that in which the last word's last chunk is issued, inclusive."
    rows: int
    "Of these, cycles in which a word waits for its rows."
    room: int
    "Of these, cycles in which a word that drains waits for the array to have read the destinations before."
    hazard: int
    "Of these, cycles in which a word waits for sums alone, which are on their way to its accumulators."
    update: int
    "From the first cycle to that in which the array has read its last row, inclusive."


def cycles_of(settings: Pass, design: KernelDesign) -> Cycles:
    """The cycles that kernels of this design take for a pass.

    Rows from external memory and words are there whenever a kernel takes them, and results are taken as they come. With the default
    design a word has 526 bits and a result 512 bytes. Where rows have one chunk, a cycle may have both, beside 256 bytes of rows.
    """
    if settings.loads is not None:
        return Cycles(_START + len(settings.loads) + 1, 0, 0, 0, 0, 0)
    if settings.reads_out:
        chunks, tiles = settings.drains.chunks, settings.tiles
        read = chunks * max(design.lanes * tiles, HAZARD) + max(tiles, HAZARD)
        return Cycles(_total(0, read, design), 0, 0, 0, 0, read)
    program = settings.program
    assert program is not None
    is_drain = program.drains > 0
    # The accumulators that each bank accesses; -1 for none.
    accessed = np.full((program.num_words, design.scatter_pes), -1)
    is_edge = ~is_drain[:, None] & (program.destination >= 0)
    accessed[is_edge] = settings.sums.accumulator(program.destination[is_edge], design)
    for is_grads, region in ((False, settings.drains), (True, settings.grads)):
        drained = is_drain & (program.is_grads == is_grads)
        accessed[drained] = region.accumulator(program.destination[drained, :1], design)
    free, rows, room, hazard, read = _cycles(
        (accessed, program.drains, program.is_grads, program.needs, program.releases),
        (settings.chunks, settings.drains.chunks, settings.grads.chunks),
        (design.beats(settings.row_chunks), design.window_rows, int(settings.rows_on_chip)),
        (settings.gradient, settings.tiles, design.scatter_pes),
        design.latency + _TO_ROW if settings.chained else -1,
    )
    return Cycles(_total(free, read, design), free, rows, room, hazard, read)


def _total(free: int, read: int, design: KernelDesign) -> int:
    last_sum = free + DELAY + 1 + ADD_STAGES if free else 0
    return _START + max(last_sum, read) + design.settling + 1


@compiled()
def _cycles(
    words: tuple[Array, Array, Array, Array, Array],
    lengths: tuple[int, int, int],
    arrival: tuple[int, int, int],
    feed: tuple[bool, int, int],
    to_row: int,
) -> tuple[int, int, int, int, int]:
    accessed, drains, is_grads, needs, releases = words
    chunks, drain_chunks, grad_chunks = lengths
    beats, window, arrived = arrival
    gradient, tiles, num_pes = feed
    begins, ends = np.zeros(len(needs), dtype=np.int64), np.zeros(len(needs), dtype=np.int64)
    # When each row comes from the array.
    arrivals = np.zeros(len(needs) * num_pes, dtype=np.int64)
    free, for_rows, for_room, for_sums, num_arrived, releasing, num_computed = 0, 0, 0, 0, 0, 0, 0
    # When the array has read the last set of row buffers, and the one before.
    read, read_before = 0, 0
    for word in range(len(needs)):
        while num_arrived < needs[word]:
            if num_arrived >= window:
                while releases[releasing] <= num_arrived - window:
                    releasing += 1
                arrived = max(arrived, ends[releasing])
            if to_row >= 0:
                arrived = max(arrived, arrivals[num_arrived])
            arrived += beats
            num_arrived += 1
        with_rows = max(free, arrived) if needs[word] else free
        takes_set = drains[word] > 0 and not is_grads[word] and tiles > 0
        with_room = max(with_rows, read_before) if takes_set else with_rows
        begin, before = with_room, word - 1
        while before >= 0 and begins[before] + HAZARD > with_room:
            if ((accessed[before] == accessed[word]) & (accessed[word] >= 0)).any():
                begin = begins[before] + HAZARD
                break
            before -= 1
        for_rows += with_rows - free
        for_room += with_room - with_rows
        for_sums += begin - with_room
        begins[word] = begin
        length = chunks
        if drains[word]:
            length = grad_chunks if is_grads[word] else drain_chunks
        free = ends[word] = begin + length
        if drains[word] and tiles > 0 and is_grads[word] == gradient:
            start, num_rows = max(read, free + DELAY + 1), drains[word]
            if gradient:
                outer, inner = num_rows, drain_chunks
            else:
                outer, inner = drain_chunks, num_rows
            period = max(inner * tiles, HAZARD)
            for row in range(num_rows):
                arrivals[num_computed + row] = start + (outer - 1) * period + (row + 1) * tiles - 1 + to_row
            num_computed += num_rows
            read_before, read = read, start + outer * period
    return free, for_rows, for_room, for_sums, read
