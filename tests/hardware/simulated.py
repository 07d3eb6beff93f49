"""Circuits in Amaranth's simulator."""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

import numpy as np
from amaranth.sim import Simulator

from sagann.hardware import KernelDesign, Pass, Region, first_use, scatter_program
from sagann.hardware.rtl.accelerator import Accelerator
from sagann.hardware.rtl.aggregate import Aggregate
from sagann.hardware.rtl.streams import encoded_pass, payloads_of

Array: TypeAlias = np.ndarray[Any, Any]
CYCLE_S = 1e-6


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

    def read(self, design: KernelDesign) -> Pass:
        """The pass that sums the rows, and drains the sums."""
        chunks = design.chunks(self.features.shape[1])
        return Pass(
            program=scatter_program(self.indptr, self.rows, self.coefficients, design, chunks=chunks),
            rows=len(self.features),
            row_chunks=chunks,
            chunks=chunks,
            sums=Region(0, chunks),
            drains=Region(0, chunks),
        )


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


def _simulate(circuit: Any, *benches: Any) -> None:
    simulator = Simulator(circuit)
    simulator.add_clock(CYCLE_S)
    for bench in benches:
        simulator.add_testbench(bench)
    simulator.run()


def _stalls(ctx: Any, kernel: Aggregate | Accelerator) -> list[int]:
    return [ctx.get(kernel.stalls[cause]) for cause in ("rows", "room", "hazard")]


class PassRun(NamedTuple):
    """What the accelerator did in a pass."""

    results: Array
    "That went to external memory, float32 [number, array_columns]."
    total: int
    "Cycles until it took the next pass."
    stalls: tuple[int, int, int]
    traffic: tuple[int, int]
    "Bytes that were read from external memory, and written to it."


def run_passes(
    passes: list[Pass],
    rows: dict[int, Array],
    design: KernelDesign,
    *,
    gaps: float = 0.0,
) -> list[PassRun]:
    """Run passes.

    Args:
        rows: that come from external memory, by the number of the pass.
        gaps: part of the cycles in which a stream has nothing to give.
    """
    kernel, random = Accelerator(design), np.random.default_rng(0)
    found: list[PassRun] = []
    taken: list[int] = []
    results: list[list[list[int]]] = [[] for _ in passes]
    reads, writes = [0] * len(passes), [0] * len(passes)

    async def state(ctx: Any) -> None:
        cycle, before, last = 0, 0, [0, 0, 0]
        # The last one ends when another one would be taken.
        for each in (*passes, Pass()):
            ctx.set(kernel.passes.payload, encoded_pass(each, design))
            ctx.set(kernel.passes.valid, 1)
            is_taken = 0
            while not is_taken:
                *_, is_taken = await ctx.tick().sample(kernel.passes.ready)
                cycle += 1
            if taken:
                values = np.array(results[len(taken) - 1], dtype=np.uint32).reshape(-1, design.array_columns)
                stalls = tuple(last)
                found.append(PassRun(values.view(np.float32), cycle - before, stalls, (0, 0)))  # type: ignore[arg-type]
            before = cycle
            taken.append(cycle)
            last = [0, 0, 0]
            while len(taken) <= len(passes) and not ctx.get(kernel.passes.ready):
                last = _stalls(ctx, kernel)
                await ctx.tick()
                cycle += 1
        taken.append(cycle)

    def give(stream: Any, payloads: list[tuple[int, Any]]) -> Any:
        size = -(-stream.payload.shape().size // 8)

        async def run(ctx: Any) -> None:
            for number, payload in payloads:
                while random.random() < gaps:
                    ctx.set(stream.valid, 0)
                    await ctx.tick()
                ctx.set(stream.payload, payload)
                ctx.set(stream.valid, 1)
                is_taken = 0
                while not is_taken:
                    *_, is_taken = await ctx.tick().sample(stream.ready)
                assert number == len(taken) - 1
                reads[number] += size
            ctx.set(stream.valid, 0)

        return run

    async def take(ctx: Any) -> None:
        while len(taken) < len(passes) + 2:
            *_, valid, result = await ctx.tick().sample(kernel.results.valid, kernel.results.payload)
            if valid:
                results[len(taken) - 1].append(list(result["values"]))
                writes[len(taken) - 1] += 4 * design.array_columns

    streams = payloads_of(passes, rows, design).items()
    given = (give(getattr(kernel, name), payloads) for name, payloads in streams if payloads)
    _simulate(kernel, state, take, *given)
    return [each._replace(traffic=(reads[n], writes[n])) for n, each in enumerate(found)]
