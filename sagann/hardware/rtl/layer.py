"""A layer's forward: the aggregate kernel, whose drained rows the update kernel reads on chip."""

from __future__ import annotations

from amaranth.hdl import Module
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from sagann.hardware.design import KernelDesign
from sagann.hardware.rtl.aggregate import STALLS, Aggregate, beat_layout, word_layout
from sagann.hardware.rtl.delay import delayed
from sagann.hardware.rtl.update import (
    ColumnSums,
    Feeder,
    SystolicArray,
    biases_stream,
    results_stream,
    weights_stream,
)


class Layer(wiring.Component):
    """Aggregates rows, and maps the sums by weights.

    Ports:
        begins, rows, words, stalls: as for :class:`sagann.hardware.rtl.aggregate.Aggregate`.
        chunks, tiles, rectifies: of rows and of results; constant while a program runs.
        weights, biases: written only while no program runs.
        results: tiles of rows; a row is the number of a destination among n that are drained together.
        feeder_idle: the array has read all rows that were drained so far.
    """

    def __init__(self, design: KernelDesign) -> None:
        self._design = design
        super().__init__(
            {
                "begins": In(1),
                "chunks": In(range(design.row_chunks + 1)),
                "tiles": In(range(design.array_weights + 1)),
                "rectifies": In(1),
                "rows": In(stream.Signature(beat_layout(design))),
                "words": In(stream.Signature(word_layout(design))),
                "weights": In(weights_stream(design)),
                "biases": In(biases_stream(design)),
                "results": Out(results_stream(design)),
                "feeder_idle": Out(1),
                "stalls": Out(STALLS),
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
        wiring.connect(m, aggregate.drained, feeder.drained)
        wiring.connect(m, wiring.flipped(self.weights), array.weights)
        wiring.connect(m, wiring.flipped(self.biases), sums.biases)
        wiring.connect(m, sums.results, wiring.flipped(self.results))
        m.d.comb += [
            aggregate.begins.eq(self.begins),
            aggregate.chunks.eq(self.chunks),
            aggregate.room.eq(feeder.room),
            feeder.chunks.eq(self.chunks),
            feeder.tiles.eq(self.tiles),
            feeder.begins.eq(aggregate.begins_drain),
            array.feeds.eq(feeder.tag.valid),
            array.lanes.eq(feeder.lanes),
            array.address.eq(feeder.address),
            sums.sums.eq(array.sums),
            sums.tag.eq(delayed(m, feeder.tag.as_value(), array.latency, resets=True)),
            sums.rectifies.eq(self.rectifies),
            self.feeder_idle.eq(feeder.idle),
            self.stalls.eq(aggregate.stalls),
        ]
        return m
