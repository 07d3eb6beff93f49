"""Circuits in Amaranth's simulator."""

from __future__ import annotations

import inspect
from types import ModuleType
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from amaranth.sim import Simulator

from sagann.hardware import Cycles, KernelDesign, ScatterProgram, first_use, scatter_program
from sagann.hardware.rtl.aggregate import Aggregate, encoded

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

    simulator = Simulator(operator)
    simulator.add_clock(CYCLE_S)
    simulator.add_testbench(feed)
    simulator.run()
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
    """What the kernel did."""

    sums: Array
    "Of the destinations, float32 [num_dst, width]."
    cycles: Cycles
    beats: int
    "Beats of rows that were read."


def run_kernel(hop: Hop, program: ScatterProgram, design: KernelDesign, kernel: Aggregate | None = None) -> Run:
    """Run a program in a kernel to which memory always gives the next row. Unused chunks of rows and accumulators hold rubbish."""
    kernel = kernel or Aggregate(design)
    (num_rows, width), lanes, chunks = hop.features.shape, design.lanes, program.chunks
    padded = np.full((num_rows, design.beats(chunks) * design.beat_chunks * lanes), np.nan, dtype=np.float32)
    padded[:, :width] = hop.features
    beats = padded.view(np.uint32).reshape(-1, design.beat_chunks, lanes).tolist()
    n = design.scatter_pes
    sums = np.zeros((hop.num_dst + n, chunks * lanes), dtype=np.uint32)
    counts = {"issue": 0, "beats": 0}

    async def give_rows(ctx: Any) -> None:
        ctx.set(kernel.chunks, chunks)
        for beat in beats:
            ctx.set(kernel.rows.payload, beat)
            ctx.set(kernel.rows.valid, 1)
            await ctx.tick().until(kernel.rows.ready)
            counts["beats"] += 1
        ctx.set(kernel.rows.valid, 0)

    async def give_words(ctx: Any) -> None:
        for word in encoded(program, design):
            ctx.set(kernel.words.payload, word)
            ctx.set(kernel.words.valid, 1)
            is_taken = False
            while not is_taken:
                *_, is_taken = await ctx.tick().sample(kernel.words.ready)
                counts["issue"] += 1
        ctx.set(kernel.words.valid, 0)
        await ctx.tick().until(kernel.idle)
        counts["rows"], counts["hazard"] = ctx.get(kernel.row_stalls), ctx.get(kernel.hazard_stalls)

    async def take_sums(ctx: Any) -> None:
        for first in program.destination[program.is_drain, 0]:
            for chunk in range(chunks):
                drained = await ctx.tick().sample(kernel.drained.chunks).until(kernel.drained.valid)
                columns = slice(chunk * lanes, (chunk + 1) * lanes)
                sums[first : first + n, columns] = [list(row) for row in drained[0]]

    simulator = Simulator(kernel)
    simulator.add_clock(CYCLE_S)
    simulator.add_testbench(give_rows)
    simulator.add_testbench(give_words)
    simulator.add_testbench(take_sums)
    simulator.run()

    found = sums.view(np.float32)[: hop.num_dst, :width]
    return Run(found, Cycles(counts["issue"], counts["rows"], counts["hazard"]), counts["beats"])
