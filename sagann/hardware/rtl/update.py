"""The update kernel: a systolic array that multiplies drained rows by weights, or sums the gradient of the weights (HyScale-GNN IV-C).

In *weights mode*, a row of lanes enters the array from the left, each array row ``ADD_STAGES`` cycles behind the one above, and sums flow down,
so that no sum waits for itself. In *gradient mode*, gradients flow down beside the rows that enter, and each multiply-accumulator sums their
products in its memory, where the weights lie otherwise.
"""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Array, Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import data
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out
from amaranth.utils import ceil_log2, exact_log2

from sagann.hardware.design import ADD_STAGES, HAZARD, MUL_STAGES, KernelDesign
from sagann.hardware.rtl.float32 import Add, Mul
from sagann.hardware.rtl.netlist import Part, delayed
from sagann.hardware.rtl.streams import (
    chunk_layout,
    columns_layout,
    results_stream,
    tag_layout,
)

_TO_SUM = GRADS_AHEAD = 1 + MUL_STAGES
"Cycles from an operand's arrival at a multiply-accumulator to its product."
_ONE = 0x3F800000


class Feeder:
    """Two sets of n row buffers. One is filled by drained chunks while the array reads the other one.

    In weights mode the array reads chunk by chunk, row by row, tile by tile. In gradient mode a set also has the gradients of its rows, and the
    array reads row by row, chunk by chunk, tile by tile. To read gradients of weights out, unit vectors take the place of rows; the row after
    the last reads those of biases.

    Args:
        m: module that it is made in.
        config: the pass; constant while it runs.
        runs: whether it does.
        begins: n destinations are about to be drained.
        drained: a stream of their chunks.
        mask: of the tile at ``mask_address`` a cycle before, which masks what is read.
    """

    def __init__(
        self, m: Module, design: KernelDesign, config: Any, *, runs: Value, begins: Value, drained: Any, mask: Value
    ) -> None:
        self.room, self.idle = Signal(), Signal()
        "Whether there is room for n more destinations; whether the array has read all that it is to read so far."
        self.mask_address = Signal(ceil_log2(max(2, design.mask_entries)))
        self.lanes, self.grads = Signal(chunk_layout(design)), Signal(columns_layout(design))
        self.address, self.feeds, self.first = Signal(ceil_log2(max(2, design.array_weights))), Signal(), Signal()
        "With lanes and gradients, inputs of the array."
        self.tag = Signal(tag_layout(design))
        "Of their sums."
        self._design, self._config, self._drained, self._mask = design, config, drained, mask
        n = design.scatter_pes
        # Filling a set.
        filling, reading, filled = Signal(), Signal(), Signal(range(design.row_chunks))
        num_taken, num_full = Signal(2), Signal(2)
        num_rows = Array(Signal.like(drained.payload.rows, name=f"rows{number}") for number in range(2))
        fill = drained.payload
        last = Mux(fill.grads, config.grad_chunks, config.drain_chunks)
        ends_row_fill = drained.valid & (filled + 1 == last)
        ends_fill = ends_row_fill & (fill.grads | ~config.gradient)
        with m.If(drained.valid):
            m.d.sync += [filled.eq(Mux(ends_row_fill, 0, filled + 1)), num_rows[filling].eq(fill.rows)]

        # Reading one: two loops, of which the inner one has a loop over tiles. An outer iteration takes HAZARD cycles at least.
        outer = Signal(range(max(design.row_chunks + 1, n)))
        inner = Signal(range(max(design.row_chunks, n, design.lanes)))
        tile = Signal(range(max(2, design.array_weights)))
        since, is_over, was_read = Signal(range(HAZARD)), Signal(), Signal()
        biases = config.reads_out & (outer == config.drain_chunks)
        num_outer = Signal(range(max(design.row_chunks + 1, n) + 1))
        num_inner = Signal(range(max(design.row_chunks, n, design.lanes) + 1))
        with m.If(config.reads_out):
            m.d.comb += [num_outer.eq(config.drain_chunks + 1), num_inner.eq(Mux(biases, 1, design.lanes))]
        with m.Elif(config.gradient):
            m.d.comb += [num_outer.eq(num_rows[reading]), num_inner.eq(config.drain_chunks)]
        with m.Else():
            m.d.comb += [num_outer.eq(config.drain_chunks), num_inner.eq(num_rows[reading])]
        chunk, row = Mux(config.gradient, inner, outer), Mux(config.gradient, outer, inner)
        reads = (num_full != 0) | (runs & config.reads_out & ~was_read)
        feeds = reads & ~is_over
        ends_tile = tile + 1 == config.tiles
        all_fed = is_over | (ends_tile & (inner + 1 == num_inner))
        ends_outer = reads & all_fed & (since == HAZARD - 1)
        ends_read = ends_outer & (outer + 1 == num_outer)
        # The weights of a chunk, the masks of a row and of the rows of a set, and whether sums of gradients begin.
        line = Signal.like(self.address)
        marks, set_marks = Signal.like(self.mask_address), Signal.like(self.mask_address)
        is_fresh = Signal(init=1)
        next_marks = marks + Mux(Mux(config.gradient, ends_outer, feeds & ends_tile), config.mark_tiles, 0)
        with m.If(reads):
            m.d.sync += [
                since.eq(Mux(ends_outer, 0, since + (since != HAZARD - 1))),
                is_over.eq(all_fed & ~ends_outer),
                marks.eq(next_marks),
            ]
        with m.If(feeds):
            m.d.sync += tile.eq(Mux(ends_tile, 0, tile + 1))
            with m.If(ends_tile):
                m.d.sync += inner.eq(Mux(all_fed, 0, inner + 1))
                with m.If(config.gradient):
                    m.d.sync += line.eq(line + config.tiles)
        with m.If(ends_outer):
            m.d.sync += outer.eq(Mux(ends_read, 0, outer + 1))
            with m.If(config.gradient):
                m.d.sync += [line.eq(0), is_fresh.eq(0)]
            with m.Else():
                m.d.sync += [
                    line.eq(Mux(ends_read, 0, line + config.tiles)),
                    marks.eq(Mux(ends_read, next_marks, set_marks)),
                ]
        with m.If(ends_read):
            m.d.sync += [set_marks.eq(next_marks), was_read.eq(1)]
        m.d.sync += [
            filling.eq(filling ^ ends_fill),
            reading.eq(reading ^ (ends_read & ~config.reads_out)),
            num_taken.eq(num_taken + begins - (ends_read & ~config.reads_out)),
            num_full.eq(num_full + ends_fill - (ends_read & ~config.reads_out)),
        ]
        m.d.comb += [
            self.room.eq(num_taken < 2),
            self.idle.eq((num_taken == 0) & (~config.reads_out | was_read)),
            self.mask_address.eq(
                config.marks_from + marks + Mux(config.gradient, tile, chunk >> exact_log2(design.tile_chunks))
            ),
        ]
        is_first = config.begins_sums & is_fresh
        m.d.sync += [
            # Biases meet no weights: the array multiplies some by zero.
            self.address.eq(config.weights + Mux(biases, 0, line) + tile),
            self.feeds.eq(feeds),
            self.first.eq(is_first),
            self.tag.valid.eq(feeds & (~config.gradient | (chunk == 0))),
            self.tag.row.eq(Mux(config.gradient | config.reads_out, 0, row)),
            self.tag.tile.eq(config.biases + tile),
            self.tag.first.eq(Mux(config.reads_out, ~biases, Mux(config.gradient, is_first, chunk == 0))),
            self.tag.last.eq(config.reads_out | (~config.gradient & (chunk + 1 == config.drain_chunks))),
        ]
        self._read(m, Cat(chunk[: exact_log2(design.row_chunks)], reading), tile, (filled, filling), row)
        with m.If(delayed(m, config.reads_out, 1)):
            unit = delayed(m, Mux(biases, design.lanes, inner), 1)
            for lane in range(design.lanes):
                m.d.comb += self.lanes[lane].eq(Mux(unit == lane, _ONE, 0))

    def _read(self, m: Module, place: Value, tile: Value, fill: tuple[Value, Value], row: Value) -> None:
        """The row buffers: of drained rows, chunk by chunk, and of gradients, which are read tile by tile."""
        design, config, drained = self._design, self._config, self._drained.payload
        (filled, filling), chunk_bits = fill, exact_log2(design.row_chunks)
        part_bits = min(exact_log2(design.tile_chunks), chunk_bits)
        tile_bits = chunk_bits - part_bits
        mask = Mux(config.masks, self._mask, (1 << design.array_columns) - 1)
        part = delayed(m, place[:part_bits], 1) if part_bits else Const(0, 1)
        lanes, grads = [], []
        for number in range(design.scatter_pes):
            m.submodules[f"row{number}"] = rows = Memory(shape=chunk_layout(design), depth=2 << chunk_bits, init=[])
            m.submodules[f"grads{number}"] = tiles = Memory(
                shape=columns_layout(design), depth=2 << tile_bits, init=[]
            )
            write, write_grads = rows.write_port(), tiles.write_port(granularity=design.lanes)
            read, read_grads = rows.read_port(), tiles.read_port()
            # The first chunk of a tile clears the others, which a narrower row does not have.
            is_first = filled[:part_bits] == 0
            enabled = Mux(is_first, (1 << design.tile_chunks) - 1, 1 << filled[:part_bits])
            others = [Mux(is_first, 0, drained.chunks[number].as_value())] * ((1 << part_bits) - 1)
            m.d.comb += [
                write.en.eq(self._drained.valid & ~drained.grads),
                write.addr.eq(Cat(filled[:chunk_bits], filling)),
                write.data.eq(drained.chunks[number]),
                read.addr.eq(place),
                write_grads.en.eq(Mux(self._drained.valid & drained.grads, enabled, 0)),
                write_grads.addr.eq(Cat(filled[part_bits:chunk_bits], filling)),
                write_grads.data.eq(Cat(drained.chunks[number], *others)),
                read_grads.addr.eq(Cat(tile[:tile_bits], place[-1])),
            ]
            lanes.append(read.data.as_value())
            grads.append(read_grads.data.as_value())
        with m.Switch(delayed(m, row, 1)):
            for number in range(design.scatter_pes):
                with m.Case(number):
                    for lane in range(design.lanes):
                        marked = mask.bit_select(part * design.lanes + lane, 1) | config.gradient
                        m.d.comb += self.lanes[lane].eq(Mux(marked, lanes[number].word_select(lane, 32), 0))
                    for column in range(design.array_columns):
                        m.d.comb += self.grads[column].eq(
                            Mux(mask[column], grads[number].word_select(column, 32), 0)
                        )


def systolic_array(m: Module, design: KernelDesign, fed: Feeder, gradient: Value, parameters: Any) -> Signal:
    """``lanes`` x ``array_columns`` multiply-accumulators.

    Args:
        fed: gives the operands. In gradient mode those that meet one sum are ``HAZARD`` cycles apart.
        gradient: the mode; constant while the array is busy.
        parameters: a stream, which gives none while anything is fed.
    Returns:
        The sums of each column, ``KernelDesign.latency`` cycles after the lanes. In gradient mode, the gradients ``GRADS_AHEAD`` cycles before that.
    """
    # In weights mode sums begin at zero; a gradient reaches column j when the lanes do.
    m.submodules.enters, m.submodules.leaves = enters, leaves = _Skew(design), _Skew(design)
    above = Mux(gradient, enters.skewed.as_value(), Const(0, 32 * design.array_columns))
    control, weights = Cat(fed.address, fed.first, fed.feeds & gradient), parameters.payload
    for number in range(design.lanes):
        m.submodules[f"row{number}"] = row = _ArrayRow(design)
        behind = ADD_STAGES * number
        m.d.comb += [
            row.gradient.eq(gradient),
            row.operand.eq(delayed(m, fed.lanes[number], behind)),
            row.control.eq(delayed(m, control, behind, resets=True)),
            row.above.eq(above),
            row.loads.eq(parameters.valid & (weights.row == number)),
            row.load_address.eq(weights.address),
            row.load_values.eq(weights.values),
        ]
        above = row.below
    sums = Signal(columns_layout(design))
    m.d.comb += enters.columns.eq(fed.grads)
    for column in range(design.array_columns):
        other = design.array_columns - 1 - column
        m.d.comb += [leaves.columns[other].eq(row.below[column]), sums[column].eq(leaves.skewed[other])]
    return sums


class _Skew(Part):
    """Delays each column by as many cycles as its number."""

    def __init__(self, design: KernelDesign) -> None:
        columns = columns_layout(design)
        super().__init__({"columns": In(columns), "skewed": Out(columns)})

    def circuit(self) -> Module:
        m = Module()
        for number, column in enumerate(self.columns):
            m.d.comb += self.skewed[number].eq(delayed(m, column, number))
        return m


class _ArrayRow(Part):
    """A row of the array. An operand, and what is done with it, reach each multiply-accumulator a cycle after the one before."""

    def __init__(self, design: KernelDesign) -> None:
        self._design = design
        columns, address = columns_layout(design), ceil_log2(design.array_weights)
        self._control = data.StructLayout({"address": address, "first": 1, "adds": 1})
        super().__init__(
            {
                "gradient": In(1),
                "operand": In(32),
                "control": In(self._control),
                "above": In(columns),
                "loads": In(1),
                "load_address": In(address),
                "load_values": In(columns),
                "below": Out(columns),
            }
        )

    def circuit(self) -> Module:
        design, m = self._design, Module()
        operand, controls = delayed(m, self.operand, 1), [self.control]
        for _ in range(design.array_columns + _TO_SUM + ADD_STAGES):
            controls.append(data.View(self._control, delayed(m, controls[-1].as_value(), 1, resets=True)))
        for column in range(design.array_columns):
            m.submodules[f"memory{column}"] = memory = Memory(shape=32, depth=design.array_weights, init=[])
            m.submodules[f"mul{column}"], m.submodules[f"add{column}"] = mul, add = Mul(), Add()
            write, read = memory.write_port(), memory.read_port()
            above, ends = self.above[column], controls[column + _TO_SUM + ADD_STAGES]
            sums_from = controls[column + _TO_SUM - 1].address
            sums = Mux(controls[column + _TO_SUM].first, 0, read.data)
            m.d.comb += [
                read.addr.eq(Mux(self.gradient, sums_from, controls[column].address)),
                mul.a.eq(operand),
                mul.b.eq(Mux(self.gradient, delayed(m, above, 1), read.data)),
                add.a.eq(Mux(self.gradient, sums, above)),
                add.b.eq(mul.result),
                self.below[column].eq(Mux(self.gradient, delayed(m, above, ADD_STAGES), add.result)),
                write.en.eq(self.loads | ends.adds),
                write.addr.eq(Mux(ends.adds, ends.address, self.load_address)),
                write.data.eq(Mux(ends.adds, add.result, self.load_values[column])),
            ]
            operand = delayed(m, operand, 1)
        return m


def column_sums(m: Module, design: KernelDesign, sums: Signal, tag: Any, rectifies: Value, parameters: Any) -> Any:
    """Adds the sums of the chunks of a row to its bias, and rectifies the results; or adds gradients of a tile up, for that of its bias.

    Args:
        sums, tag: sums of a chunk, and their tag.
        rectifies: whether negative results are zero; constant while results are under way.
        parameters: a stream, which gives none while sums arrive.
    """
    results = results_stream(design).create()
    columns, result = columns_layout(design), results.payload
    m.submodules.biases = biases = Memory(shape=columns, depth=design.array_weights, init=[])
    m.submodules.partial = partial = Memory(shape=columns, depth=design.scatter_pes * design.array_weights, init=[])
    load, bias = biases.write_port(), biases.read_port()
    write, read = partial.write_port(), partial.read_port()
    place = Cat(tag.row[: exact_log2(design.scatter_pes)], tag.tile)
    m.d.comb += [
        load.en.eq(parameters.valid & (parameters.payload.row == design.lanes)),
        load.addr.eq(parameters.payload.address),
        load.data.eq(parameters.payload.values),
        bias.addr.eq(tag.tile),
        read.addr.eq(place),
        write.en.eq(delayed(m, tag.valid & ~tag.last, 1 + ADD_STAGES, resets=True)),
        write.addr.eq(delayed(m, place, 1 + ADD_STAGES)),
        results.valid.eq(delayed(m, tag.valid & tag.last, 1 + ADD_STAGES, resets=True)),
    ]
    begins = delayed(m, tag.first, 1)
    for column in range(design.array_columns):
        m.submodules[f"add{column}"] = add = Add()
        is_negative = add.result[31] & rectifies
        m.d.comb += [
            add.a.eq(Mux(begins, bias.data[column], read.data[column])),
            add.b.eq(delayed(m, sums[column], 1)),
            write.data[column].eq(add.result),
            result.values[column].eq(Mux(is_negative, 0, add.result)),
            result.mask[column].eq(~is_negative & add.result[:31].any()),
        ]
    return results
