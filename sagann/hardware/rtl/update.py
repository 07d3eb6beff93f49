"""The update kernel: a systolic array that multiplies drained rows by weights, or sums the gradient of the weights (HyScale-GNN IV-C).

In *weights mode*, a row of lanes enters the array from the left, each array row ``ADD_STAGES`` cycles behind the one above, and sums flow down,
so that no sum waits for itself. In *gradient mode*, gradients flow down beside the rows that enter, and each multiply-accumulator sums their
products in its memory, where the weights lie otherwise.
"""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import data, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out
from amaranth.utils import ceil_log2, exact_log2

from sagann.hardware.design import ADD_STAGES, HAZARD, MUL_STAGES, KernelDesign
from sagann.hardware.rtl.delay import delayed
from sagann.hardware.rtl.float32 import Add, Mul

_TO_SUM = 1 + MUL_STAGES
"Cycles from an operand's arrival at a multiply-accumulator to its product."


def result_layout(design: KernelDesign) -> dict[str, Any]:
    """What comes out of the update kernel in a cycle: a tile of a row, and where a value is not zero, so where a rectified one is positive."""
    return {
        "valid": Out(1),
        "row": Out(range(max(2, design.scatter_pes))),
        "tile": Out(range(max(2, design.array_weights))),
        "values": Out(data.ArrayLayout(32, design.array_columns)),
        "mask": Out(design.array_columns),
    }


class Feeder(wiring.Component):
    """Two sets of n row buffers. One is filled by drained chunks while the array reads the other one: chunk by chunk, row by row, tile by tile."""

    def __init__(self, design: KernelDesign) -> None:
        self._design = design
        chunk = data.ArrayLayout(32, design.lanes)
        super().__init__(
            {
                "chunks": In(range(design.row_chunks + 1)),
                "tiles": In(range(design.array_weights + 1)),
                "begins": In(1),
                "valid": In(1),
                "drained": In(data.ArrayLayout(chunk, design.scatter_pes)),
                "room": Out(1),
                "feeds": Out(1),
                "lanes": Out(chunk),
                "address": Out(ceil_log2(design.array_weights)),
                "row": Out(range(max(2, design.scatter_pes))),
                "tile": Out(range(max(2, design.array_weights))),
                "first": Out(1),
                "last": Out(1),
                "idle": Out(1),
            }
        )

    def elaborate(self, platform: object) -> Module:
        design, m = self._design, Module()
        n, chunk_bits = design.scatter_pes, exact_log2(design.row_chunks)
        filling, reading, filled = Signal(), Signal(), Signal(range(design.row_chunks))
        num_taken, num_full = Signal(2), Signal(2)
        ends_fill = self.valid & (filled + 1 == self.chunks)

        # Counters of the feed, and cycles since a chunk began: the next one begins HAZARD cycles later at the earliest.
        chunk, row, tile = Signal(range(design.row_chunks)), Signal(range(max(2, n))), Signal.like(self.tile)
        since, is_over, address = (
            Signal(range(n * design.array_weights + HAZARD)),
            Signal(),
            Signal.like(self.address),
        )
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
        with m.If(self.valid):
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
                shape=data.ArrayLayout(32, design.lanes), depth=2 << chunk_bits, init=[]
            )
            write, read = memory.write_port(), memory.read_port()
            m.d.comb += [
                write.en.eq(self.valid),
                write.addr.eq(Cat(filled[:chunk_bits], filling)),
                write.data.eq(self.drained[number]),
                read.addr.eq(Cat(chunk[:chunk_bits], reading)),
            ]
            rows.append(read.data.as_value())
        feeds = reads & ~is_over
        late = [delayed(m, each, 1) for each in (row, tile, address + tile, chunk == 0, chunk + 1 == self.chunks)]
        for port, value in zip((self.row, self.tile, self.address, self.first, self.last), late, strict=True):
            m.d.comb += port.eq(value)
        m.d.comb += self.feeds.eq(delayed(m, feeds, 1, resets=True))
        with m.Switch(self.row):
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
        loads, load_row, load_address, load_values: weights of an array row are written, while nothing is fed.
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
                "lanes": In(data.ArrayLayout(32, design.lanes)),
                "address": In(address),
                "grads": In(columns),
                "first": In(1),
                "loads": In(1),
                "load_row": In(range(max(2, design.lanes))),
                "load_address": In(address),
                "load_values": In(columns),
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
        for row in range(design.lanes):
            behind = ADD_STAGES * row
            operand = delayed(m, self.lanes[row], behind)
            told = delayed(m, control, behind, resets=True)
            for column in range(design.array_columns):
                m.submodules[f"mac{row}_{column}"] = mac = _Mac(design)
                m.d.comb += [
                    mac.gradient.eq(self.gradient),
                    mac.operand.eq(operand),
                    Cat(mac.address, mac.first, mac.adds).eq(told),
                    mac.above.eq(above[column]),
                    mac.loads.eq(self.loads & (self.load_row == row)),
                    mac.load_address.eq(self.load_address),
                    mac.load_value.eq(self.load_values[column]),
                ]
                above[column] = mac.below
                operand, told = delayed(m, operand, 1), delayed(m, told, 1, resets=True)
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
        valid, sums, row, tile, first, last: sums of a chunk, of which row and tile, and whether it is the row's first or last one.
        rectifies: whether negative results are zero; constant while results are under way.
        loads, load_tile, load_values: the bias of a tile is written.
    """

    def __init__(self, design: KernelDesign) -> None:
        self._design = design
        columns = data.ArrayLayout(32, design.array_columns)
        row, tile = range(max(2, design.scatter_pes)), range(max(2, design.array_weights))
        super().__init__(
            {
                "valid": In(1),
                "sums": In(columns),
                "row": In(row),
                "tile": In(tile),
                "first": In(1),
                "last": In(1),
                "rectifies": In(1),
                "loads": In(1),
                "load_tile": In(tile),
                "load_values": In(columns),
                "result": Out(wiring.Signature(result_layout(design))),
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
        # Tile and row of the sums of the next cycle are read now.
        place = Cat(self.row[: exact_log2(design.scatter_pes)], self.tile)
        m.d.comb += [
            load.en.eq(self.loads),
            load.addr.eq(self.load_tile),
            load.data.eq(self.load_values),
            bias.addr.eq(self.tile),
            read.addr.eq(place),
            write.en.eq(delayed(m, self.valid & ~self.last, 1 + ADD_STAGES, resets=True)),
            write.addr.eq(delayed(m, place, 1 + ADD_STAGES)),
            self.result.valid.eq(delayed(m, self.valid & self.last, 1 + ADD_STAGES, resets=True)),
            self.result.row.eq(delayed(m, self.row, 1 + ADD_STAGES)),
            self.result.tile.eq(delayed(m, self.tile, 1 + ADD_STAGES)),
        ]
        begins = delayed(m, self.first, 1)
        for column in range(design.array_columns):
            m.submodules[f"add{column}"] = add = Add()
            is_negative = add.result[31] & self.rectifies
            m.d.comb += [
                add.a.eq(Mux(begins, bias.data[column], read.data[column])),
                add.b.eq(delayed(m, self.sums[column], 1)),
                write.data[column].eq(add.result),
                self.result.values[column].eq(Mux(is_negative, 0, add.result)),
                self.result.mask[column].eq(~is_negative & add.result[:31].any()),
            ]
        return m
