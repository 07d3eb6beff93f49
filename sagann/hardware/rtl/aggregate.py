"""The aggregate kernel: rows are broadcast to scatter PEs, each of which has a gather PE with a bank of sums (HyScale-GNN IV-C, figure 6).

The kernel obeys the words of a :class:`sagann.hardware.program.ScatterProgram`, so it has no arbiter and no queue of messages. The only things
that it finds out itself are those that depend on time: whether a word's rows have arrived, and whether a sum that it needs is still under way.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from amaranth.hdl import Cat, Module, Mux, ResetInserter, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out
from amaranth.utils import ceil_log2, exact_log2

from sagann.hardware.design import ADD_STAGES, DELAY, HAZARD, MUL_STAGES, KernelDesign
from sagann.hardware.rtl.float32 import Add, Mul
from sagann.hardware.rtl.netlist import Part, delayed
from sagann.hardware.rtl.streams import (
    COUNT_BITS,
    beat_layout,
    chunk_layout,
    drained_stream,
    pass_layout,
    word_layout,
)

STALLS = data.StructLayout(dict.fromkeys(("rows", "room", "hazard"), COUNT_BITS))
"""Cycles in which a word waited for rows, for room, or for sums that were under way, as in :class:`sagann.hardware.Cycles`, since the program
began."""


class Aggregate(wiring.Component):
    """The kernel.

    Ports:
        config: the pass; constant while it runs.
        rows: beats of rows, in the order of their numbers; the last beat of a row may have unused chunks, and the last chunk lanes that are 0.
        words: of the program.
        drained: finished destinations, chunk by chunk.
        begins: a program begins after this cycle; the kernel is idle, and all words of the program before have been taken.
        room: whether what takes drained destinations has room for n more.
        begins_drain: n destinations are about to be drained.
        idle: no sum is under way; also while a word waits.
        stalls: cycles in which a word waited, by cause.
    """

    def __init__(self, design: KernelDesign) -> None:
        self._design = design
        super().__init__(
            {
                "config": In(pass_layout(design)),
                "rows": In(stream.Signature(beat_layout(design))),
                "words": In(stream.Signature(word_layout(design))),
                "drained": Out(drained_stream(design)),
                "begins": In(1),
                "room": In(1),
                "begins_drain": Out(1),
                "idle": Out(1),
                "stalls": Out(STALLS),
            }
        )

    def elaborate(self, platform: object) -> Module:
        design, m = self._design, Module()
        duplicator, issue = Module(), Module()
        # Rows and stalls are counted from the beginning of a program.
        m.submodules.duplicator = ResetInserter(self.begins)(duplicator)
        m.submodules.issue = ResetInserter(self.begins)(issue)
        released = Signal(COUNT_BITS)
        arrived, writes, address = self._duplicator(duplicator, released)
        active, chunk, banks = self._issue(issue, arrived, released)

        word, drained = self.words.payload, self.drained.payload
        m.d.comb += [
            self.drained.valid.eq(delayed(m, active & word.drain, DELAY + 1, resets=True)),
            Cat(drained.grads, drained.rows).eq(delayed(m, Cat(word.grads, word.rows), DELAY + 1)),
        ]
        for number, bank in enumerate(banks):
            m.submodules[f"scatter_pe{number}"], m.submodules[f"gather_pe{number}"] = scatter, gather = (
                _ScatterPe(design),
                _GatherPe(design),
            )
            edge, adds = word.edges[number], bank.valid & active & ~word.drain
            m.d.comb += [
                scatter.slot.eq(edge.slot),
                scatter.chunk.eq(chunk + Mux(edge.half & self.config.halves_of_rows, self.config.chunks, 0)),
                scatter.coefficient.eq(edge.coefficient),
                scatter.writes.eq(writes),
                scatter.address.eq(address),
                scatter.beat.eq(self.rows.payload),
                gather.product.eq(delayed(m, scatter.product.as_value(), 1)),
                gather.accumulator.eq(delayed(m, bank.accumulator, DELAY)),
                gather.first.eq(delayed(m, bank.first, DELAY + 1)),
                gather.adds.eq(delayed(m, adds, DELAY + 1, resets=True)),
                drained.chunks[number].eq(gather.sum),
            ]
        under_way = Signal(DELAY + 1 + ADD_STAGES)
        m.d.sync += under_way.eq(Cat(active, under_way)[: len(under_way)])
        m.d.comb += self.idle.eq(~(active | under_way.any()))
        return m

    def _duplicator(self, m: Module, released: Signal) -> tuple[Signal, Signal, Value]:
        """Writes each beat into the local memories of all scatter PEs, as soon as its row has a place in the window.

        Returns:
            Number of rows that have arrived; whether a beat is written, and where.
        """
        design, arrived, writes = self._design, Signal(COUNT_BITS), Signal()
        row_beats = design.row_chunks // design.beat_chunks
        number = Signal(range(max(2, row_beats)))
        last = (self.config.row_chunks - 1) >> exact_log2(design.beat_chunks)
        has_place = (arrived - released < design.window_rows) & (arrived != self.config.rows)
        m.d.comb += [self.rows.ready.eq(has_place), writes.eq(self.rows.valid & has_place)]
        with m.If(writes):
            with m.If(number == last):
                m.d.sync += [number.eq(0), arrived.eq(arrived + 1)]
            with m.Else():
                m.d.sync += number.eq(number + 1)
        return arrived, writes, Cat(number[: exact_log2(row_beats)], arrived[: exact_log2(design.window_rows)])

    def _issue(self, m: Module, arrived: Signal, released: Signal) -> tuple[Signal, Signal, list[data.View[Any]]]:
        """Issues a chunk of all edges of a word in each cycle, unless the word has to wait before its first one.

        Returns:
            Whether it issues; the number of the chunk; what the banks do.
        """
        design, word, config = self._design, self.words.payload, self.config
        n, address = design.scatter_pes, ceil_log2(design.bank_chunks)
        active, chunk = Signal(), Signal(range(design.row_chunks))
        bank_layout = data.StructLayout({"valid": 1, "accumulator": address, "first": 1})
        banks = [Signal(bank_layout, name=f"bank{number}") for number in range(n)]
        begins = chunk == 0
        chunks = Mux(word.drain, Mux(word.grads, config.grad_chunks, config.drain_chunks), config.chunks)
        # The accumulators of each bank whose additions began in the last cycles.
        began = data.StructLayout({"valid": 1, "accumulator": address})
        history = [[Signal(began) for _ in range(n)] for _ in range(HAZARD - 1)]
        clashes = []
        for number, bank in enumerate(banks):
            edge, base = word.edges[number], Signal(address)
            half = edge.half & ~config.halves_of_rows
            m.d.comb += [
                base.eq(Mux(word.drain, word.edges[0].accumulator, edge.accumulator)),
                bank.valid.eq(word.drain | edge.valid),
                bank.accumulator.eq(base + chunk + Mux(half, config.chunks, 0)),
                bank.first.eq(edge.first),
            ]
            clashes += [bank.valid & past[number].valid & (past[number].accumulator == base) for past in history]
            for newer, older in pairwise(history):
                m.d.sync += older[number].eq(newer[number])
            m.d.sync += [
                history[0][number].valid.eq(active & begins & bank.valid),
                history[0][number].accumulator.eq(base),
            ]
        lacks_rows, lacks_room, clash = Signal(), Signal(), Signal()
        m.d.comb += [
            lacks_rows.eq(begins & (arrived < word.needs)),
            lacks_room.eq(begins & word.drain & ~word.grads & ~self.room),
            clash.eq(begins & Cat(*clashes).any()),
            active.eq(self.words.valid & ~lacks_rows & ~lacks_room & ~clash),
            self.begins_drain.eq(active & word.drain & begins & ~word.grads),
            self.words.ready.eq(active & (chunk + 1 == chunks)),
        ]
        with m.If(active):
            m.d.sync += chunk.eq(chunk + 1)
        with m.If(self.words.ready):
            m.d.sync += [chunk.eq(0), released.eq(word.releases)]
        with m.If(self.words.valid & lacks_rows):
            m.d.sync += self.stalls.rows.eq(self.stalls.rows + 1)
        with m.Elif(self.words.valid & lacks_room):
            m.d.sync += self.stalls.room.eq(self.stalls.room + 1)
        with m.Elif(self.words.valid & clash):
            m.d.sync += self.stalls.hazard.eq(self.stalls.hazard + 1)
        return active, chunk, banks


class _ScatterPe(Part):
    """Multiplies a chunk of the row of its edge by the edge's coefficient."""

    def __init__(self, design: KernelDesign) -> None:
        self._design = design
        self._depth = design.window_rows * design.row_chunks // design.beat_chunks
        super().__init__(
            {
                "slot": In(exact_log2(design.window_rows)),
                "chunk": In(range(design.row_chunks)),
                "coefficient": In(32),
                "writes": In(1),
                "address": In(range(self._depth)),
                "beat": In(beat_layout(design)),
                "product": Out(chunk_layout(design)),
            }
        )

    def circuit(self) -> Module:
        design, m = self._design, Module()
        m.submodules.local = local = Memory(shape=beat_layout(design), depth=self._depth, init=[])
        write, read = local.write_port(), local.read_port()
        beat_bits = exact_log2(design.beat_chunks)
        row_bits = exact_log2(design.row_chunks) - beat_bits
        m.d.comb += [
            write.en.eq(self.writes),
            write.addr.eq(self.address),
            write.data.eq(self.beat),
            read.addr.eq(Cat(self.chunk[beat_bits : beat_bits + row_bits], self.slot)),
        ]
        chunk = read.data[delayed(m, self.chunk[:beat_bits], 1)] if beat_bits else read.data[0]
        coefficient = delayed(m, self.coefficient, 1)
        assert DELAY == 1 + MUL_STAGES
        for lane in range(design.lanes):
            m.submodules[f"mul{lane}"] = mul = Mul()
            m.d.comb += [mul.a.eq(chunk[lane]), mul.b.eq(coefficient), self.product[lane].eq(mul.result)]
        return m


class _GatherPe(Part):
    """A bank of accumulators, and the adders of one chunk. The accumulator is stated a cycle before what is added to it."""

    def __init__(self, design: KernelDesign) -> None:
        self._design = design
        super().__init__(
            {
                "product": In(chunk_layout(design)),
                "accumulator": In(ceil_log2(design.bank_chunks)),
                "first": In(1),
                "adds": In(1),
                "sum": Out(chunk_layout(design)),
            }
        )

    def circuit(self) -> Module:
        design, m = self._design, Module()
        m.submodules.bank = bank = Memory(shape=chunk_layout(design), depth=design.bank_chunks, init=[])
        write, read = bank.write_port(), bank.read_port()
        m.d.comb += [
            read.addr.eq(self.accumulator),
            self.sum.eq(read.data),
            write.addr.eq(delayed(m, self.accumulator, 1 + ADD_STAGES)),
            write.en.eq(delayed(m, self.adds, ADD_STAGES, resets=True)),
        ]
        for lane in range(design.lanes):
            m.submodules[f"add{lane}"] = add = Add()
            m.d.comb += [
                add.a.eq(Mux(self.first, 0, read.data[lane])),
                add.b.eq(self.product[lane]),
                write.data[lane].eq(add.result),
            ]
        return m
