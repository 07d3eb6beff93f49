"""The kernels joined: passes of a mini-batch's training, one after the other, whose rows stay on chip between them.

The host states each :class:`sagann.hardware.passes.Pass` and streams its words. Rows and gradients of scores come from external memory, scores
and gradients of weights go there. Results of inner layers, and rows of their gradients, lie in the memory of rows, and ReLU's masks beside it.
"""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Cat, Module, Mux, ResetInserter, Signal, Value
from amaranth.lib import stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from sagann.hardware.design import KernelDesign
from sagann.hardware.rtl.aggregate import STALLS, Aggregate
from sagann.hardware.rtl.netlist import delayed
from sagann.hardware.rtl.streams import (
    beat_layout,
    parameters_layout,
    pass_layout,
    results_stream,
    tag_layout,
    word_layout,
)
from sagann.hardware.rtl.update import GRADS_AHEAD, Feeder, column_sums, systolic_array


class Accelerator(wiring.Component):
    """Both kernels, the memories between them, and their sequencer.

    Ports:
        passes: taken when the pass before has ended.
        rows, words, parameters: of the passes, in their order.
        results: of passes that do not keep them; taken as they come.
        stalls: of the pass, as for :class:`sagann.hardware.rtl.aggregate.Aggregate`.
    """

    def __init__(self, design: KernelDesign) -> None:
        self._design = design
        super().__init__(
            {
                "passes": In(stream.Signature(pass_layout(design))),
                "rows": In(stream.Signature(beat_layout(design))),
                "words": In(stream.Signature(word_layout(design))),
                "parameters": In(stream.Signature(parameters_layout(design))),
                "results": Out(results_stream(design)),
                "stalls": Out(STALLS),
            }
        )

    def elaborate(self, platform: object) -> Module:
        design, m = self._design, Module()
        config, begins, runs = Signal(pass_layout(design)), Signal(), Signal()
        aggregate, feeds, memory = Aggregate(design), Module(), Module()
        mask = Signal(design.array_columns)
        drained, begins_drain = aggregate.drained, aggregate.begins_drain
        feeder = Feeder(feeds, design, config, runs=runs, begins=begins_drain, drained=drained, mask=mask)
        kept = results_stream(design).create()
        rows = self._row_memory(memory, config, runs, kept)
        m.submodules.aggregate = aggregate
        m.submodules.feeder = ResetInserter(begins)(feeds)
        m.submodules.rows = ResetInserter(begins)(memory)
        m.submodules.array, m.submodules.column_sums = array, adders = Module(), Module()
        left = self._sequence(m, config, begins, runs, aggregate.idle & feeder.idle)

        m.d.comb += [aggregate.begins.eq(begins), aggregate.config.eq(config), self.stalls.eq(aggregate.stalls)]
        m.d.comb += aggregate.room.eq(feeder.room)
        takes = runs & (left != 0)
        m.d.comb += [
            aggregate.words.payload.eq(self.words.payload),
            aggregate.words.valid.eq(self.words.valid & takes),
            self.words.ready.eq(aggregate.words.ready & takes),
            aggregate.rows.payload.eq(
                Mux(config.rows_on_chip, rows.payload.as_value(), self.rows.payload.as_value())
            ),
            aggregate.rows.valid.eq(runs & Mux(config.rows_on_chip, rows.valid, self.rows.valid)),
            rows.ready.eq(aggregate.rows.ready & config.rows_on_chip),
            self.rows.ready.eq(aggregate.rows.ready & runs & ~config.rows_on_chip),
        ]

        loaded, tag = self.parameters.signature.create(), Signal(tag_layout(design))
        sums = systolic_array(array, design, feeder, config.gradient, loaded)
        results = column_sums(adders, design, sums, tag, config.rectifies, loaded)
        early = delayed(m, feeder.tag.as_value(), design.latency - GRADS_AHEAD, resets=True)
        m.d.comb += [
            loaded.payload.eq(self.parameters.payload),
            loaded.valid.eq(self.parameters.valid & self.parameters.ready),
            tag.eq(Mux(config.gradient, early, delayed(m, early, GRADS_AHEAD, resets=True))),
            kept.valid.eq(results.valid & config.keeps),
            kept.payload.eq(results.payload),
            self.results.valid.eq(results.valid & ~config.keeps),
            self.results.payload.eq(results.payload),
        ]

        m.submodules.marks = marks = Memory(shape=design.array_columns, depth=design.mask_entries, init=[])
        write, read = marks.write_port(), marks.read_port()
        number = Signal.like(write.addr)
        m.d.comb += [
            write.en.eq(results.valid & config.rectifies),
            write.addr.eq(config.marks_to + number),
            write.data.eq(results.payload.mask),
            read.addr.eq(feeder.mask_address),
            mask.eq(read.data),
        ]
        with m.If(begins):
            m.d.sync += number.eq(0)
        with m.Elif(write.en):
            m.d.sync += number.eq(number + 1)
        return m

    def _sequence(self, m: Module, config: Signal, begins: Signal, runs: Signal, idle: Value) -> Signal:
        """Take passes one after the other; how many words, or parameters, of the pass are left."""
        left, quiet = Signal.like(self.passes.payload.count), Signal(range(self._design.settling + 1))
        with m.FSM():
            with m.State("TAKE"):
                m.d.comb += self.passes.ready.eq(1)
                m.d.sync += [config.eq(self.passes.payload), left.eq(self.passes.payload.count)]
                with m.If(self.passes.valid):
                    m.next = "BEGIN"
            with m.State("BEGIN"):
                m.d.comb += begins.eq(1)
                m.d.sync += quiet.eq(0)
                with m.If(config.loads):
                    m.next = "LOAD"
                with m.Else():
                    m.next = "RUN"
            with m.State("LOAD"):
                m.d.comb += self.parameters.ready.eq(left != 0)
                with m.If(self.parameters.valid & self.parameters.ready):
                    m.d.sync += left.eq(left - 1)
                with m.If(left == 0):
                    m.next = "TAKE"
            with m.State("RUN"):
                m.d.comb += runs.eq(1)
                with m.If(self.words.valid & self.words.ready):
                    m.d.sync += left.eq(left - 1)
                m.d.sync += quiet.eq(Mux(idle & (left == 0), quiet + 1, 0))
                with m.If(quiet == self._design.settling):
                    m.next = "TAKE"
        return left

    def _row_memory(self, m: Module, config: Signal, runs: Signal, results: Any) -> Any:
        """Rows of results, as a stream. They are read in the order in which they were written, also while they are (``chained``)."""
        design, rows = self._design, stream.Signature(beat_layout(self._design)).create()
        entry_tiles = design.entry_chunks // design.tile_chunks
        entry_beats = design.entry_chunks // design.beat_chunks
        m.submodules.memory = memory = Memory(
            shape=32 * design.lanes * design.entry_chunks, depth=design.row_entries, init=[]
        )
        write, read = memory.write_port(granularity=32 * design.array_columns), memory.read_port()
        place, tile, num_written = Signal.like(write.addr), Signal.like(config.tiles), Signal.like(config.rows)
        part = tile[: exact_log2(entry_tiles)]
        ends_row = tile + 1 == config.tiles
        m.d.comb += [
            write.en.eq(Mux(results.valid, 1 << part if entry_tiles > 1 else 1, 0)),
            write.addr.eq(config.rows_to + place),
            write.data.eq(Cat(*[results.payload.values.as_value()] * entry_tiles)),
        ]
        with m.If(results.valid):
            m.d.sync += [tile.eq(Mux(ends_row, 0, tile + 1)), num_written.eq(num_written + ends_row)]
            with m.If(ends_row | (part == entry_tiles - 1)):
                m.d.sync += place.eq(place + 1)

        entry, num_read = Signal.like(read.addr), Signal.like(config.rows)
        beat, held = (Signal(range(max(2, design.row_chunks)), name=name) for name in ("beat", "held"))
        beat_part = beat[: exact_log2(entry_beats)]
        ends_read = beat == (config.row_chunks - 1) >> exact_log2(design.beat_chunks)
        is_there = Mux(config.chained, num_read < num_written, num_read < config.rows)
        takes = runs & config.rows_on_chip & is_there & (~rows.valid | rows.ready)
        m.d.comb += [read.en.eq(takes), read.addr.eq(config.rows_from + entry)]
        with m.If(takes):
            m.d.sync += [beat.eq(Mux(ends_read, 0, beat + 1)), held.eq(beat), num_read.eq(num_read + ends_read)]
            with m.If(ends_read | (beat_part == entry_beats - 1)):
                m.d.sync += entry.eq(entry + 1)
        with m.If(takes | rows.ready):
            m.d.sync += rows.valid.eq(takes)
        width = 32 * design.lanes * design.beat_chunks
        m.d.comb += rows.payload.as_value().eq(read.data.word_select(held[: exact_log2(entry_beats)], width))
        return rows
