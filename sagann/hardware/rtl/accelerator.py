"""The kernels joined: passes of a mini-batch's training, one after the other, whose rows stay on chip between them.

The host states each :class:`sagann.hardware.passes.Pass` and streams its words. Rows and gradients of scores come from external memory, scores
and gradients of weights go there. Results of inner layers, and rows of their gradients, lie in the memory of rows, and ReLU's masks beside it.
"""

from __future__ import annotations

from amaranth.hdl import Cat, Module, Mux, ResetInserter, Signal, Value
from amaranth.lib import stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from sagann.hardware.design import KernelDesign
from sagann.hardware.rtl.aggregate import STALLS, Aggregate
from sagann.hardware.rtl.netlist import delayed
from sagann.hardware.rtl.streams import beat_layout, parameters_layout, pass_layout, results_stream, word_layout
from sagann.hardware.rtl.update import GRADS_AHEAD, ColumnSums, Feeder, SystolicArray


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
        aggregate, feeder, rows = Aggregate(design), Feeder(design), _RowMemory(design)
        m.submodules.aggregate = aggregate
        m.submodules.feeder = ResetInserter(begins)(feeder)
        m.submodules.rows = ResetInserter(begins)(rows)
        m.submodules.array = array = SystolicArray(design)
        m.submodules.column_sums = sums = ColumnSums(design)
        left = self._sequence(m, config, begins, runs, aggregate.idle & feeder.idle)

        m.d.comb += [aggregate.begins.eq(begins), aggregate.config.eq(config), self.stalls.eq(aggregate.stalls)]
        m.d.comb += [feeder.config.eq(config), feeder.runs.eq(runs), rows.config.eq(config), rows.runs.eq(runs)]
        takes = runs & (left != 0)
        m.d.comb += [
            aggregate.words.payload.eq(self.words.payload),
            aggregate.words.valid.eq(self.words.valid & takes),
            self.words.ready.eq(aggregate.words.ready & takes),
            aggregate.rows.payload.eq(
                Mux(config.rows_on_chip, rows.rows.payload.as_value(), self.rows.payload.as_value())
            ),
            aggregate.rows.valid.eq(runs & Mux(config.rows_on_chip, rows.rows.valid, self.rows.valid)),
            rows.rows.ready.eq(aggregate.rows.ready & config.rows_on_chip),
            self.rows.ready.eq(aggregate.rows.ready & runs & ~config.rows_on_chip),
        ]
        wiring.connect(m, aggregate.drained, feeder.drained)
        m.d.comb += [aggregate.room.eq(feeder.room), feeder.begins.eq(aggregate.begins_drain)]

        tag = delayed(m, feeder.tag.as_value(), design.latency - GRADS_AHEAD, resets=True)
        result, mask = self.results.payload, sums.results.payload.mask
        m.d.comb += [
            Cat(array.gradient, sums.rectifies).eq(Cat(config.gradient, config.rectifies)),
            Cat(array.feeds, array.first, array.address).eq(Cat(feeder.feeds, feeder.first, feeder.address)),
            array.lanes.eq(feeder.lanes),
            array.grads.eq(feeder.grads),
            sums.sums.eq(array.sums),
            sums.tag.eq(Mux(config.gradient, tag, delayed(m, tag, GRADS_AHEAD, resets=True))),
            rows.results.valid.eq(sums.results.valid & config.keeps),
            rows.results.payload.eq(sums.results.payload),
            self.results.valid.eq(sums.results.valid & ~config.keeps),
            result.eq(sums.results.payload),
        ]
        for kernel in (array, sums):
            m.d.comb += [
                kernel.parameters.payload.eq(self.parameters.payload),
                kernel.parameters.valid.eq(self.parameters.valid & self.parameters.ready),
            ]

        m.submodules.marks = marks = Memory(shape=design.array_columns, depth=design.mask_entries, init=[])
        write, read = marks.write_port(), marks.read_port()
        number = Signal.like(write.addr)
        m.d.comb += [
            write.en.eq(sums.results.valid & config.rectifies),
            write.addr.eq(config.marks_to + number),
            write.data.eq(mask),
            read.addr.eq(feeder.mask_address),
            feeder.mask.eq(read.data),
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


class _RowMemory(wiring.Component):
    """Rows of results. They are read in the order in which they were written, also while they are (``chained``)."""

    def __init__(self, design: KernelDesign) -> None:
        self._design = design
        super().__init__(
            {
                "config": In(pass_layout(design)),
                "runs": In(1),
                "results": In(results_stream(design)),
                "rows": Out(stream.Signature(beat_layout(design))),
            }
        )

    def elaborate(self, platform: object) -> Module:
        design, config, m = self._design, self.config, Module()
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
            write.en.eq(Mux(self.results.valid, 1 << part if entry_tiles > 1 else 1, 0)),
            write.addr.eq(config.rows_to + place),
            write.data.eq(Cat(*[self.results.payload.values.as_value()] * entry_tiles)),
        ]
        with m.If(self.results.valid):
            m.d.sync += [tile.eq(Mux(ends_row, 0, tile + 1)), num_written.eq(num_written + ends_row)]
            with m.If(ends_row | (part == entry_tiles - 1)):
                m.d.sync += place.eq(place + 1)

        entry, num_read = Signal.like(read.addr), Signal.like(config.rows)
        beat, held = (Signal(range(max(2, design.row_chunks)), name=name) for name in ("beat", "held"))
        beat_part = beat[: exact_log2(entry_beats)]
        ends_read = beat == (config.row_chunks - 1) >> exact_log2(design.beat_chunks)
        is_there = Mux(config.chained, num_read < num_written, num_read < config.rows)
        takes = self.runs & config.rows_on_chip & is_there & (~self.rows.valid | self.rows.ready)
        m.d.comb += [read.en.eq(takes), read.addr.eq(config.rows_from + entry)]
        with m.If(takes):
            m.d.sync += [beat.eq(Mux(ends_read, 0, beat + 1)), held.eq(beat), num_read.eq(num_read + ends_read)]
            with m.If(ends_read | (beat_part == entry_beats - 1)):
                m.d.sync += entry.eq(entry + 1)
        with m.If(takes | self.rows.ready):
            m.d.sync += self.rows.valid.eq(takes)
        width = 32 * design.lanes * design.beat_chunks
        m.d.comb += self.rows.payload.as_value().eq(read.data.word_select(held[: exact_log2(entry_beats)], width))
        return m
