"""A layer's forward: the aggregate kernel, whose drained rows the update kernel reads on chip."""

from __future__ import annotations

from amaranth.hdl import Cat, Module
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import ceil_log2

from sagann.hardware.design import KernelDesign
from sagann.hardware.rtl.aggregate import Aggregate, word_layout
from sagann.hardware.rtl.delay import delayed
from sagann.hardware.rtl.update import ColumnSums, Feeder, SystolicArray, result_layout


class Layer(wiring.Component):
    """Aggregates rows, and maps the sums by weights.

    Ports:
        begins: a program begins, as for :class:`sagann.hardware.rtl.aggregate.Aggregate`.
        chunks, tiles, rectifies: of rows and of results; constant while a program runs.
        rows, words: as for :class:`sagann.hardware.rtl.aggregate.Aggregate`.
        loads, load_row, load_address, load_values: weights, as for :class:`sagann.hardware.rtl.update.SystolicArray`, while no program runs.
        loads_bias: ``load_values`` are the bias of tile ``load_address``.
        result: tiles of rows, which are taken as they come; a row is the number of a destination among n that are drained together.
        feeder_idle: the array has read all rows that were drained so far.
        stalls: cycles in which a word waited for rows, for room before the array, or for sums.
    """

    def __init__(self, design: KernelDesign) -> None:
        self._design = design
        chunk, columns = data.ArrayLayout(32, design.lanes), data.ArrayLayout(32, design.array_columns)
        super().__init__(
            {
                "begins": In(1),
                "chunks": In(range(design.row_chunks + 1)),
                "tiles": In(range(design.array_weights + 1)),
                "rectifies": In(1),
                "rows": In(stream.Signature(data.ArrayLayout(chunk, design.beat_chunks))),
                "words": In(stream.Signature(word_layout(design))),
                "loads": In(1),
                "loads_bias": In(1),
                "load_row": In(range(max(2, design.lanes))),
                "load_address": In(ceil_log2(design.array_weights)),
                "load_values": In(columns),
                "result": Out(wiring.Signature(result_layout(design))),
                "feeder_idle": Out(1),
                "stalls": Out(data.ArrayLayout(32, 3)),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.aggregate = aggregate = Aggregate(self._design)
        m.submodules.feeder = feeder = Feeder(self._design)
        m.submodules.array = array = SystolicArray(self._design)
        m.submodules.column_sums = sums = ColumnSums(self._design)
        wiring.connect(m, wiring.flipped(self.rows), aggregate.rows)
        wiring.connect(m, wiring.flipped(self.words), aggregate.words)
        wiring.connect(m, sums.result, wiring.flipped(self.result))
        tags = Cat(feeder.feeds, feeder.row, feeder.tile, feeder.first, feeder.last)
        late = delayed(m, tags, array.latency, resets=True)
        m.d.comb += [
            aggregate.begins.eq(self.begins),
            aggregate.chunks.eq(self.chunks),
            aggregate.room.eq(feeder.room),
            feeder.chunks.eq(self.chunks),
            feeder.tiles.eq(self.tiles),
            feeder.begins.eq(aggregate.begins_drain),
            feeder.valid.eq(aggregate.drained.valid),
            feeder.drained.eq(aggregate.drained.chunks),
            array.feeds.eq(feeder.feeds),
            array.lanes.eq(feeder.lanes),
            array.address.eq(feeder.address),
            array.loads.eq(self.loads),
            array.load_row.eq(self.load_row),
            array.load_address.eq(self.load_address),
            array.load_values.eq(self.load_values),
            sums.sums.eq(array.sums),
            Cat(sums.valid, sums.row, sums.tile, sums.first, sums.last).eq(late),
            sums.rectifies.eq(self.rectifies),
            sums.loads.eq(self.loads_bias),
            sums.load_tile.eq(self.load_address),
            sums.load_values.eq(self.load_values),
            self.stalls.eq(Cat(aggregate.row_stalls, aggregate.room_stalls, aggregate.hazard_stalls)),
        ]
        m.d.comb += self.feeder_idle.eq(feeder.idle)
        return m
