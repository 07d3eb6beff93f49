"""The update kernel: a systolic array that multiplies drained rows by weights, or sums the gradient of the weights (HyScale-GNN IV-C).

In *weights mode*, a row of lanes enters the array from the left, each array row ``ADD_STAGES`` cycles behind the one above, and sums flow down,
so that no sum waits for itself. In *gradient mode*, gradients flow down beside the rows that enter, and each multiply-accumulator sums their
products in its memory, where the weights lie otherwise.
"""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out
from amaranth.utils import ceil_log2, exact_log2

from sagann.hardware.design import ADD_STAGES, HAZARD, MUL_STAGES, KernelDesign
from sagann.hardware.rtl.aggregate import chunk_layout, drained_stream
from sagann.hardware.rtl.delay import delayed
from sagann.hardware.rtl.float32 import Add, Mul

_TO_SUM = 1 + MUL_STAGES
"Cycles from an operand's arrival at a multiply-accumulator to its product."


def tag_layout(design: KernelDesign) -> data.StructLayout:
    """Labels sums on their way through the array: their row, their tile of columns, and whether their chunk is the first or last of the row."""
    return data.StructLayout(
        {
            "valid": 1,
            "row": range(max(2, design.scatter_pes)),
            "tile": range(max(2, design.array_weights)),
            "first": 1,
            "last": 1,
        }
    )


def weights_stream(design: KernelDesign) -> stream.Signature:
    """Weights of a row of the array, which its multiply-accumulators write to an address."""
    layout = {"row": range(max(2, design.lanes)), "address": ceil_log2(design.array_weights)}
    return _columns_stream(design, layout)


def biases_stream(design: KernelDesign) -> stream.Signature:
    """The bias of a tile of columns."""
    return _columns_stream(design, {"tile": range(max(2, design.array_weights))})


def results_stream(design: KernelDesign) -> stream.Signature:
    """A tile of a row, and where a value is not zero, so where a rectified one is positive."""
    tag = tag_layout(design)
    return _columns_stream(
        design, {"row": tag["row"].shape, "tile": tag["tile"].shape, "mask": design.array_columns}
    )


def _columns_stream(design: KernelDesign, layout: dict[str, Any]) -> stream.Signature:
    """A stream of values for all columns, which are taken as they come."""
    values = data.ArrayLayout(32, design.array_columns)
    return stream.Signature(data.StructLayout({**layout, "values": values}), always_ready=True)


class Feeder(wiring.Component):
    """Two sets of n row buffers. One is filled by drained chunks while the array reads the other one: chunk by chunk, row by row, tile by tile.

    Ports:
        chunks, tiles: of a row, and of its result; constant while a program runs.
        begins, room: n destinations are about to be drained; whether there is room for n more.
        drained: their chunks.
        lanes, address, tag: inputs of the array, and the tag of their sums.
        idle: the array has read all rows that were drained so far.
    """

    def __init__(self, design: KernelDesign) -> None:
        self._design = design
        super().__init__(
            {
                "chunks": In(range(design.row_chunks + 1)),
                "tiles": In(range(design.array_weights + 1)),
                "begins": In(1),
                "drained": In(drained_stream(design)),
                "room": Out(1),
                "lanes": Out(chunk_layout(design)),
                "address": Out(ceil_log2(design.array_weights)),
                "tag": Out(tag_layout(design)),
                "idle": Out(1),
            }
        )

    def elaborate(self, platform: object) -> Module:
        design, m = self._design, Module()
        n, chunk_bits = design.scatter_pes, exact_log2(design.row_chunks)
        filling, reading, filled = Signal(), Signal(), Signal(range(design.row_chunks))
        num_taken, num_full = Signal(2), Signal(2)
        ends_fill = self.drained.valid & (filled + 1 == self.chunks)

        # Counters of the feed, and cycles since a chunk began: the next one begins HAZARD cycles later at the earliest.
        chunk, row, tile = Signal(range(design.row_chunks)), Signal.like(self.tag.row), Signal.like(self.tag.tile)
        since, is_over = Signal(range(n * design.array_weights + HAZARD)), Signal()
        address = Signal.like(self.address)
        reads = num_full != 0
        ends_tile, ends_row = tile + 1 == self.tiles, row == n - 1
        all_fed = is_over | (ends_tile & ends_row)
        ends_chunk = reads & all_fed & (since >= HAZARD - 1)
        ends_read = ends_chunk & (chunk + 1 == self.chunks)
        with m.If(reads):
            m.d.sync += since.eq(Mux(ends_chunk, 0, since + 1))
            m.d.sync += is_over.eq(all_fed & ~ends_chunk)
            with m.If(~is_over):
                m.d.sync += tile.eq(Mux(ends_tile, 0, tile + 1))
                with m.If(ends_tile):
                    m.d.sync += row.eq(Mux(ends_row, 0, row + 1))
        with m.If(ends_chunk):
            m.d.sync += [
                chunk.eq(Mux(ends_read, 0, chunk + 1)),
                address.eq(Mux(ends_read, 0, address + self.tiles)),
            ]
        with m.If(self.drained.valid):
            m.d.sync += filled.eq(Mux(ends_fill, 0, filled + 1))
        m.d.sync += [
            filling.eq(filling ^ ends_fill),
            reading.eq(reading ^ ends_read),
            num_taken.eq(num_taken + self.begins - ends_read),
            num_full.eq(num_full + ends_fill - ends_read),
        ]
        m.d.comb += [self.room.eq(num_taken < 2), self.idle.eq(num_taken == 0)]

        rows = []
        for number in range(n):
            m.submodules[f"row{number}"] = memory = Memory(
                shape=chunk_layout(design), depth=2 << chunk_bits, init=[]
            )
            write, read = memory.write_port(), memory.read_port()
            m.d.comb += [
                write.en.eq(self.drained.valid),
                write.addr.eq(Cat(filled[:chunk_bits], filling)),
                write.data.eq(self.drained.payload[number]),
                read.addr.eq(Cat(chunk[:chunk_bits], reading)),
            ]
            rows.append(read.data.as_value())
        m.d.sync += [
            self.address.eq(address + tile),
            self.tag.valid.eq(reads & ~is_over),
            self.tag.row.eq(row),
            self.tag.tile.eq(tile),
            self.tag.first.eq(chunk == 0),
            self.tag.last.eq(chunk + 1 == self.chunks),
        ]
        with m.Switch(self.tag.row):
            for number, each in enumerate(rows):
                with m.Case(number):
                    m.d.comb += self.lanes.eq(each)
        return m


class SystolicArray(wiring.Component):
    """``lanes`` x ``array_columns`` multiply-accumulators.

    Ports:
        gradient: the mode; constant while the array is busy.
        feeds, lanes, address: operands of a cycle, and which of the weights, or sums, they meet. In gradient mode those that meet one sum are
            ``HAZARD`` cycles apart.
        grads, first: in gradient mode, the gradients of a tile of columns, and whether sums begin at zero.
        weights: written only while nothing is fed.
        sums: of each column, ``latency`` cycles after the lanes.
    """

    def __init__(self, design: KernelDesign) -> None:
        self._design = design
        columns = data.ArrayLayout(32, design.array_columns)
        address = ceil_log2(design.array_weights)
        self.latency = ADD_STAGES * design.lanes + _TO_SUM + design.array_columns - 1
        super().__init__(
            {
                "gradient": In(1),
                "feeds": In(1),
                "lanes": In(chunk_layout(design)),
                "address": In(address),
                "grads": In(columns),
                "first": In(1),
                "weights": In(weights_stream(design)),
                "sums": Out(columns),
            }
        )

    def elaborate(self, platform: object) -> Module:
        design, m = self._design, Module()
        # In weights mode sums begin at zero; a gradient reaches column j when the lanes do.
        above: list[Value] = [
            Mux(self.gradient, delayed(m, self.grads[column], column), Const(0, 32))
            for column in range(design.array_columns)
        ]
        control = Cat(self.address, self.first, self.feeds & self.gradient)
        weights = self.weights.payload
        for row in range(design.lanes):
            behind = ADD_STAGES * row
            operand = delayed(m, self.lanes[row], behind)
            controlled = delayed(m, control, behind, resets=True)
            for column in range(design.array_columns):
                m.submodules[f"mac{row}_{column}"] = mac = _Mac(design)
                m.d.comb += [
                    mac.gradient.eq(self.gradient),
                    mac.operand.eq(operand),
                    Cat(mac.address, mac.first, mac.adds).eq(controlled),
                    mac.above.eq(above[column]),
                    mac.loads.eq(self.weights.valid & (weights.row == row)),
                    mac.load_address.eq(weights.address),
                    mac.load_value.eq(weights.values[column]),
                ]
                above[column] = mac.below
                operand, controlled = delayed(m, operand, 1), delayed(m, controlled, 1, resets=True)
        for column, total in enumerate(above):
            m.d.comb += self.sums[column].eq(delayed(m, total, design.array_columns - 1 - column))
        return m


class _Mac(wiring.Component):
    """A multiplier, an adder, and a memory of weights, or of sums."""

    def __init__(self, design: KernelDesign) -> None:
        self._design = design
        address = ceil_log2(design.array_weights)
        super().__init__(
            {
                "gradient": In(1),
                "operand": In(32),
                "address": In(address),
                "first": In(1),
                "adds": In(1),
                "above": In(32),
                "loads": In(1),
                "load_address": In(address),
                "load_value": In(32),
                "below": Out(32),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.memory = memory = Memory(shape=32, depth=self._design.array_weights, init=[])
        m.submodules.mul, m.submodules.add = mul, add = Mul(), Add()
        write, read = memory.write_port(), memory.read_port()
        is_added = delayed(m, self.adds, _TO_SUM + ADD_STAGES, resets=True)
        begins = delayed(m, self.first, _TO_SUM)
        m.d.comb += [
            read.addr.eq(Mux(self.gradient, delayed(m, self.address, _TO_SUM - 1), self.address)),
            mul.a.eq(delayed(m, self.operand, 1)),
            mul.b.eq(Mux(self.gradient, delayed(m, self.above, 1), read.data)),
            add.a.eq(Mux(self.gradient, Mux(begins, 0, read.data), self.above)),
            add.b.eq(mul.result),
            self.below.eq(Mux(self.gradient, delayed(m, self.above, ADD_STAGES), add.result)),
            write.en.eq(self.loads | is_added),
            write.addr.eq(Mux(is_added, delayed(m, self.address, _TO_SUM + ADD_STAGES), self.load_address)),
            write.data.eq(Mux(is_added, add.result, self.load_value)),
        ]
        return m


class ColumnSums(wiring.Component):
    """Adds the sums of the chunks of a row to its bias, and rectifies the results.

    Ports:
        sums, tag: sums of a chunk, and their tag.
        rectifies: whether negative results are zero; constant while results are under way.
        biases: written only while no sums arrive.
    """

    def __init__(self, design: KernelDesign) -> None:
        self._design = design
        super().__init__(
            {
                "sums": In(data.ArrayLayout(32, design.array_columns)),
                "tag": In(tag_layout(design)),
                "rectifies": In(1),
                "biases": In(biases_stream(design)),
                "results": Out(results_stream(design)),
            }
        )

    def elaborate(self, platform: object) -> Module:
        design, m = self._design, Module()
        columns = data.ArrayLayout(32, design.array_columns)
        m.submodules.biases = biases = Memory(shape=columns, depth=design.array_weights, init=[])
        m.submodules.partial = partial = Memory(
            shape=columns, depth=design.scatter_pes * design.array_weights, init=[]
        )
        load, bias = biases.write_port(), biases.read_port()
        write, read = partial.write_port(), partial.read_port()
        tag, result = self.tag, self.results.payload
        place = Cat(tag.row[: exact_log2(design.scatter_pes)], tag.tile)
        m.d.comb += [
            load.en.eq(self.biases.valid),
            load.addr.eq(self.biases.payload.tile),
            load.data.eq(self.biases.payload.values),
            bias.addr.eq(tag.tile),
            read.addr.eq(place),
            write.en.eq(delayed(m, tag.valid & ~tag.last, 1 + ADD_STAGES, resets=True)),
            write.addr.eq(delayed(m, place, 1 + ADD_STAGES)),
            self.results.valid.eq(delayed(m, tag.valid & tag.last, 1 + ADD_STAGES, resets=True)),
            result.row.eq(delayed(m, tag.row, 1 + ADD_STAGES)),
            result.tile.eq(delayed(m, tag.tile, 1 + ADD_STAGES)),
        ]
        begins = delayed(m, tag.first, 1)
        for column in range(design.array_columns):
            m.submodules[f"add{column}"] = add = Add()
            is_negative = add.result[31] & self.rectifies
            m.d.comb += [
                add.a.eq(Mux(begins, bias.data[column], read.data[column])),
                add.b.eq(delayed(m, self.sums[column], 1)),
                write.data[column].eq(add.result),
                result.values[column].eq(Mux(is_negative, 0, add.result)),
                result.mask[column].eq(~is_negative & add.result[:31].any()),
            ]
        return m
