"""Circuits in Amaranth's simulator."""

from __future__ import annotations

import inspect
from types import ModuleType
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from amaranth.sim import Simulator

from sagann.hardware import KernelDesign, ScatterProgram, first_use, scatter_program
from sagann.hardware.design import HAZARD
from sagann.hardware.rtl.aggregate import Aggregate, encoded
from sagann.hardware.rtl.layer import Layer
from sagann.hardware.rtl.update import SystolicArray

Array: TypeAlias = np.ndarray[Any, Any]
CYCLE_S = 1e-6


def changed(module: ModuleType, term: str, instead: str) -> dict[str, Any]:
    """The names of a module of which one term is another one."""
    text = inspect.getsource(module)
    assert text.count(term) == 1
    names: dict[str, Any] = {"__name__": module.__name__}
    exec(compile(text.replace(term, instead), str(module.__file__), "exec"), names)
    return names


def results_of(operator: Any, stages: int, a: Array, b: Array) -> Array:
    """What an operator with so many stages gives for pairs of float32 numbers, a pair in each cycle."""
    found = np.zeros(len(a), dtype=np.uint32)
    pairs = list(zip(a.view(np.uint32).tolist(), b.view(np.uint32).tolist(), strict=True))

    async def feed(ctx: Any) -> None:
        for number in range(len(pairs) + stages - 1):
            if number < len(pairs):
                ctx.set(operator.a, pairs[number][0])
                ctx.set(operator.b, pairs[number][1])
            await ctx.tick()
            if number + 1 >= stages:
                found[number + 1 - stages] = ctx.get(operator.result)

    _simulate(operator, feed)
    return found.view(np.float32)


class Hop(NamedTuple):
    """A hop as the kernel reads it."""

    indptr: Array
    rows: Array
    coefficients: Array
    features: Array

    @property
    def num_dst(self) -> int:
        return len(self.indptr) - 1

    def program(self, design: KernelDesign) -> ScatterProgram:
        return scatter_program(self.indptr, self.rows, self.coefficients, design, width=self.features.shape[1])


def hop_of(src: Array, dst: Array, width: int, *, num_pes: int, seed: int = 0) -> Hop:
    """A hop of edges with random coefficients and rows. A destination without edges gets one of coefficient 0."""
    random = np.random.default_rng(seed)
    num_dst = int(dst.max()) + 1
    lonely = np.setdiff1d(np.arange(num_dst), dst)
    coefficients = random.standard_normal(len(dst) + len(lonely)).astype(np.float32)
    coefficients[len(dst) :] = 0
    dst, src = np.concatenate([dst, lonely]), np.concatenate([src, np.full(len(lonely), src[0])])
    order = np.argsort(dst, kind="stable")
    src, dst, coefficients = src[order], dst[order], coefficients[order]
    indptr = np.searchsorted(dst, np.arange(num_dst + 1))
    sources = first_use(indptr, src, num_pes)
    number = np.zeros(sources.max() + 1, dtype=np.int64)
    number[sources] = np.arange(len(sources))
    order = np.lexsort((number[src], dst))
    features = random.standard_normal((len(sources), width)).astype(np.float32)
    return Hop(indptr, number[src][order], coefficients[order], features)


def random_hop(num_src: int, num_dst: int, num_edges: int, width: int, *, num_pes: int, seed: int = 0) -> Hop:
    random = np.random.default_rng(seed)
    src, dst = (random.integers(0, most, num_edges) for most in (num_src, num_dst))
    dst[-1] = num_dst - 1
    return hop_of(src, dst, width, num_pes=num_pes, seed=seed)


class Run(NamedTuple):
    """What the aggregate kernel did."""

    sums: Array
    "Of the destinations, float32 [num_dst, width]."
    cycles: tuple[int, int, int, int]
    "Until the last word's last chunk was issued; those in which a word waited for rows, for room, for sums."
    beats: int
    "Beats of rows that were read."


def _give(
    stream: Any, payloads: list[Any], *, after: int = 0, begun: list[bool] | None = None
) -> tuple[Any, list[int]]:
    """What gives a stream its payloads, after some cycles, or once a list is not empty; and the cycles that each one waited."""
    cycles: list[int] = []

    async def give(ctx: Any) -> None:
        if after:
            await ctx.tick().repeat(after)
        while begun == []:
            await ctx.tick()
        for payload in payloads:
            ctx.set(stream.payload, payload)
            ctx.set(stream.valid, 1)
            is_taken, waited = 0, 0
            while not is_taken:
                *_, is_taken = await ctx.tick().sample(stream.ready)
                waited += 1
            cycles.append(waited)
        ctx.set(stream.valid, 0)

    return give, cycles


def _beats(hop: Hop, design: KernelDesign, chunks: int, padding: float) -> list[Any]:
    padded = np.full(
        (len(hop.features), design.beats(chunks), design.beat_chunks, design.lanes), padding, np.float32
    )
    padded.reshape(len(hop.features), -1)[:, : hop.features.shape[1]] = hop.features
    return padded.view(np.uint32).reshape(-1, design.beat_chunks, design.lanes).tolist()


def _simulate(circuit: Any, *benches: Any) -> None:
    simulator = Simulator(circuit)
    simulator.add_clock(CYCLE_S)
    for bench in benches:
        simulator.add_testbench(bench)
    simulator.run()


def run_kernel(
    hop: Hop,
    program: ScatterProgram,
    design: KernelDesign,
    kernel: Aggregate | None = None,
    *,
    before: Hop | None = None,
) -> Run:
    """Run a program in a kernel to which memory always gives the next row, after that of another hop if there is one.

    Unused lanes of rows hold NaN.
    """
    kernel = kernel or Aggregate(design)
    lanes, chunks, n = design.lanes, program.chunks, design.scatter_pes
    sums = np.zeros((hop.num_dst + n, chunks * lanes), dtype=np.uint32)
    begun: list[bool] = []
    give_rows, beats = _give(kernel.rows, _beats(hop, design, chunks, np.nan), begun=begun)
    give_words, waited = _give(kernel.words, encoded(program, design), begun=begun)
    stalls: list[int] = []

    async def run_before(ctx: Any) -> None:
        if before is not None:
            other = before.program(design)
            ctx.set(kernel.chunks, other.chunks)
            ctx.set(kernel.room, 1)
            rows, words = _beats(before, design, other.chunks, np.nan), encoded(other, design)
            # Words wait for their rows, so a word is offered while rows are given.
            ctx.set(kernel.rows.valid, 1)
            ctx.set(kernel.words.valid, 1)
            while words:
                if rows:
                    ctx.set(kernel.rows.payload, rows[0])
                ctx.set(kernel.rows.valid, bool(rows))
                ctx.set(kernel.words.payload, words[0])
                *_, has_row, has_word = await ctx.tick().sample(kernel.rows.ready, kernel.words.ready)
                rows, words = rows[has_row and bool(rows) :], words[has_word:]
            ctx.set(kernel.words.valid, 0)
            await ctx.tick().until(kernel.idle)
            ctx.set(kernel.begins, 1)
            await ctx.tick()
            ctx.set(kernel.begins, 0)
        ctx.set(kernel.chunks, chunks)
        ctx.set(kernel.room, 1)
        begun.append(True)

    async def take(ctx: Any) -> None:
        while not begun:
            await ctx.tick()
        for first in program.destination[program.is_drain, 0]:
            for chunk in range(chunks):
                drained = await ctx.tick().sample(kernel.drained.payload).until(kernel.drained.valid)
                sums[first : first + n, chunk * lanes : (chunk + 1) * lanes] = [list(row) for row in drained[0]]
        await ctx.tick().until(kernel.idle)
        stalls.extend(_stalls(ctx, kernel))

    _simulate(kernel, run_before, take, give_rows, give_words)
    found = sums.view(np.float32)[: hop.num_dst, : hop.features.shape[1]]
    return Run(found, (sum(waited), *stalls), len(beats))  # type: ignore[arg-type]


def _stalls(ctx: Any, kernel: Aggregate | Layer) -> list[int]:
    return [ctx.get(kernel.stalls[cause]) for cause in ("rows", "room", "hazard")]


class LayerRun(NamedTuple):
    """What the two kernels did."""

    values: Array
    "float32 [num_dst, width of results]."
    mask: Array
    "bool of the same shape."
    cycles: tuple[int, int, int, int, int]
    "As for :class:`Run`, and until the array had read its last row."


def run_layer(
    hop: Hop, program: ScatterProgram, design: KernelDesign, weights: Array, bias: Array, *, relu: bool
) -> LayerRun:
    """A layer's forward, after weights and bias were loaded."""
    kernel, n, lanes, columns = Layer(design), design.scatter_pes, design.lanes, design.array_columns
    chunks, tiles = program.chunks, design.tiles(weights.shape[1], program.chunks)
    matrix = np.zeros((chunks * lanes, tiles * columns), dtype=np.float32)
    matrix[: weights.shape[0], : weights.shape[1]] = weights
    biases = np.zeros(tiles * columns, dtype=np.float32)
    biases[: len(bias)] = bias
    loads = list(np.ndindex(chunks, lanes, tiles))
    num_loads = len(loads) + tiles
    values = np.zeros((hop.num_dst + n, tiles * columns), dtype=np.uint32)
    mask = np.zeros(values.shape, dtype=bool)
    give_rows, _ = _give(kernel.rows, _beats(hop, design, chunks, 0), after=num_loads)
    give_words, waited = _give(kernel.words, encoded(program, design), after=num_loads)
    read, stalls = [0], []

    async def load(ctx: Any) -> None:
        for port, value in ((kernel.chunks, chunks), (kernel.tiles, tiles), (kernel.rectifies, relu)):
            ctx.set(port, value)
        ctx.set(kernel.weights.valid, 1)
        for chunk, row, tile in loads:
            held = matrix[chunk * lanes + row, tile * columns : (tile + 1) * columns].view(np.uint32).tolist()
            ctx.set(kernel.weights.payload, {"row": row, "address": chunk * tiles + tile, "values": held})
            await ctx.tick()
        ctx.set(kernel.weights.valid, 0)
        ctx.set(kernel.biases.valid, 1)
        for tile, held in enumerate(biases.view(np.uint32).reshape(tiles, columns).tolist()):
            ctx.set(kernel.biases.payload, {"tile": tile, "values": held})
            await ctx.tick()
        ctx.set(kernel.biases.valid, 0)

    async def count(ctx: Any) -> None:
        await ctx.tick().repeat(num_loads)
        while len(waited) < program.num_words or not ctx.get(kernel.feeder_idle):
            await ctx.tick()
            read[0] += 1

    async def take(ctx: Any) -> None:
        for first in program.destination[program.is_drain, 0]:
            for _ in range(n * tiles):
                (result,) = await ctx.tick().sample(kernel.results.payload).until(kernel.results.valid)
                place = first + result.row, slice(result.tile * columns, (result.tile + 1) * columns)
                values[place] = list(result["values"])
                mask[place] = [result.mask >> column & 1 for column in range(columns)]
        stalls.extend(_stalls(ctx, kernel))

    _simulate(kernel, load, give_rows, give_words, count, take)
    part = slice(0, hop.num_dst), slice(0, weights.shape[1])
    return LayerRun(values.view(np.float32)[part], mask[part], (sum(waited), *stalls, read[0]))  # type: ignore[arg-type]


def gradient_of(design: KernelDesign, rows: Array, grads: Array) -> Array:
    """The gradient of weights that the array sums in gradient mode, read by unit vectors in weights mode; [chunks, lanes, tiles, columns]."""
    array, lanes, columns = SystolicArray(design), design.lanes, design.array_columns
    chunks, tiles = rows.shape[1] // lanes, grads.shape[1] // columns
    found = np.zeros((chunks, lanes, tiles, columns), dtype=np.uint32)
    steps = list(np.ndindex(len(rows), chunks, tiles))
    idle = max(0, HAZARD - chunks * tiles)
    reads = list(np.ndindex(chunks, lanes, tiles))

    async def run(ctx: Any) -> None:
        ctx.set(array.gradient, 1)
        for row, chunk, tile in steps:
            ctx.set(array.feeds, 1)
            ctx.set(array.lanes, rows[row, chunk * lanes : (chunk + 1) * lanes].view(np.uint32).tolist())
            ctx.set(array.grads, grads[row, tile * columns : (tile + 1) * columns].view(np.uint32).tolist())
            ctx.set(array.address, chunk * tiles + tile)
            ctx.set(array.first, row == 0)
            await ctx.tick()
            if (chunk, tile) == (chunks - 1, tiles - 1) and idle:
                ctx.set(array.feeds, 0)
                await ctx.tick().repeat(idle)
        ctx.set(array.feeds, 0)
        await ctx.tick().repeat(array.latency + HAZARD)
        ctx.set(array.gradient, 0)
        for number in range(len(reads) + array.latency):
            if number < len(reads):
                chunk, row, tile = reads[number]
                unit = np.eye(lanes, dtype=np.float32)[row]
                ctx.set(array.lanes, unit.view(np.uint32).tolist())
                ctx.set(array.address, chunk * tiles + tile)
            *_, sums = await ctx.tick().sample(array.sums)
            if number >= array.latency:
                found[reads[number - array.latency][:2]][reads[number - array.latency][2]] = list(sums)

    _simulate(array, run)
    return found.view(np.float32)
